"""One real Airflow, one cluster, Kafka and S3, as the tests of the real Airflow share them."""

import contextlib
import secrets
import shutil
import urllib.request
from types import SimpleNamespace

import pytest
from tests.airflow import week
from tests.airflow.conftest import ROOT
from tests.airflow.database import migrated
from tests.airflow.driver import Airflow
from tests.airflow.held import shared_airflow, shared_cluster
from tests.support.jobs import end_jobs
from tests.support.waiting import wait_until

from penstock.client.handle import TERMINAL
from penstock.client.local_cluster import LocalClusterConfig
from penstock.core.errors import NotFoundError
from penstock_lab.servers.process import free_port

DAGS = tuple(sorted(path.stem for path in (ROOT / "dags").glob("*.py")))
#: DAGs of a user: one runs when something has happened to the job `watched`, the others wait for a job.
OF_A_USER = """
from airflow.sdk import DAG, Asset, AssetWatcher, task

from penstock_airflow.sensors.job import CheckpointSensor, JobStatusSensor, LagSensor, WatermarkSensor
from penstock_airflow.triggers.events import JobEventTrigger

kinds = ["savepoint", "failed", "window"]
trigger = JobEventTrigger(job="watched", events=kinds, window_seconds=20, poll_seconds=1.0)
watcher = AssetWatcher(name="penstock", trigger=trigger)
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

with DAG("wait_by_connection", schedule=None, params={"job": "", "connection": ""}):
    JobStatusSensor(task_id="runs", job="{{ params.job }}", penstock_conn_id="{{ params.connection }}")
"""
#: `job_rescale` with the connection `with_spark`, whose interpreter has PySpark.
ON_SPARK = "rescale_on_spark"
OWN = ("on_job_events", "wait_for_job", "wait_by_connection", week.DAG, ON_SPARK)
#: Point -> what it does; each is disarmed until a test arms it, and acts once.
POINTS = {"airflow.after_submit": "kill", "task.before_ack": "hold"}


class Stage:
    """What a test does with them; jobs have names of their own."""

    def __init__(self, airflow, cluster, servers, evidence):
        self.airflow, self.cluster, self.servers, self.evidence = airflow, cluster, servers, evidence
        self.rest = cluster.client()

    def arm(self, point):
        (self.evidence / f"{point}.fired").unlink()

    def wait_hit(self, point):
        wait_until((self.evidence / f"{point}.hit").exists, point, step=0.1)

    def jobs(self, name):
        return [job for job in self.rest.jobs() if job["name"] == name]

    def checkpointed(self, job_id):
        """Whether the job has a checkpoint; asks for one if not."""
        if self.rest.summary(job_id)["checkpoints-completed"]:
            return True
        place = f"{self.rest.url}/v1/jobs/{job_id}/checkpoints"
        with urllib.request.urlopen(urllib.request.Request(place, data=b"{}", method="POST"), timeout=60):
            return False

    def end_all(self):
        end_jobs(self.rest)

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
        wait_until(
            lambda: self.rest.job(job_id)["state"] in TERMINAL, lambda: f"the end of {self.rest.job(job_id)}", step=0.2
        )
        assert self.rest.job(job_id)["state"] == "FINISHED"
        found = judged()
        assert found.exact, found

    def submitted(self, path, *, again=False, **conf):
        """A run of job_submit that has succeeded, if told so at a second try: its id, and the job's."""
        run = self.airflow.trigger("job_submit", job_file=str(path), **conf)
        self.airflow.wait_run("job_submit", run, again=again)
        return run, self.airflow.result("job_submit", run, "submit")["job_id"]


def rescale_on_spark():
    """Return the text of `job_rescale` for a connection with PySpark."""
    text = (ROOT / "dags" / "job_rescale.py").read_text()
    named = text.replace('dag_id="job_rescale"', f'dag_id="{ON_SPARK}"')
    connected = named.replace("default_args={", 'default_args={"penstock_conn_id": "with_spark", ')
    assert text != named != connected
    return connected


@contextlib.contextmanager
def opened(folder, kafka_server, minio_server):
    """Start all of it in a folder."""
    servers = SimpleNamespace(kafka=kafka_server, minio=minio_server, bucket=f"airflow-{secrets.token_hex(3)}")
    minio_server.make_bucket(servers.bucket)
    dags = folder / "dags"
    shutil.copytree(ROOT / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    (dags / "of_a_user.py").write_text(OF_A_USER)
    (dags / "savepoint_week.py").write_text(week.dag_text(servers.bucket))
    (dags / f"{ON_SPARK}.py").write_text(rescale_on_spark())
    migrated(folder / "home")
    evidence = folder / "evidence"
    evidence.mkdir()
    for point in POINTS:
        (evidence / f"{point}.fired").touch()
    environment = {
        "PENSTOCK_FAILPOINTS": ";".join(f"{point}={action}" for point, action in POINTS.items()),
        "PENSTOCK_FAILPOINT_DIR": str(evidence),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PENSTOCK_S3_ENDPOINT": minio_server.url,
        "PENSTOCK_S3_ACCESS_KEY": minio_server.access_key,
        "PENSTOCK_S3_SECRET_KEY": minio_server.secret_key,
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        # the files do not change: parsing them every ten seconds would take a quarter of the processor time
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    }
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=5, directory=folder / "cluster", environment=environment
    )
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(shared_cluster(config))
        host, _, port = cluster.rest_url.removeprefix("http://").rpartition(":")
        python = ROOT / ".venv" / "bin" / "python"
        environment["AIRFLOW_CONN_WITH_SPARK"] = f"penstock://{host}:{port}?python={python}"
        airflow = stack.enter_context(
            shared_airflow(Airflow(folder / "home", free_port(), cluster.rest_url, environment))
        )
        airflow.wait_dags([*DAGS, *OWN])
        with pytest.MonkeyPatch.context() as patch:  # the tests look at savepoints themselves
            for variable in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"):
                patch.setenv(f"PENSTOCK_S3_{variable}", environment[f"PENSTOCK_S3_{variable}"])
            yield Stage(airflow, cluster, servers, evidence)
