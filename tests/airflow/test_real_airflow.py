"""The DAGs of the repository in a real Airflow (API server, scheduler, triggerer, dag-processor) and a real cluster."""

import os
import re
import secrets
import shutil
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from tests.airflow.conftest import ROOT
from tests.airflow.driver import Airflow, Reader
from tests.airflow.job_file import write_job
from tests.airflow.orders_job import STEP_MS, fed
from tests.cluster.orders import START_MS
from tests.cluster.proc_tree import alive, wait_until
from tests.cluster.stage import cli
from tests.ui.browser import chromium

from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.savepoints import list_savepoints
from penstock.core.errors import NotFoundError
from penstock.snapshots.opening import open_snapshot
from penstock.testing.servers.process import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DAGS = tuple(sorted(path.stem for path in (ROOT / "dags").glob("*.py")))
#: DAGs of a user: one runs when something has happened to the job `watched`, the other waits for a job.
OF_A_USER = """
from airflow.sdk import DAG, Asset, AssetWatcher, task

from penstock_airflow.sensors.job import CheckpointSensor, JobStatusSensor, LagSensor, WatermarkSensor
from penstock_airflow.triggers.events import JobEventTrigger

watcher = AssetWatcher(name="penstock", trigger=JobEventTrigger(job="watched", poll_seconds=1.0))
with DAG("on_job_events", schedule=[Asset("watched_job", watchers=[watcher])], catchup=False):

    @task
    def told(triggering_asset_events=None):
        return [event.extra["payload"] for events in triggering_asset_events.values() for event in events]

    told()

with DAG("wait_for_job", schedule=None, params={"job": "", "watermark": ""}):
    runs = JobStatusSensor(task_id="runs", job="{{ params.job }}")
    event_time = WatermarkSensor(task_id="event_time", job="{{ params.job }}", watermark="{{ params.watermark }}")
    caught_up = LagSensor(task_id="caught_up", job="{{ params.job }}", max_records=0)
    checkpoint = CheckpointSensor(task_id="checkpoint", job="{{ params.job }}")
    runs >> [event_time, caught_up] >> checkpoint
"""
OWN = ("on_job_events", "wait_for_job")
#: Point -> what it does; each is disarmed until a test arms it, and acts once.
POINTS = {"airflow.after_submit": "kill", "task.before_ack": "hold"}
TERMINAL = ("FINISHED", "CANCELED", "FAILED")


class Stage:
    """One Airflow, one cluster, Kafka and S3 for all tests of this module; jobs have names of their own."""

    def __init__(self, airflow, cluster, servers, evidence):
        self.airflow, self.cluster, self.servers, self.evidence = airflow, cluster, servers, evidence
        self.rest = cluster.client()

    def arm(self, point):
        (self.evidence / f"{point}.fired").unlink()

    def wait_hit(self, point):
        wait_until((self.evidence / f"{point}.hit").exists, 60, point, 0.1)

    def jobs(self, name):
        return [job for job in self.rest.jobs() if job["name"] == name]

    def end_all(self):
        for job in self.rest.jobs():
            if job["state"] not in TERMINAL:
                self.rest.cancel(job["jid"])
                self.rest.job_after(job["jid"], 20_000)

    def run(self, dag, state="success", **conf):
        """A run that has ended like that; return its id."""
        run = self.airflow.trigger(dag, **conf)
        self.airflow.wait_run(dag, run, state)
        return run

    def tried(self, job_id):
        """What the new version on trial has done by now."""
        try:
            view = self.rest.newest_upgrade(job_id)
        except NotFoundError:
            return {"checkpoints": 0, "rows": 0}
        return {"checkpoints": view["checkpoints"]["completed"], "rows": view["held"]["rows"]}

    def exact(self, orders, job_id):
        """Feed the rest: the job comes to its end, and each window is in the output once, and right."""
        judged = orders.judged()
        wait_until(lambda: self.rest.job(job_id)["state"] in TERMINAL, 90, "the end of the job", 0.2)
        assert self.rest.job(job_id)["state"] == "FINISHED"
        found = judged()
        assert found.exact, found

    def submitted(self, path, **conf):
        """A run of job_submit that has succeeded: its id, and the job's."""
        run = self.airflow.trigger("job_submit", job_file=str(path), **conf)
        self.airflow.wait_run("job_submit", run)
        return run, self.airflow.result("job_submit", run, "submit")["job_id"]


