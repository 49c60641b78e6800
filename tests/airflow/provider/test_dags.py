"""The DAGs of the repository: they load, explain themselves, and their forms refuse what makes no sense."""

import copy
import json
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import ParamValidationError

from penstock_airflow.command_options import REPARTITION, arguments_of

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
        ("job_upgrade", {"job": "x"}),
        ("job_upgrade", {"job": "x", "job_file": "y", "deadline": "soon"}),
        ("job_upgrade", {"job": "x", "job_file": "y", "checkpoints": 0}),
        ("job_upgrade", {"job": "x", "job_file": "y", "on_kill": "cancel"}),
        ("state_repartition", {"snapshot": "s", "target": "t", "key_groups": 0}),
        ("state_repartition", {"snapshot": "s"}),
        ("savepoint_verify", {"job": "x"}),
        ("job_backfill", {"job_file": "x"}),
        ("job_backfill", {"job_file": "x", "target": "t", "parts": 0}),
        ("job_backfill", {"job_file": "x", "target": "t", "until": ""}),
        ("job_backfill", {"job_file": "x", "target": "t", "accept": "totals"}),
    ],
)
def test_forms_refuse(dags, dag, wrong):
    with pytest.raises(ParamValidationError):
        filled(dags[dag].params, wrong)


def test_where_much_state_begins_is_the_workers_own_setting_unless_it_is_given(dags):
    repartition = dags["state_repartition"]
    rendered = {}
    for above in (None, 0):
        values = {"snapshot": "s", "target": "t", "spark_above": above, "spark_conf": {"spark.executor.memory": "4g"}}
        task = copy.deepcopy(repartition.task_dict["repartition"])
        task.render_template_fields({"params": filled(repartition.params, values)})
        rendered[above] = arguments_of(task.options, REPARTITION)
    same = ["--spark-conf", "spark.executor.memory=4g"]
    assert rendered == {None: ["--engine", "auto", *same], 0: ["--engine", "auto", "--spark-above", "0", *same]}


def test_verify_is_scheduled_where_it_is_told_of_what(monkeypatch):
    given = dict.fromkeys(("job", "target", "job_file", "scratch_root", "live", "scratch"), "x")
    monkeypatch.setenv("PENSTOCK_VERIFY", json.dumps({**given, "environment": {"OUTPUT": "y"}}))
    bag = DagBag(dag_folder=str(DAGS / "savepoint_verify.py"))
    assert not bag.import_errors
    assert bag.dags["savepoint_verify"].schedule == "30 2 * * *"
    bag.dags["savepoint_verify"].params.validate()


def filled(params, values):
    """What a form does with what was entered; what the task gets."""
    params = copy.deepcopy(params)
    for name, value in values.items():
        params[name] = value
    return params.validate()
