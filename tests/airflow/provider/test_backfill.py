"""A job's history computed by operators: once, whoever goes on with it; nothing half done is left."""

import threading

import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.airflow.job_file import write_job
from tests.airflow.provider.stand_in import Instance, run
from tests.cluster.proc_tree import wait_until

from penstock.client.savepoints import list_savepoints
from penstock.snapshots.opening import open_snapshot
from penstock_airflow.operators.backfill import BackfillOperator, CheckBackfillOperator
from penstock_airflow.operators.submit import SubmitJobOperator

pytestmark = pytest.mark.timeout(300)
ROWS = 4_000


@pytest.fixture
def path(tmp_path, name):
    """A bounded job that is live within seconds."""
    return write_job(tmp_path, name, rows=ROWS, rate=100_000)


def backfill(path, target, **more):
    return BackfillOperator(task_id="backfill", job_file=str(path), target=str(target), **more)


def files(folder):
    return sorted(str(found.relative_to(folder)) for found in folder.rglob("*") if found.is_file())


def rows_of(folder):
    """All windows that were written, in order."""
    parts = sorted(folder.glob("part-*"))
    return sorted((tuple(row.items()) for part in parts for row in pq.read_table(part).to_pylist()), key=repr)


def test_computed_once_whoever_goes_on_with_it(cluster, tmp_path, name, path):
    instance, target = Instance(name), tmp_path / "begun"
    died = backfill(path, target, until="orders-0=500,orders-1=700")
    token = died.attempts(instance.context()).begin()
    died._write(f"{target}/backfilled-{token[:12]}-1")  # and then it was killed
    instance.ids["try_number"] = 2
    done = backfill(path, target, until="orders-0=500,orders-1=700").execute(instance.context())
    assert [found.uri for found in list_savepoints(str(target))] == [done["location"]]
    assert done["location"].endswith("-1")
    again = backfill(path, target).execute(instance.context())  # cleared after its success
    assert {found.uri.rpartition("/")[2] for found in list_savepoints(str(target))} == {
        one["location"].rpartition("/")[2] for one in (done, again)
    }


def test_what_a_killed_try_has_left_is_removed(cluster, tmp_path, name, path):
    instance, target = Instance(name), tmp_path / "begun"
    task = backfill(path, target)
    left = target / f"backfilled-{task.attempts(instance.context()).begin()[:12]}-1"
    left.mkdir(parents=True)
    (left / "half").touch()
    (target / "of-another").touch()
    instance.ids["try_number"] = 2
    done = task.execute(instance.context())
    assert len(list_savepoints(str(target))) == 1
    folder = done["location"].rpartition("/")[2]
    assert {file.partition("/")[0] for file in files(target)} == {folder, "of-another"}


def test_a_user_ends_the_task(cluster, tmp_path, name):
    """The process ends, and what it has written by then is not left."""
    text = f"import pathlib, time\npathlib.Path({str(tmp_path / 'read')!r}).touch()\ntime.sleep(100)\n"
    target, errors, instance = tmp_path / "begun", [], Instance(name)
    task = backfill(write_job(tmp_path, name, text=text), target)

    def work():
        try:
            task.execute(instance.context())
        except AirflowException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    wait_until((tmp_path / "read").exists, 60, "the job file", step=0.1)
    left = target / f"backfilled-{task.attempts(instance.context()).token[:12]}-1"
    left.mkdir(parents=True)
    (left / "half").touch()
    task.on_kill()
    worker.join(30)
    assert len(errors) == 1
    assert files(target) == []


def test_the_job_goes_on_from_there(cluster, client, tmp_path, name, path):
    """What is staged and what the live job writes behind it is what the job writes by itself."""
    checked = CheckBackfillOperator(task_id="check", job_file=str(path)).execute(Instance("check").context())
    assert checked == {"accepted": []}
    done = backfill(path, tmp_path / "begun", until="orders-0=1500,orders-1=1700").execute(Instance(name).context())
    assert sum(output.rows for output in open_snapshot(done["location"]).manifest.pending) > 0
    assert not (tmp_path / f"{name}-out").exists(), "nothing is published before the start"
    start = SubmitJobOperator(task_id="s", job_file=str(path), from_uri=done["location"], poll_seconds=0.1)
    job_id = run(start, Instance(f"{name}-s"))["job_id"]
    assert client.job_after(job_id, 60_000)["state"] == "FINISHED"
    (tmp_path / "plain").mkdir()
    plain = write_job(tmp_path / "plain", f"{name}-plain", rows=ROWS, rate=100_000)
    job_id = run(SubmitJobOperator(task_id="p", job_file=str(plain), poll_seconds=0.1), Instance(f"{name}-p"))["job_id"]
    assert client.job_after(job_id, 60_000)["state"] == "FINISHED"
    live = rows_of(tmp_path / f"{name}-out")
    assert live
    assert live == rows_of(tmp_path / "plain" / f"{name}-plain-out")


def test_what_makes_no_sense_is_not_tried_again(cluster, tmp_path, name, path):
    refused = path.read_text().replace('ps.Tumbling("1s")', 'ps.Tumbling("1s", time="processing")')
    other = write_job(tmp_path, f"{name}-other", text=refused)
    target = tmp_path / "begun"
    with pytest.raises(AirflowFailException, match=r"cannot be backfilled: totals .*processing time"):
        CheckBackfillOperator(task_id="check", job_file=str(other)).execute(Instance("check").context())
    for wrong in ({"until": "soon"}, {"options": {"parts": "0"}}, {"options": {"fresh": True}}):
        with pytest.raises(AirflowFailException):
            backfill(path, target, **wrong).execute(Instance(name).context())
    with pytest.raises(AirflowFailException):
        backfill(other, target).execute(Instance(name).context())
    assert not target.exists()
