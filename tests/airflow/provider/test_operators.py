"""Operators against a real cluster: what they make of a job, and that whoever goes on with a task makes it no twice."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from airflow.listeners.listener import get_listener_manager
from airflow.models.trigger import Trigger
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from tests.airflow.job_file import write_job
from tests.airflow.provider.stand_in import Instance, deferral, finish, fired, run
from tests.support.waiting import DEADLINE_S, wait_until

from penstock.client.savepoints import list_savepoints
from penstock_airflow.links import LINK_KEY
from penstock_airflow.operators.job import CancelJobOperator, RescaleJobOperator, StopJobOperator
from penstock_airflow.operators.savepoint import TriggerSavepointOperator
from penstock_airflow.operators.submit import SubmitJobOperator

pytestmark = pytest.mark.timeout(120)
FAST = {"poll_seconds": 0.1, "timeout_seconds": 60}


def submit(path, **more):
    return SubmitJobOperator(task_id="submit", job_file=str(path), **FAST, **more)


def jobs(client, name):
    return [job for job in client.jobs() if job["name"] == name]


def test_submitted_is_running_with_a_checkpoint(client, tmp_path, name):
    instance = Instance(name)
    done = run(submit(write_job(tmp_path, name), parallelism="2", options={"settings": {"parallelism": 1}}), instance)
    assert done == {"job_id": jobs(client, name)[0]["jid"], "name": name, "state": "RUNNING"}
    assert client.checkpoints(done["job_id"])["counts"]["completed"] > 0
    assert {v["parallelism"] for v in client.job(done["job_id"])["vertices"]} == {2}
    assert instance.pushed[LINK_KEY].endswith(f"/ui/#/jobs/{done['job_id']}")


def test_a_bounded_job_that_has_finished_counts(client, tmp_path, name):
    path = write_job(tmp_path, name, rows=500, rate=None, interval="30s")
    # its last checkpoint, the first one, is complete a moment before it has finished
    assert run(submit(path), Instance(name))["state"] in {"RUNNING", "FINISHED"}


def test_in_a_worker_without_deferring(client, tmp_path, name):
    task = submit(write_job(tmp_path, name), deferrable=False)
    assert task.execute(Instance(name).context())["state"] == "RUNNING"


def test_a_worker_that_died_after_the_submit_is_followed_by_one_that_finds_the_job(client, tmp_path, name, monkeypatch):
    path, instance = write_job(tmp_path, name), Instance(name)
    died = submit(path)
    real = died._submit

    def submit_and_die(token):
        real(token)
        raise KeyboardInterrupt

    monkeypatch.setattr(died, "_submit", submit_and_die)
    with pytest.raises(KeyboardInterrupt):
        died.execute(instance.context())
    assert "job_id" not in instance.stored["penstock"]
    first = jobs(client, name)[0]["jid"]
    assert run(submit(path), instance)["job_id"] == first
    assert len(jobs(client, name)) == 1


def test_cleared_and_run_twice_there_is_one_job(client, tmp_path, name, capsys):
    path, instance = write_job(tmp_path, name), Instance(name)
    deferral(submit(path), instance)
    first = run(submit(path), instance)["job_id"]
    assert run(submit(path), instance)["job_id"] == first
    assert "runs already" not in capsys.readouterr().out
    assert run(submit(path), Instance(name, run_id="another"))["job_id"] == first
    assert f"job '{name}' runs already" in capsys.readouterr().out
    assert len(jobs(client, name)) == 1


def test_cleared_after_the_job_was_cancelled_it_starts_again(client, tmp_path, name):
    path, instance = write_job(tmp_path, name), Instance(name)
    first = run(submit(path), instance)["job_id"]
    run(CancelJobOperator(task_id="cancel", job=name, **FAST), Instance(f"cancel-{name}"))
    second = run(submit(path), instance)["job_id"]
    assert second != first
    assert [job["state"] for job in jobs(client, name)] == ["RUNNING", "CANCELED"]


@pytest.mark.parametrize("wish", ["cancel", pytest.param("keep", marks=pytest.mark.nightly)])
def test_a_user_ends_the_task_while_it_submits(client, tmp_path, name, wish):
    """The command has sent the job and does not come to its end: nobody has been told the job's id."""
    text = write_job(tmp_path, name).read_text() + "\n__import__('time').sleep(100)\n"
    task, errors = submit(write_job(tmp_path, name, text=text), on_kill=wish), []

    def work():
        try:
            task.execute(Instance(name).context())
        except AirflowException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: jobs(client, name), "the job", step=0.1)
    task.on_kill()
    worker.join(DEADLINE_S)
    assert len(errors) == 1
    job_id = jobs(client, name)[0]["jid"]
    if wish == "cancel":
        assert client.job_after(job_id, 20_000)["state"] == "CANCELED"
    else:
        assert client.job_after(job_id, 1_000)["state"] in ("INITIALIZING", "CREATED", "RUNNING")


