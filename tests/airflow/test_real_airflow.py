"""The DAGs of the repository in a real Airflow (API server, scheduler, triggerer, dag-processor) and a real cluster."""

import secrets
from urllib.parse import unquote

import pytest
from tests.airflow.driver import Airflow
from tests.airflow.job_file import write_job
from tests.cluster.proc_tree import alive, wait_until
from tests.cluster.stage import cli
from tests.ui.browser import chromium

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.savepoints import list_savepoints
from penstock.testing.servers.process import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DAGS = ("job_submit", "job_stop", "job_rescale", "savepoint_schedule")
#: Point -> what it does; each is disarmed until a test arms it, and acts once.
POINTS = {"airflow.after_submit": "kill", "task.before_ack": "hold"}
TERMINAL = ("FINISHED", "CANCELED", "FAILED")


class Stage:
    """One Airflow and one cluster for all tests of this module; jobs have names of their own."""

    def __init__(self, airflow, cluster, evidence):
        self.airflow, self.cluster, self.evidence = airflow, cluster, evidence
        self.rest = cluster.client()

    def arm(self, point):
        (self.evidence / f"{point}.fired").unlink()

    def wait_hit(self, point):
        wait_until((self.evidence / f"{point}.hit").exists, 60, point, 0.1)

    def jobs(self, name):
        return [job for job in self.rest.jobs() if job["name"] == name]

    def submitted(self, path, **conf):
        """A run of job_submit that has succeeded: its id, and the job's."""
        run = self.airflow.trigger("job_submit", job_file=str(path), **conf)
        self.airflow.wait_run("job_submit", run)
        return run, self.airflow.result("job_submit", run, "submit")["job_id"]


@pytest.fixture(scope="module")
def stage(airflow_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("airflow")
    evidence = folder / "evidence"
    evidence.mkdir()
    for point in POINTS:
        (evidence / f"{point}.fired").touch()
    environment = {
        "PENSTOCK_FAILPOINTS": ";".join(f"{point}={action}" for point, action in POINTS.items()),
        "PENSTOCK_FAILPOINT_DIR": str(evidence),
    }
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=5, directory=folder / "cluster", environment=environment
    )
    with (
        LocalCluster(config) as cluster,
        Airflow(folder / "home", free_port(), cluster.rest_url, environment) as airflow,
    ):
        airflow.wait_dags(DAGS)
        yield Stage(airflow, cluster, evidence)


@pytest.fixture
def name(stage):
    found = f"job-{secrets.token_hex(3)}"
    yield found
    for job in stage.jobs(found):
        if job["state"] not in TERMINAL:
            stage.rest.cancel(job["jid"])
            stage.rest.job_after(job["jid"], 20_000)


def test_submit_rescale_savepoint_stop(stage, name, tmp_path):
    airflow = stage.airflow
    run, job_id = stage.submitted(write_job(tmp_path, name))
    assert stage.rest.job(job_id)["state"] == "RUNNING"
    links = airflow.api("GET", f"/api/v2/dags/job_submit/dagRuns/{run}/taskInstances/submit/links")
    assert links["extra_links"] == {"Job": f"{stage.cluster.rest_url}/ui/#/jobs/{job_id}"}

    run = airflow.trigger("job_rescale", job=name, parallelism=2)
    airflow.wait_run("job_rescale", run)
    assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {2}

    target = str(tmp_path / "savepoints")
    conf = {"job": name, "target": target, "keep": 1, "keep_hours": 0, "alarm_hours": 1}
    for _ in range(2):
        run = airflow.trigger("savepoint_schedule", **conf)
        airflow.wait_run("savepoint_schedule", run)
    location = airflow.result("savepoint_schedule", run, "savepoint")["location"]
    assert [s.uri.removeprefix("file://") for s in list_savepoints(target)] == [location.removeprefix("file://")]
    asset = airflow.api("GET", "/api/v2/assets/events?order_by=-timestamp&limit=1")["asset_events"][0]
    assert asset["extra"] == {"job_id": job_id, "location": location}

    run = airflow.trigger("job_stop", job=name, target=target)
    airflow.wait_run("job_stop", run)
    assert stage.rest.job(job_id)["state"] == "FINISHED"
    assert len(list_savepoints(target)) == 2


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


class Reader:
    """A user in front of Airflow's own UI."""

    def __init__(self, page, airflow):
        self.page, self.airflow = page, airflow
        page.set_default_timeout(60_000)

    def sign_in(self):
        self.page.goto(f"{self.airflow.url}/")
        self.page.locator("input[name=username]").fill("admin")
        self.page.locator("input[name=password]").fill(self.airflow.password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: "/auth/login" not in url)

    def trigger(self, dag, **fields):
        """Fill the form of a DAG and start a run; return its id."""
        self.page.goto(f"{self.airflow.url}/dags/{dag}")
        self.page.get_by_test_id("trigger-dag-button").click()
        form = self.page.get_by_role("dialog")
        for field, value in fields.items():
            box = form.locator(f"input[name=element_{field}]")
            box.fill(str(value))
            box.blur()
        form.get_by_role("button", name="Trigger", exact=True).click()
        self.page.wait_for_url(f"**/dags/{dag}/runs/**")
        return unquote(self.page.url.partition("/runs/")[2].partition("/")[0].partition("?")[0])


def test_every_dag_from_the_ui(stage, name, tmp_path):
    airflow = stage.airflow
    target = tmp_path / "savepoints"
    with chromium() as browser:
        reader = Reader(browser.new_page(), airflow)
        reader.sign_in()
        run = reader.trigger("job_submit", job_file=write_job(tmp_path, name), parallelism=1)
        airflow.wait_run("job_submit", run)
        job_id = airflow.result("job_submit", run, "submit")["job_id"]
        airflow.wait_run("job_rescale", reader.trigger("job_rescale", job=name, parallelism=2))
        assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {2}
        airflow.wait_run("savepoint_schedule", reader.trigger("savepoint_schedule", job=name, target=target, keep=1))
        assert len(list_savepoints(str(target))) == 1
        airflow.wait_run("job_stop", reader.trigger("job_stop", job=name))
        assert stage.rest.job(job_id)["state"] == "FINISHED"
