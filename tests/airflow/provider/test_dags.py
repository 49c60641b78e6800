"""The DAGs of the repository: they load, explain themselves, and their forms refuse what makes no sense."""

import copy
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import ParamValidationError

DAGS = Path(__file__).parents[3] / "dags"


@pytest.fixture(scope="module")
def dags():
    bag = DagBag(dag_folder=str(DAGS))
    assert not bag.import_errors
    return bag.dags


def test_all_there_and_documented(dags):
    assert sorted(dags) == sorted(path.stem for path in DAGS.glob("*.py"))
    for dag in dags.values():
        assert dag.doc_md.startswith("###"), dag.dag_id
        for name, param in dag.params.items():
            assert f"`{name}`" in dag.doc_md, (dag.dag_id, name)
            assert dag.params.get_param(name).schema.get("title"), (dag.dag_id, name, param)


@pytest.mark.parametrize(
    ("dag", "wrong"),
    [
        ("job_submit", {}),
        ("job_submit", {"job_file": "x", "parallelism": 0}),
        ("job_submit", {"job_file": "x", "on_kill": "perhaps"}),
        ("job_stop", {"job": ""}),
        ("job_rescale", {"job": "x", "parallelism": "many"}),
        ("savepoint_schedule", {"job": "x", "target": "s3://b", "keep": 0}),
        ("savepoint_schedule", {"job": "x"}),
    ],
)
def test_forms_refuse(dags, dag, wrong):
    with pytest.raises(ParamValidationError):
        filled(dags[dag].params, wrong)


def filled(params, values):
    """What a form does with what was entered."""
    params = copy.deepcopy(params)
    for name, value in values.items():
        params[name] = value
    params.validate()
