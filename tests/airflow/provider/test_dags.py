"""The DAGs of the repository: they load, explain themselves, and their forms refuse what makes no sense."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

from penstock.cli.start.new import new
from penstock_airflow.command_options import BACKFILL, CHECK_BACKFILL, PREPARE, REPARTITION, arguments_of

DAGS = Path(__file__).parents[3] / "dags"


@pytest.fixture(scope="module")
def dags():
    bag = DagBag(dag_folder=str(DAGS))
    assert not bag.import_errors
    return bag.dags


def test_the_dag_of_a_new_project_loads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new("order-totals")
    bag = DagBag(dag_folder=str(tmp_path / "order-totals" / "dag.py"))
    assert not bag.import_errors
    (dag,) = bag.dags.values()
    assert (dag.dag_id, dag.task_ids) == ("order-totals", ["submit"])


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
        ("job_rescale", {"job": "x", "rewrite_to": ""}),
        ("job_rescale", {"job": "x", "key_groups": 0}),
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
        ("job_backfill", {"job_file": "x", "target": "t", "history": ["s3://lake/orders"]}),
        ("job_backfill", {"job_file": "x", "target": "t", "history": "orders=s3://lake/orders"}),
        ("job_backfill", {"job_file": "x", "target": "t", "offsets": ["orders=partition"]}),
        ("job_backfill", {"job_file": "x", "target": "t", "offsets": ["orders=a,b,c,d"]}),
        ("job_backfill", {"job_file": "x", "target": "t", "sparse": [""]}),
        ("job_backfill", {"job_file": "x", "target": "t", "cut_over": ""}),
        ("job_backfill", {"job_file": "x", "target": "t", "spark_conf": {"executor.memory": "4g"}}),
    ],
)
def test_forms_refuse(dags, dag, wrong):
    with pytest.raises(ParamValidationError):
        filled(dags[dag].params, wrong)


def test_every_task_refuses_a_parameter_that_its_dag_does_not_have(dags):
    for dag in dags.values():
        name = next(iter(dag.params))
        for task in dag.tasks:
            context = {"dag": dag, "dag_run": SimpleNamespace(conf={name: "x", f"{name}x": "x"})}
            with pytest.raises(AirflowFailException, match=f"unknown parameter '{name}x' .*did you mean '{name}'"):
                task._pre_execute_hook(context)
            task._pre_execute_hook({"dag": dag, "dag_run": SimpleNamespace(conf={name: "x"})})
            task._pre_execute_hook({"dag": dag, "dag_run": SimpleNamespace(conf=None)})


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


def test_a_rescale_goes_the_way_that_is_asked_for(dags):
    rescale = dags["job_rescale"]
    way = rescale.task_dict["way"].python_callable
    assert way(filled(rescale.params, {"job": "x"})) == "rescale"
    moved = {"job": "x", "rewrite_to": "s3://new", "checkpoints": "s3://old/x", "job_file": "x.py", "key_groups": 64}
    assert way(filled(rescale.params, moved)) == "prepare"
    with pytest.raises(AirflowFailException, match="without job_file"):
        way(filled(rescale.params, {**moved, "job_file": None}))
    upstream = {name: sorted(task.upstream_task_ids) for name, task in rescale.task_dict.items()}
    assert upstream == {
        "way": [], "rescale": ["way"], "prepare": ["way"], "cancel": ["prepare"], "repartition": ["cancel"],
        "submit": ["repartition"],
    }  # fmt: skip
    spark = {"spark_above": 0, "spark_conf": {"spark.executor.memory": "4g"}}
    rendered = {}
    for name, kinds in (("prepare", PREPARE), ("repartition", REPARTITION)):
        task = copy.deepcopy(rescale.task_dict[name])
        task.render_template_fields(
            {"params": filled(rescale.params, {**moved, **spark}), "run_id": "manual__2026-01-31T00:00"}
        )
        rendered[name] = arguments_of(task.options, kinds)
    folder, same = "s3://new/prepared-manual__2026-01-31T00-00", ["--spark-conf", "spark.executor.memory=4g"]
    assert rendered == {
        "prepare": ["--spark-above", "0", *same],
        "repartition": ["--key-groups", "64", "--spark-above", "0", *same, "--prepared", folder],
    }


def test_a_backfill_is_told_of_tables_as_its_command_is(dags):
    tables = {"history": ["orders=s3://lake/a", "orders=s3://lake/b"], "offsets": ["orders=p,o"], "sparse": ["orders"]}
    plain = {"job_file": "x", "target": "t"}
    spark = {"master": "yarn", "spark_conf": {"spark.executor.memory": "4g"}}
    given = {**plain, **tables, **spark, "cut_over": "orders-0=5", "until": "cut-over"}
    told = ["--history", "orders=s3://lake/a", "--history", "orders=s3://lake/b", "--offsets", "orders=p,o"]
    told += ["--sparse", "orders", "--cut-over", "orders-0=5", "--until", "cut-over"]
    work = ["--master", "yarn", "--parts", "16", "--spark-conf", "spark.executor.memory=4g"]
    for entered, fit, more in ((plain, ["--until", "latest"], ["--parts", "16"]), (given, told, work)):
        rendered = {}
        for name, kinds in (("check", CHECK_BACKFILL), ("backfill", BACKFILL)):
            task = copy.deepcopy(dags["job_backfill"].task_dict[name])
            task.render_template_fields({"params": filled(dags["job_backfill"].params, entered)})
            words = iter(arguments_of(task.options, kinds))
            rendered[name] = sorted(zip(words, words, strict=True))
        pairs = {"check": fit, "backfill": [*fit, *more]}
        assert rendered == {name: sorted(zip(w[::2], w[1::2], strict=True)) for name, w in pairs.items()}


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
