"""A job's history computed by operators: once, whoever goes on with it; nothing half done is left."""

import os
import signal
import subprocess
import sys
import threading

import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.airflow.conftest import ROOT
from tests.airflow.job_file import write_job
from tests.airflow.provider.stand_in import Instance, run
from tests.cluster.proc_tree import alive, parent
from tests.support.waiting import DEADLINE_S, wait_until

from penstock.client.savepoints import list_savepoints
from penstock.snapshots.access.opening import open_snapshot
from penstock_airflow.operators.backfill import BackfillOperator, CheckBackfillOperator
from penstock_airflow.operators.submit import SubmitJobOperator

pytestmark = pytest.mark.timeout(300)
ROWS = 4_000
#: As Airflow runs a task: a supervisor, and the task's process that it has forked.
WORKER = """
import os, sys
from tests.airflow.provider.stand_in import Instance
from penstock_airflow.operators.backfill import BackfillOperator

name, path, target = sys.argv[1:]
task = os.fork()
if task:
    os.waitpid(task, 0)
else:
    BackfillOperator(task_id="backfill", job_file=path, target=target).execute(Instance(name).context())
"""


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


@pytest.mark.parametrize("who", ["the task's process", "its supervisor"])
def test_a_worker_is_killed(cluster, tmp_path, name, path, who):
    """Its command ends with it, so that the next try is the only one that writes; one savepoint, nothing half done."""
    stops, target, instance = tmp_path / "stops", tmp_path / "begun", Instance(name)
    pause = f"import os, pathlib, time\nstops = pathlib.Path({str(stops)!r})\n"
    pause += "if not stops.exists():\n    stops.write_text(str(os.getpid()))\n    time.sleep(500)\n"
    other = write_job(tmp_path, f"{name}-stops", text=pause + path.read_text())
    arguments = [name, str(other), str(target)]
    worker = subprocess.Popen([sys.executable, "-c", WORKER, *arguments], cwd=ROOT, env=os.environ)
    command = wait_until(lambda: stops.exists() and stops.read_text(), "the command", step=0.1)
    task = parent(command)
    left = target / f"backfilled-{backfill(other, target).attempts(instance.context()).begin()[:12]}-1"
    left.mkdir(parents=True)
    (left / "half").touch()
    os.kill(task if who == "the task's process" else worker.pid, signal.SIGKILL)
    wait_until(lambda: not alive(int(command)), "the end of the command", step=0.1)
    wait_until(lambda: not alive(task), "the end of the task's process", step=0.1)
    worker.wait(DEADLINE_S)
    instance.ids["try_number"] = 2
    folder = backfill(other, target).execute(instance.context())["location"].rpartition("/")[2]
    assert [found.uri.rpartition("/")[2] for found in list_savepoints(str(target))] == [folder]
    assert {file.partition("/")[0] for file in files(target)} == {folder}


def test_a_try_that_fails_leaves_the_next_one_alone(cluster, tmp_path, name, path):
    instance, target = Instance(name), tmp_path / "begun"
    task = backfill(path, target)
    attempt = f"backfilled-{task.attempts(instance.context()).begin()[:12]}"

    def meanwhile(location):
        for number in (1, 2):
            (target / f"{attempt}-{number}").mkdir(parents=True)
            (target / f"{attempt}-{number}" / "half").touch()
        raise AirflowException("it has failed")

    task._write = meanwhile
    with pytest.raises(AirflowException, match="it has failed"):
        task.execute(instance.context())
    assert files(target) == [f"{attempt}-2/half"]


def test_a_job_that_runs_is_not_begun_anew(cluster, client, tmp_path, name, running):
    path = tmp_path / f"{name}.py"
    with pytest.raises(AirflowFailException, match=rf"job '{name}' runs already \({running}\)"):
        CheckBackfillOperator(task_id="check", job_file=str(path)).execute(Instance("check").context())
    beside = CheckBackfillOperator(task_id="check", job_file=str(path), may_run=True)
    assert beside.execute(Instance("check").context()) == {"accepted": []}
    start = SubmitJobOperator(task_id="s", job_file=str(path), options={"attach": "False"})
    with pytest.raises(AirflowException, match="already running in this cluster"):
        start.execute(Instance(f"{name}-s").context())
    assert [job["jid"] for job in client.jobs() if job["name"] == name] == [running]


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
    wait_until((tmp_path / "read").exists, "the job file", step=0.1)
    left = target / f"backfilled-{task.attempts(instance.context()).token[:12]}-1"
    left.mkdir(parents=True)
    (left / "half").touch()
    task.on_kill()
    worker.join(DEADLINE_S)
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
    with pytest.raises(
        AirflowFailException, match=r"cannot be backfilled: totals .*processing time \(run the job live"
    ):
        CheckBackfillOperator(task_id="check", job_file=str(other)).execute(Instance("check").context())
    for wrong in ({"until": "soon"}, {"options": {"parts": "0"}}, {"options": {"fresh": True}}):
        with pytest.raises(AirflowFailException):
            backfill(path, target, **wrong).execute(Instance(name).context())
    with pytest.raises(AirflowFailException):
        backfill(other, target).execute(Instance(name).context())
    assert not target.exists()
    raises = path.read_text().replace("(orders.key_by", "(orders.filter(lambda row: 1 // 0).uid('valid').key_by")
    failing = write_job(tmp_path, f"{name}-raises", text=raises)
    with pytest.raises(AirflowFailException, match=r"filter 'valid': ZeroDivisionError"):
        backfill(failing, target).execute(Instance(name).context())


@pytest.mark.parametrize(
    ("text", "said"), [('{python} "$@"; exit $?', "must `exec` it"), ("true", "printed no result")]
)
def test_a_script_for_the_interpreter_that_does_not_exec_it_is_told(
    cluster, tmp_path, name, path, monkeypatch, text, said
):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{text.format(python=sys.executable)}\n")
    script.chmod(0o755)
    host, _, port = cluster.rest_url.removeprefix("http://").rpartition(":")
    monkeypatch.setenv("AIRFLOW_CONN_WRAPPED", f"penstock://{host}:{port}?python={script}")
    with pytest.raises(AirflowException, match=said):
        backfill(path, tmp_path / "begun", penstock_conn_id="wrapped").execute(Instance(name).context())