@pytest.mark.parametrize("wish", ["cancel", "keep"])
def test_a_user_ends_the_task_while_it_waits(client, tmp_path, name, wish):
    deferred = deferral(submit(write_job(tmp_path, name), on_kill=wish), Instance(name))
    asyncio.run(deferred.trigger.on_kill())
    job_id = jobs(client, name)[0]["jid"]
    if wish == "cancel":
        assert client.job_after(job_id, 20_000)["state"] == "CANCELED"
    else:
        assert fired(deferred)["value"]["state"] == "RUNNING"


@pytest.mark.parametrize("wish", ["cancel", pytest.param("keep", marks=pytest.mark.nightly)])
def test_a_user_ends_the_task_before_a_triggerer_has_it(client, tmp_path, name, wish):
    """The API server tells its listeners, of which one is ours; it makes nothing of a task without a trigger."""
    deferred = deferral(submit(write_job(tmp_path, name), on_kill=wish), Instance(name))
    told = get_listener_manager().hook
    told.on_task_instance_failed(previous_state=None, task_instance=SimpleNamespace(), error="by itself")
    ended = SimpleNamespace(trigger=Trigger.from_object(deferred.trigger))
    told.on_task_instance_success(previous_state=None, task_instance=ended)
    told.on_task_instance_failed(previous_state=None, task_instance=ended, error="the state was set")
    job_id = jobs(client, name)[0]["jid"]
    if wish == "cancel":
        assert client.job_after(job_id, 20_000)["state"] == "CANCELED"
    else:
        assert fired(deferred)["value"]["state"] == "RUNNING"


def test_a_job_file_that_is_wrong_is_not_tried_again(client, tmp_path, name):
    path = write_job(tmp_path, name, text="import penstock as ps\nps.Environment(parallelism=0).execute('x')\n")
    with pytest.raises(AirflowFailException, match=rf"{name}\.py:2"):
        submit(path).execute(Instance(name).context())
    with pytest.raises(AirflowFailException, match="there is no job file"):
        submit(tmp_path / "none.py").execute(Instance(name).context())


def test_a_job_that_fails_is_told_with_its_cause(client, tmp_path, name):
    text = write_job(tmp_path, name).read_text()
    text = text.replace(
        "(orders.key_by", "def bad(row: dict) -> dict:\n    raise ValueError('no such order')\n\n(orders.key_by"
    )
    text = text.replace("ps.Environment(", "ps.Environment(restart=ps.RestartStrategy(kind='none'), ")
    text = text.replace("orders.key_by(", "orders.filter(lambda row: 1 / 0 > 1).key_by(")
    path = write_job(tmp_path, name, text=text)
    instance = Instance(name)
    with pytest.raises(AirflowFailException, match=r"is FAILED: .*division by zero"):
        run(submit(path), instance)
    assert instance.stored["penstock"]["ended"]


