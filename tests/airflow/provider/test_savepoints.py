"""Retention and alarm with real savepoints of a real job."""

import pytest
from airflow.sdk.exceptions import AirflowException
from tests.airflow.provider.stand_in import Instance, run

from penstock.client.handle import JobHandle
from penstock.client.savepoints import list_savepoints
from penstock.core.clock import ManualClock
from penstock_airflow.operators.job import CancelJobOperator
from penstock_airflow.operators.savepoint import (
    CheckSavepointAgeOperator,
    CleanSavepointsOperator,
    TriggerSavepointOperator,
)
from penstock_airflow.operators.submit import SubmitJobOperator

pytestmark = pytest.mark.timeout(180)
FAST = {"poll_seconds": 0.1, "timeout_seconds": 60}
HOUR_MS = 3_600_000


def plain(uri):
    return uri.removeprefix("file://")


@pytest.mark.nightly
def test_a_week_of_runs(client, tmp_path, name, running):
    """Four a day: after each run exactly the newest five are there, and the newest can be started from."""
    target = tmp_path / "week"
    taken = []
    for number in range(28):
        task = TriggerSavepointOperator(task_id="savepoint", job=name, target=str(target), **FAST)
        taken.append(plain(run(task, Instance("savepoint", run_id=f"{name}-{number}"))["location"]))
        clean = CleanSavepointsOperator(task_id="clean", target=str(target), keep="5", keep_hours="0")
        clean.clock = ManualClock(client.job(running)["now"] + HOUR_MS)
        result = clean.execute(Instance("clean").context())
        assert [plain(uri) for uri in result["kept"]] == taken[:-6:-1]
        assert len(result["removed"]) == (number >= 5)
        assert [plain(s.uri) for s in list_savepoints(str(target))] == taken[:-6:-1]
    run(CancelJobOperator(task_id="cancel", job=name, **FAST), Instance(f"cancel-{name}"))
    again = SubmitJobOperator(
        task_id="submit", job_file=str(tmp_path / f"{name}.py"), from_uri=taken[-1],
        options={"accept_duplicates": "true"}, **FAST,
    )  # fmt: skip
    assert run(again, Instance(f"again-{name}"))["state"] == "RUNNING"


def test_what_a_job_reads_from_stays(client, tmp_path, name, running):
    target = str(tmp_path / "kept")
    handle = JobHandle(client, running, name)
    handle.savepoint(target)
    stopped = handle.stop(target=target)
    task = SubmitJobOperator(
        task_id="submit", job_file=str(tmp_path / f"{name}.py"), from_uri=stopped,
        options={"settings": '{"checkpoint_interval_ms": 3600000}'}, poll_seconds=0.1, timeout_seconds=2,
    )  # fmt: skip
    with pytest.raises(AirflowException, match="time-out"):
        run(task, Instance(f"again-{name}"))  # it has no checkpoint of its own, so it reads from the savepoint
    for _ in range(2):
        second = client.jobs()[0]["jid"]
        JobHandle(client, second, name).savepoint(target)
    clean = CleanSavepointsOperator(task_id="clean", target=target, keep=1)
    clean.clock = ManualClock(client.job(running)["now"] + HOUR_MS)
    result = clean.execute(Instance("clean").context())
    assert [plain(uri) for uri in result["in_use"]] == [plain(stopped)]
    assert (len(result["kept"]), len(result["removed"])) == (1, 2)


def test_the_alarm(client, tmp_path, name, running):
    target = str(tmp_path / "alarm")
    check = CheckSavepointAgeOperator(task_id="alarm", target=target, alarm_hours="2")
    with pytest.raises(AirflowException, match="there is no savepoint"):
        check.execute(Instance("alarm").context())
    JobHandle(client, running, name).savepoint(target)
    assert list(check.execute(Instance("alarm").context())) == [name]
    check.clock = ManualClock(client.job(running)["now"] + 3 * HOUR_MS)
    with pytest.raises(AirflowException, match=rf"older than 2 h \({name}: 3\.0 h\)"):
        check.execute(Instance("alarm").context())
    check.alarm_hours = 0
    assert check.execute(Instance("alarm").context()) == {name: pytest.approx(3, abs=0.1)}
