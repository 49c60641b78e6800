"""What is killed, cleared or ended by a user in the real Airflow, and what has become of the jobs then."""

import os
import signal

import pytest
from tests.airflow.driver import LIMIT_S
from tests.airflow.job_file import write_job
from tests.cluster.proc_tree import alive, parent
from tests.cluster.stage import cli
from tests.support.waiting import wait_until

from penstock.client.savepoints import list_savepoints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_worker_is_killed_after_the_submit(stage, name, tmp_path):
    stage.arm("airflow.after_submit")
    run, job_id = stage.submitted(write_job(tmp_path, name), again=True)
    assert (stage.evidence / "airflow.after_submit.hit").read_text().count("\n") == 1
    assert stage.airflow.task("job_submit", run, "submit")["try_number"] >= 2
    assert [job["jid"] for job in stage.jobs(name)] == [job_id]


@pytest.mark.nightly
def test_a_worker_is_killed_during_a_backfill(stage, orders, tmp_path):
    """Its command ends with it; the next try is alone, and what the job writes from its savepoint on is exact."""
    path, began = orders.write(), tmp_path / "began"
    pause = f"""
began = Path({str(began)!r})
if "backfill" in Path("/proc/self/cmdline").read_text().split(chr(0)) and not began.exists():
    began.write_text(str(os.getpid()))
    __import__("time").sleep(500)
"""
    path.write_text(path.read_text().replace("\nenv = ", f"{pause}\nenv = ", 1))
    wait_until(lambda: orders.feed.sent > 1_000, "orders", step=0.2)
    run = stage.airflow.trigger("job_backfill", job_file=str(path), target=orders.savepoints, parts=2)
    command = int(
        wait_until(lambda: began.exists() and began.read_text(), stage.airflow.diagnosis, seconds=LIMIT_S, step=0.1)
    )
    os.kill(parent(command), signal.SIGKILL)
    wait_until(lambda: not alive(command), "the end of the command", step=0.1)
    stage.airflow.wait_run("job_backfill", run, again=True)
    assert stage.airflow.task("job_backfill", run, "backfill")["try_number"] >= 2
    location = stage.airflow.result("job_backfill", run, "backfill")["location"]
    assert [savepoint.uri for savepoint in list_savepoints(orders.savepoints)] == [location]
    stage.exact(orders, stage.airflow.result("job_backfill", run, "submit")["job_id"])


@pytest.mark.nightly
def test_cleared_and_run_twice(stage, name, tmp_path):
    path = write_job(tmp_path, name)
    run, job_id = stage.submitted(path)
    stage.airflow.clear("job_submit", run, "submit")
    stage.airflow.wait_run("job_submit", run, again=True)
    assert stage.airflow.result("job_submit", run, "submit")["job_id"] == job_id
    assert stage.submitted(path)[1] == job_id
    assert [job["jid"] for job in stage.jobs(name)] == [job_id]


@pytest.mark.parametrize("wish", ["cancel", pytest.param("keep", marks=pytest.mark.nightly)])
def test_a_task_that_waits_is_cleared(stage, name, tmp_path, wish):
    """Kept, the job is found again; cancelled as configured, another one takes its place. One runs."""
    path = write_job(tmp_path, name, interval="1h")  # its first checkpoint is the one that is asked for below
    run = stage.airflow.trigger("job_submit", job_file=str(path), on_kill=wish)
    stage.airflow.wait_task("job_submit", run, "submit", "deferred")
    stage.airflow.wait_trigger("job_submit", run, "without a complete checkpoint")
    (first,) = stage.jobs(name)
    stage.airflow.clear("job_submit", run, "submit")
    if wish == "cancel":
        wait_until(lambda: stage.rest.job(first["jid"])["state"] == "CANCELED", "the first job's end", step=0.2)
        waits = lambda: [job["jid"] for job in stage.jobs(name) if job["state"] == "RUNNING"]
        (job_id,) = wait_until(waits, lambda: f"another job\n{stage.airflow.diagnosis()}", seconds=LIMIT_S, step=0.2)
    else:
        stage.airflow.wait_trigger("job_submit", run, "without a complete checkpoint", attempt=2)
        job_id = first["jid"]
    wait_until(lambda: stage.checkpointed(job_id), "a checkpoint", step=0.5)
    stage.airflow.wait_run("job_submit", run, again=True)
    assert stage.airflow.task("job_submit", run, "submit")["try_number"] >= 2
    found = {job["jid"]: job["state"] for job in stage.jobs(name)}
    assert found.pop(stage.airflow.result("job_submit", run, "submit")["job_id"]) == "RUNNING"
    assert all(state == "CANCELED" for state in found.values())
    assert len(found) <= (1 if wish == "cancel" else 0)