def test_a_savepoint_is_taken_once_whoever_waits_for_it(client, tmp_path, name, running):
    target = tmp_path / "savepoints"
    instance = Instance(name)

    def task():
        return TriggerSavepointOperator(task_id="savepoint", job=name, target=str(target), **FAST)

    deferral(task(), instance)  # a worker that died after it had asked
    first = deferral(task(), instance)
    assert fired(first)["value"] == fired(first)["value"]  # a triggerer, and the one after it
    done = finish(task(), instance, first)
    assert [s.uri for s in list_savepoints(str(target))] == [f"file://{done['location'].removeprefix('file://')}"]
    again = run(task(), instance)  # cleared after its success: another one
    assert again["location"] != done["location"]
    assert len(list_savepoints(str(target))) == 2


def test_a_request_the_cluster_has_forgotten_is_made_again(client, tmp_path, name, running):
    task = TriggerSavepointOperator(task_id="savepoint", job=name, target=str(tmp_path / "s"), **FAST)
    instance = Instance(name)
    deferral(task, instance)
    with pytest.raises(TaskDeferred) as again:
        task.execute_complete(instance.context(), {"kind": "lost", "value": {}, "text": "no request"})
    assert finish(task, instance, again.value)["location"]
    assert len(list_savepoints(str(tmp_path / "s"))) == 1


def test_stopped_and_submitted_from_where_it_stopped(client, tmp_path, name, running):
    target = str(tmp_path / "stops")
    done = run(
        StopJobOperator(task_id="stop", job=name, target=target, native="true", **FAST), Instance(f"stop-{name}")
    )
    assert client.job(running)["state"] == "FINISHED"
    path = tmp_path / f"{name}.py"
    instance = Instance(f"again-{name}")
    second = run(submit(path, from_uri=done["location"]), instance)
    assert second["state"] == "RUNNING"
    assert client.checkpoints(second["job_id"])["latest"]["restored"] is not None


def test_cancelled_twice_is_cancelled(client, name, running):
    task = CancelJobOperator(task_id="cancel", job=name, **FAST)
    assert run(task, Instance(name))["state"] == "CANCELED"
    assert run(task, Instance(name))["job_id"] == running


def test_rescaled_and_refused(client, name, running):
    task = RescaleJobOperator(task_id="rescale", job=name, parallelism="2", **FAST)
    assert run(task, Instance(name)) == {"job_id": running}
    assert {v["parallelism"] for v in client.job(running)["vertices"]} == {2}
    with pytest.raises(AirflowException, match="slots"):
        run(RescaleJobOperator(task_id="rescale", job=name, parallelism=50, **FAST), Instance(f"more-{name}"))
    assert client.job(running)["state"] == "RUNNING"


def test_a_timeout_says_that_it_goes_on(client, tmp_path, name):
    path, instance = write_job(tmp_path, name, interval="1h"), Instance(name)
    task = SubmitJobOperator(task_id="submit", job_file=str(path), poll_seconds=0.1, timeout_seconds=0.5)
    with pytest.raises(AirflowException, match=r"the request continues"):
        run(task, instance)
    assert not instance.stored["penstock"]["ended"]
    assert jobs(client, name)[0]["state"] in ("INITIALIZING", "CREATED", "RUNNING")


def test_a_job_that_is_canceled_while_the_task_waits_does_not_start_again(client, tmp_path, name):
    deferred = deferral(submit(write_job(tmp_path, name, interval="1h")), Instance(name))
    client.cancel(jobs(client, name)[0]["jid"])
    answer = fired(deferred)
    assert (answer["kind"], answer["final"]) == ("failed", True)
    assert "is CANCELED" in answer["text"]


def test_a_task_that_is_cleared_while_its_job_is_canceled_starts_it_again(client, tmp_path, name):
    path, instance = write_job(tmp_path, name), Instance(name)
    deferral(submit(path), instance)
    first = jobs(client, name)[0]["jid"]
    client.cancel(first)
    assert run(submit(path), instance)["job_id"] != first
