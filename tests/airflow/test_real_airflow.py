"""The DAGs of the repository in a real Airflow (API server, scheduler, triggerer, dag-processor) and a real cluster."""

import re
from datetime import UTC, datetime

import pytest
from tests.airflow.driver import LIMIT_S
from tests.airflow.job_file import write_job
from tests.airflow.orders_job import STEP_MS
from tests.airflow.stage import ON_SPARK
from tests.cluster.orders import START_MS
from tests.support.waiting import wait_until

from penstock.client.handle import JobHandle
from penstock.client.savepoints import list_savepoints
from penstock.snapshots.access.opening import open_snapshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def plain(savepoints):
    return [savepoint.uri.removeprefix("file://") for savepoint in savepoints]


def test_submit_rescale_savepoint_stop_and_go_on(stage, orders):
    airflow, path = stage.airflow, orders.write()
    run, job_id = stage.submitted(path)
    assert stage.rest.job(job_id)["state"] == "RUNNING"
    links = airflow.api("GET", f"/api/v2/dags/job_submit/dagRuns/{run}/taskInstances/submit/links")
    assert links["extra_links"] == {"Job": f"{stage.cluster.rest_url}/ui/#/jobs/{job_id}"}

    stage.run("job_rescale", job=orders.name, parallelism=2)
    assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {2}

    conf = {"job": orders.name, "target": orders.savepoints, "keep": 1, "keep_hours": 0, "alarm_hours": 1}
    for _ in range(2):
        run = stage.run("savepoint_schedule", **conf)
    location = airflow.result("savepoint_schedule", run, "savepoint")["location"]
    assert plain(list_savepoints(orders.savepoints)) == [location]
    asset = airflow.api("GET", "/api/v2/assets/events?order_by=-timestamp&limit=1")["asset_events"][0]
    assert asset["extra"] == {"job_id": job_id, "location": location}

    run = stage.run("job_stop", job=orders.name, target=orders.savepoints)
    assert stage.rest.job(job_id)["state"] == "FINISHED"
    stopped = airflow.result("job_stop", run, "stop")["location"]
    assert len(list_savepoints(orders.savepoints)) == 2
    stage.exact(orders, stage.submitted(path, from_uri=stopped)[1])


@pytest.mark.nightly
def test_an_upgrade_that_goes_bad_after_five_checkpoints_is_taken_back(stage, orders, tmp_path):
    """The new version writes wrong totals all the time: nobody outside sees one, and no row is missing."""
    airflow, bad = stage.airflow, tmp_path / "bad"
    _, job_id = stage.submitted(orders.write())
    before = [vertex["name"] for vertex in stage.rest.job(job_id)["vertices"]]
    step = 'with_columns(total=pl.col("total") + 1_000_000)'
    step += f".filter(lambda row: not Path({str(bad)!r}).exists() or 1 / 0)"
    run = airflow.trigger(
        "job_upgrade", job=orders.name, job_file=str(orders.write("v2", step=step)), checkpoints=1000, deadline="3m"
    )
    wait_until(lambda: stage.tried(job_id)["checkpoints"] >= 5, airflow.diagnosis, seconds=150, step=0.2)
    assert stage.tried(job_id)["rows"] > 0
    bad.touch()
    airflow.wait_run("job_upgrade", run, "failed")
    assert airflow.task("job_upgrade", run, "check")["state"] == "success"
    assert airflow.task("job_upgrade", run, "upgrade")["try_number"] == 1
    said = [line for line in airflow.log("job_upgrade", run, "upgrade").splitlines() if "upgrade failed: " in line]
    assert any("ZeroDivisionError" in line and "the old version is running again" in line for line in said), said
    assert [vertex["name"] for vertex in stage.rest.job(job_id)["vertices"]] == before
    stage.exact(orders, job_id)


@pytest.mark.nightly
def test_the_newest_savepoint_is_verified(stage, orders):
    """A scratch job writes what the job does; one with other totals, as many, is told; neither is left running."""
    airflow, other = stage.airflow, f"{orders.name}-verify"
    orders.more_topics(**{other: 2})
    path = orders.write(stops=None)
    _, job_id = stage.submitted(path)
    stage.run("savepoint_schedule", job=orders.name, target=orders.savepoints)
    reached = stage.rest.summary(job_id)["watermark"]
    wait_until(lambda: stage.rest.summary(job_id)["watermark"] > reached + 3_000, "event time", step=0.2)
    conf = {
        "job": orders.name, "target": orders.savepoints, "scratch_root": f"{orders.root}-verify", "span_seconds": 1,
        "environment": {"OUTPUT": other}, "live": f"kafka://{orders.bootstrap}/{orders.sink}",
        "scratch": f"kafka://{orders.bootstrap}/{other}",
    }  # fmt: skip

    def verified():
        run = stage.run("savepoint_verify", job_file=str(path), **conf)
        assert airflow.result("savepoint_verify", run, "compare")["compared"] >= 1

    verified()
    wrong = orders.write("wrong", stops=None, step='with_columns(total=pl.col("total") + 1)')
    run = stage.run("savepoint_verify", "failed", job_file=str(wrong), **conf)
    said = airflow.log("savepoint_verify", run, "compare")
    assert re.search(r"\d+ rows in both, but with different content", said)
    assert re.search(r"\d+ rows of the scratch job are not among the job's", said)
    verified()
    assert [job["state"] for job in stage.jobs(f"{orders.name}-verify")] == ["CANCELED"] * 3
    assert stage.rest.job(job_id)["state"] == "RUNNING"