@pytest.mark.parametrize("wish", ["cancel", "keep"])
@pytest.mark.nightly
def test_a_task_that_waits_is_marked_failed(stage, name, tmp_path, wish):
    path = write_job(tmp_path, name, interval="1h")  # it never has a first checkpoint
    run = stage.airflow.trigger("job_submit", job_file=str(path), on_kill=wish)
    stage.airflow.wait_task("job_submit", run, "submit", "deferred")
    # Airflow tells a trigger of it only when it runs
    stage.airflow.wait_trigger("job_submit", run, "without a complete checkpoint")
    stage.airflow.mark_failed("job_submit", run, "submit")
    stage.airflow.wait_run("job_submit", run, "failed")
    job_id = stage.jobs(name)[0]["jid"]
    if wish == "cancel":
        wait_until(lambda: stage.rest.job(job_id)["state"] == "CANCELED", "a cancelled job", step=0.2)
    else:
        # a task that has gone through the same triggerer since then: it has seen to the end of the first one
        follower = stage.airflow.trigger("job_submit", job_file=str(write_job(tmp_path, f"{name}-b", rows=1)))
        stage.airflow.wait_run("job_submit", follower)
        assert stage.rest.job(job_id)["state"] == "RUNNING"


def test_tasks_are_marked_failed_before_a_triggerer_has_taken_them(stage, name, tmp_path):
    """There is no triggerer at all: the API server, which the user asks, does what is configured."""
    airflow, runs = stage.airflow, {}
    airflow.kill("triggerer")
    try:
        for wish in ("keep", "cancel"):
            path = write_job(tmp_path, f"{name}-{wish}", interval="1h")  # it never has a first checkpoint
            runs[wish] = airflow.trigger("job_submit", job_file=str(path), on_kill=wish)
        for run in runs.values():
            airflow.wait_task("job_submit", run, "submit", "deferred")
            airflow.mark_failed("job_submit", run, "submit")
            airflow.wait_run("job_submit", run, "failed")
        kept, cancelled = (stage.jobs(f"{name}-{wish}")[0]["jid"] for wish in ("keep", "cancel"))
        wait_until(lambda: stage.rest.job(cancelled)["state"] == "CANCELED", airflow.diagnosis, step=0.2)
        assert stage.rest.job(kept)["state"] == "RUNNING"
    finally:
        airflow.start()


def test_the_triggerer_dies_during_a_savepoint(stage, name, tmp_path):
    airflow = stage.airflow
    path = write_job(tmp_path, name, interval="1h")  # so that the first barrier is the savepoint's
    job_id = cli("run", path, "--cluster", stage.cluster.rest_url, "--detached", "--json", cwd=tmp_path).value["jobid"]
    wait_until(lambda: stage.rest.job(job_id)["status-counts"]["RUNNING"], "a running job", step=0.1)
    target = str(tmp_path / "savepoints")
    stage.arm("task.before_ack")
    run = airflow.trigger("savepoint_schedule", job=name, target=target)
    stage.wait_hit("task.before_ack")
    airflow.wait_task("savepoint_schedule", run, "savepoint", "deferred")
    died = airflow.pids()["triggerer"]
    airflow.kill("triggerer")
    wait_until(lambda: not alive(died), "the end of the triggerer", step=0.1)
    assert list_savepoints(target) == []
    (stage.evidence / "task.before_ack.release").touch()
    airflow.start()
    airflow.wait_run("savepoint_schedule", run)
    location = airflow.result("savepoint_schedule", run, "savepoint")["location"]
    assert [s.uri.removeprefix("file://") for s in list_savepoints(target)] == [location.removeprefix("file://")]
    assert airflow.task("savepoint_schedule", run, "savepoint")["try_number"] == 1