@pytest.fixture(scope="module")
def stage(airflow_python, kafka_server, minio_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("airflow")
    servers = SimpleNamespace(kafka=kafka_server, minio=minio_server, bucket=f"airflow-{secrets.token_hex(3)}")
    minio_server.make_bucket(servers.bucket)
    dags = folder / "dags"
    shutil.copytree(ROOT / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    (dags / "of_a_user.py").write_text(OF_A_USER)
    evidence = folder / "evidence"
    evidence.mkdir()
    for point in POINTS:
        (evidence / f"{point}.fired").touch()
    environment = {
        "PENSTOCK_FAILPOINTS": ";".join(f"{point}={action}" for point, action in POINTS.items()),
        "PENSTOCK_FAILPOINT_DIR": str(evidence),
        "PENSTOCK_S3_ENDPOINT": minio_server.url,
        "PENSTOCK_S3_ACCESS_KEY": minio_server.access_key,
        "PENSTOCK_S3_SECRET_KEY": minio_server.secret_key,
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
    }
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=5, directory=folder / "cluster", environment=environment
    )
    with (
        LocalCluster(config) as cluster,
        Airflow(folder / "home", free_port(), cluster.rest_url, environment) as airflow,
    ):
        airflow.wait_dags([*DAGS, *OWN])
        with pytest.MonkeyPatch.context() as patch:  # the tests look at savepoints themselves
            for variable in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"):
                patch.setenv(f"PENSTOCK_S3_{variable}", environment[f"PENSTOCK_S3_{variable}"])
            yield Stage(airflow, cluster, servers, evidence)


@pytest.fixture
def name(stage):
    yield f"job-{secrets.token_hex(3)}"
    stage.end_all()


@pytest.fixture
def orders(stage, tmp_path):
    """Orders that come in, and the job that counts them."""
    with fed(stage.servers, tmp_path) as found:
        yield found
        stage.end_all()


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
    wait_until(lambda: stage.tried(job_id)["checkpoints"] >= 5, 150, airflow.diagnosis, 0.2)
    assert stage.tried(job_id)["rows"] > 0
    bad.touch()
    airflow.wait_run("job_upgrade", run, "failed")
    assert airflow.task("job_upgrade", run, "check")["state"] == "success"
    assert airflow.task("job_upgrade", run, "upgrade")["try_number"] == 1
    said = [line for line in airflow.log("job_upgrade", run, "upgrade").splitlines() if "upgrade failed: " in line]
    assert any("ZeroDivisionError" in line and "the old version runs again" in line for line in said), said
    assert [vertex["name"] for vertex in stage.rest.job(job_id)["vertices"]] == before
    stage.exact(orders, job_id)


def test_the_newest_savepoint_is_verified(stage, orders):
    """A scratch job counts as the job does; one that writes other rows is told; neither is left running."""
    airflow, other = stage.airflow, f"{orders.name}-verify"
    orders.more_topics(**{other: 2})
    path = orders.write(stops=None)
    _, job_id = stage.submitted(path)
    stage.run("savepoint_schedule", job=orders.name, target=orders.savepoints)
    reached = stage.rest.summary(job_id)["watermark"]
    wait_until(lambda: stage.rest.summary(job_id)["watermark"] > reached + 3_000, 60, "event time", 0.2)
    conf = {
        "job": orders.name, "target": orders.savepoints, "scratch_root": f"{orders.root}-verify", "span_seconds": 1,
        "environment": {"OUTPUT": other}, "live": f"kafka://{orders.bootstrap}/{orders.sink}",
        "scratch": f"kafka://{orders.bootstrap}/{other}",
    }  # fmt: skip
    for _ in range(2):
        run = stage.run("savepoint_verify", job_file=str(path), **conf)
        assert airflow.result("savepoint_verify", run, "compare")["compared"] >= 1
    wrong = orders.write("wrong", stops=None, step='filter(pl.col("user_id") > 3)')
    run = stage.run("savepoint_verify", "failed", job_file=str(wrong), **conf)
    assert re.search(r": \d+ rows, \d+ of the scratch", airflow.log("savepoint_verify", run, "compare"))
    assert [job["state"] for job in stage.jobs(f"{orders.name}-verify")] == ["CANCELED"] * 3
    assert stage.rest.job(job_id)["state"] == "RUNNING"


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


def test_a_job_begins_with_its_history(stage, orders):
    """What came before the backfill is staged by it and published by the start, what came since is read live."""
    wait_until(lambda: orders.feed.sent > 1_000, 60, "orders", 0.2)
    run = stage.run("job_backfill", job_file=str(orders.write()), target=orders.savepoints, parts=2)
    location = stage.airflow.result("job_backfill", run, "backfill")["location"]
    assert plain(list_savepoints(orders.savepoints)) == [location]
    assert sum(output.rows for output in open_snapshot(location).manifest.pending) > 0
    stage.exact(orders, stage.airflow.result("job_backfill", run, "submit")["job_id"])


def test_a_dag_runs_when_something_has_happened_to_a_job(stage, tmp_path):
    job_id = stage.submitted(write_job(tmp_path, "watched"))[1]
    location = JobHandle(stage.rest, job_id, "watched").savepoint()
    runs = lambda: stage.airflow.api("GET", "/api/v2/dags/on_job_events/dagRuns?limit=1")["dag_runs"]
    run = wait_until(runs, 90, stage.airflow.diagnosis, 0.5)[0]["dag_run_id"]
    stage.airflow.wait_run("on_job_events", run)
    told = stage.airflow.result("on_job_events", run, "told")[0]
    assert (told["kind"], told["job_id"], told["location"]) == ("savepoint", job_id, location)
    stage.end_all()


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


def test_a_worker_is_killed_after_the_submit(stage, name, tmp_path):
    stage.arm("airflow.after_submit")
    run, job_id = stage.submitted(write_job(tmp_path, name))
    assert (stage.evidence / "airflow.after_submit.hit").read_text().count("\n") == 1
    assert stage.airflow.task("job_submit", run, "submit")["try_number"] >= 2
    assert [job["jid"] for job in stage.jobs(name)] == [job_id]


def test_cleared_and_run_twice(stage, name, tmp_path):
    path = write_job(tmp_path, name)
    run, job_id = stage.submitted(path)
    stage.airflow.clear("job_submit", run, "submit")
    stage.airflow.wait_run("job_submit", run)
    assert stage.airflow.result("job_submit", run, "submit")["job_id"] == job_id
    assert stage.submitted(path)[1] == job_id
    assert [job["jid"] for job in stage.jobs(name)] == [job_id]


@pytest.mark.parametrize("wish", ["cancel", "keep"])
def test_a_task_that_waits_is_marked_failed(stage, name, tmp_path, wish):
    path = write_job(tmp_path, name, interval="1h")  # it never has a first checkpoint
    run = stage.airflow.trigger("job_submit", job_file=str(path), on_kill=wish)
    stage.airflow.wait_task("job_submit", run, "submit", "deferred")
    # Airflow tells a trigger of it only when it runs
    stage.airflow.wait_trigger("job_submit", run, "no checkpoint is complete yet")
    stage.airflow.mark_failed("job_submit", run, "submit")
    stage.airflow.wait_run("job_submit", run, "failed")
    job_id = stage.jobs(name)[0]["jid"]
    if wish == "cancel":
        wait_until(lambda: stage.rest.job(job_id)["state"] == "CANCELED", 60, "a cancelled job", 0.2)
    else:
        # a task that has gone through the same triggerer since then: it has seen to the end of the first one
        follower = stage.airflow.trigger("job_submit", job_file=str(write_job(tmp_path, f"{name}-b", rows=1)))
        stage.airflow.wait_run("job_submit", follower)
        assert stage.rest.job(job_id)["state"] == "RUNNING"


def test_the_triggerer_dies_during_a_savepoint(stage, name, tmp_path):
    airflow = stage.airflow
    path = write_job(tmp_path, name, interval="1h")  # so that the first barrier is the savepoint's
    job_id = cli("run", path, "--cluster", stage.cluster.rest_url, "--detached", "--json", cwd=tmp_path).value["jobid"]
    wait_until(lambda: stage.rest.job(job_id)["status-counts"]["RUNNING"], 60, "a running job", 0.1)
    target = str(tmp_path / "savepoints")
    stage.arm("task.before_ack")
    run = airflow.trigger("savepoint_schedule", job=name, target=target)
    stage.wait_hit("task.before_ack")
    airflow.wait_task("savepoint_schedule", run, "savepoint", "deferred")
    died = airflow.pids()["triggerer"]
    airflow.kill("triggerer")
    wait_until(lambda: not alive(died), 30, "the end of the triggerer", 0.1)
    assert list_savepoints(target) == []
    (stage.evidence / "task.before_ack.release").touch()
    airflow.start()
    airflow.wait_run("savepoint_schedule", run)
    location = airflow.result("savepoint_schedule", run, "savepoint")["location"]
    assert [s.uri.removeprefix("file://") for s in list_savepoints(target)] == [location.removeprefix("file://")]
    assert airflow.task("savepoint_schedule", run, "savepoint")["try_number"] == 1


def test_every_dag_from_the_ui(stage, orders, tmp_path):
    airflow, path, other = stage.airflow, orders.write(stops=None), f"{orders.name}-verify"
    orders.more_topics(**{other: 2})
    with chromium() as browser:
        reader = Reader(browser, airflow, os.environ.get("PENSTOCK_PICTURES") or tmp_path)
        run = reader.run("job_submit", job_file=path, parallelism=1)
        job_id = airflow.result("job_submit", run, "submit")["job_id"]
        reader.run("job_rescale", job=orders.name, parallelism=2)
        assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {2}
        reader.run("savepoint_schedule", job=orders.name, target=orders.savepoints, keep=1)
        new = orders.write("v2", stops=None, step='with_columns(total=pl.col("total") + 0)')
        run = reader.run("job_upgrade", picture="airflow-form", job=orders.name, job_file=new, checkpoints=2)
        assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {1}
        link = reader.link("job_upgrade", run, "upgrade", picture="airflow-task")
        assert link == f"{stage.cluster.rest_url}/ui/#/jobs/{job_id}"
        reader.run(
            "savepoint_verify", job=orders.name, target=orders.savepoints, job_file=new, span_seconds=1,
            scratch_root=f"{orders.root}-verify", environment={"OUTPUT": other},
            live=f"kafka://{orders.bootstrap}/{orders.sink}", scratch=f"kafka://{orders.bootstrap}/{other}",
        )  # fmt: skip
        reader.look("savepoint_verify", picture="airflow-grid")
        run = reader.run("job_stop", job=orders.name, target=orders.savepoints)
        assert stage.rest.job(job_id)["state"] == "FINISHED"
        stopped = airflow.result("job_stop", run, "stop")["location"]
        reader.run("state_repartition", snapshot=stopped, target=orders.savepoints, key_groups=16)
    assert len(list_savepoints(orders.savepoints)) == 3