@pytest.mark.nightly
def test_state_is_cut_anew_and_gone_on_with(stage, orders):
    _, job_id = stage.submitted(orders.write())
    run = stage.run("job_stop", job=orders.name, target=orders.savepoints)
    stopped = stage.airflow.result("job_stop", run, "stop")["location"]
    run = stage.run("state_repartition", snapshot=stopped, target=orders.savepoints, key_groups=32)
    location = stage.airflow.result("state_repartition", run, "repartition")["location"]
    assert location in plain(list_savepoints(orders.savepoints))
    _, again = stage.submitted(orders.write("cut", environment="key_groups=32"), from_uri=location)
    assert again != job_id
    stage.exact(orders, again)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dag", "spark"), [("job_rescale", {}), (ON_SPARK, {"master": "local[1]", "spark_above": 0})], ids=["here", "spark"]
)
def test_state_that_is_rewritten_while_its_job_runs(stage, orders, dag, spark):
    _, job_id = stage.submitted(orders.write())
    path = orders.write("cut", environment="key_groups=32")
    moved = {"rewrite_to": orders.savepoints, "checkpoints": f"{orders.root}/{orders.name}", "job_file": str(path)}
    run = stage.run(dag, job=orders.name, key_groups=32, **moved, **spark)
    again = stage.airflow.result(dag, run, "submit")["job_id"]
    assert stage.rest.job(job_id)["state"] == "CANCELED"
    assert stage.airflow.task(dag, run, "rescale")["state"] == "skipped"
    assert ("Spark" in stage.airflow.log(dag, run, "repartition")) == bool(spark)
    stage.exact(orders, again)


@pytest.mark.nightly
def test_a_job_begins_with_its_history(stage, orders):
    """What came before the backfill is staged by it and published by the start, what came since is read live."""
    wait_until(lambda: orders.feed.sent > 1_000, "orders", step=0.2)
    run = stage.run("job_backfill", job_file=str(orders.write()), target=orders.savepoints, parts=2)
    location = stage.airflow.result("job_backfill", run, "backfill")["location"]
    assert plain(list_savepoints(orders.savepoints)) == [location]
    assert sum(output.rows for output in open_snapshot(location).manifest.pending) > 0
    stage.exact(orders, stage.airflow.result("job_backfill", run, "submit")["job_id"])


@pytest.mark.nightly
def test_a_dag_runs_when_something_has_happened_to_a_job(stage, tmp_path):
    """Event time has passed a multiple of 20 s, a savepoint is complete, the job has failed: each starts a run."""
    bad = tmp_path / "bad"
    path = write_job(tmp_path, "watched")
    text = path.read_text().replace("ps.Environment(", "ps.Environment(restart=ps.RestartStrategy(kind='none'), ")
    step = f"orders.filter(lambda row: not __import__('os').path.exists({str(bad)!r}) or 1 / 0)"
    job_id = stage.submitted(write_job(tmp_path, "watched", text=text.replace("(orders.key_by", f"({step}.key_by")))[1]
    dag = "on_job_events"

    def told(kind):
        """The first payload of that kind in a run that has succeeded."""
        runs = stage.airflow.api("GET", f"/api/v2/dags/{dag}/dagRuns?limit=100&state=success")["dag_runs"]
        found = [event for run in runs for event in stage.airflow.result(dag, run["dag_run_id"], "told")]
        return next((event for event in found if event["kind"] == kind and event["job_id"] == job_id), None)

    def wait_told(kind):
        return wait_until(lambda: told(kind), lambda: f"{kind}\n{stage.airflow.diagnosis()}", seconds=LIMIT_S, step=0.5)

    window = wait_told("window")
    assert window["window_end"] % 20_000 == 0
    assert window["window_end"] > window["after"]
    location = JobHandle(stage.rest, job_id, "watched").savepoint()
    assert wait_told("savepoint")["location"] == location
    assert told("failed") is None
    bad.touch()
    failed = wait_told("failed")
    assert "division by zero" in failed["cause"]
    assert stage.rest.job(job_id)["end-time"] == failed["at_ms"]


@pytest.mark.nightly
def test_a_dag_waits_for_a_job(stage, orders):
    """For event time that the last orders bring, and until no order is unread."""
    _, job_id = stage.submitted(orders.write(stops=None))
    end = datetime.fromtimestamp((START_MS + orders.orders.events * STEP_MS) / 1000 - 60, UTC)
    run = stage.airflow.trigger("wait_for_job", job=orders.name, watermark=end.isoformat())
    stage.airflow.wait_task("wait_for_job", run, "event_time", "deferred")
    assert stage.rest.summary(job_id)["watermark"] < end.timestamp() * 1000
    orders.judged()
    stage.airflow.wait_run("wait_for_job", run)
    assert stage.airflow.result("wait_for_job", run, "caught_up") == {"job_id": job_id, "lag": 0}
    assert stage.airflow.result("wait_for_job", run, "event_time")["watermark"] >= end.timestamp() * 1000
    assert stage.airflow.result("wait_for_job", run, "checkpoint")["job_id"] == job_id


def test_bad_params_are_refused_before_anything_runs(stage):
    body = {"logical_date": None, "conf": {"job_file": "x", "parallelism": 0}}
    status, answer = stage.airflow.api("POST", "/api/v2/dags/job_submit/dagRuns", body, wanted=False)
    assert status == 400
    assert "parallelism" in str(answer)
