"""A refused request fails its task at once: no retry would help, and a cleared task starts from its parameters."""

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.airflow.job_file import write_job
from tests.airflow.provider.stand_in import Instance, run

from penstock_airflow.operators.job import CancelJobOperator, RescaleJobOperator, StopJobOperator
from penstock_airflow.operators.savepoint import TriggerSavepointOperator
from penstock_airflow.operators.submit import SubmitJobOperator
from penstock_airflow.operators.upgrade import CheckJobOperator

pytestmark = pytest.mark.timeout(120)
FAST = {"poll_seconds": 0.1, "timeout_seconds": 60}


MISTAKES = [
    (StopJobOperator, {"job": "none"}, "no job 'none'"),
    (CancelJobOperator, {"job": "none"}, "no job 'none'"),
    (CheckJobOperator, {"job": "none", "job_file": "job.py"}, "no job 'none'"),
    (RescaleJobOperator, {}, "neither parallelism nor vertices"),
    (RescaleJobOperator, {"vertices": {"totals": "two"}}, "give a whole number"),
    (RescaleJobOperator, {"vertices": {"other": 2}}, "no operator 'other'"),
    (TriggerSavepointOperator, {"target": "/proc/savepoints"}, "not writable"),
    (StopJobOperator, {"target": "/proc/savepoints"}, "not writable"),
]


def test_a_refusal_is_not_tried_again(client, name, running):
    for number, (kind, given, message) in enumerate(MISTAKES):
        task = kind(task_id="task", **{"job": name, **given})
        with pytest.raises(AirflowFailException, match=message):
            task.execute(Instance(f"{name}-{number}").context())
    assert client.job(running)["state"] == "RUNNING"


def test_a_job_without_its_savepoint_is_not_submitted_again(client, tmp_path, name):
    task = SubmitJobOperator(task_id="submit", job_file=str(write_job(tmp_path, name)), from_uri=str(tmp_path / "none"))
    with pytest.raises(AirflowFailException, match="there is no savepoint"):
        task.execute(Instance(name).context())


def test_a_cleared_task_finds_the_job_that_was_started_meanwhile(client, tmp_path, name, running):
    instance = Instance(f"stop-{name}")
    run(CancelJobOperator(task_id="cancel", job=name, **FAST), Instance(f"cancel-{name}"))
    with pytest.raises(AirflowException, match="CANCELED"):
        run(StopJobOperator(task_id="stop", job=name, **FAST), instance)
    submit = SubmitJobOperator(task_id="submit", job_file=str(tmp_path / f"{name}.py"), **FAST)
    again = run(submit, Instance(f"again-{name}"))["job_id"]
    assert run(StopJobOperator(task_id="stop", job=name, **FAST), instance)["job_id"] == again
