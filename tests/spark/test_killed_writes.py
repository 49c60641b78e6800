"""An executor is killed while `df.write` runs on it: before its task has written, and between two of its files."""

import signal

import polars as pl
import pytest
from tests.cluster import proc_tree
from tests.cluster.test_offline_state import JOB
from tests.spark.executors import MASTER, OnExecutors
from tests.spark.gates import Gate
from tests.support.waiting import wait_until

import penstock as ps
from penstock.api.job_file import planned
from penstock.checkpoint.local_store import LocalStore
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.reading import diff
from penstock.snapshots.access.verify import verify

#: Two executors' JVMs beside the driver's: half a minute, and more where the cores are busy.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
#: A task writes a file for each subtask: so many that it is seen while it does.
SUBTASKS, TASKS, USERS = 128, 3, 6_000
VALUES = {
    "name": "killed", "rows": 400, "users": 50, "rate": 4_000, "parallelism": SUBTASKS, "key_groups": SUBTASKS,
    "state": "pair", "extra": "",
}  # fmt: skip
#: The last task looks into a file when it has half of its rows.
WRITES = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.snapshots.on_spark.spark_context import open_context

master, folder, job, tasks, users = *sys.argv[1:4], *map(int, sys.argv[4:])


def rows(task, _):
    own = range(task, users, tasks)
    for number, user in enumerate(own):
        if task == tasks - 1 and number == len(own) // 2:
            Path(folder, "looked-at").read_text()
        yield user, user, 7 * user


with open_context(master) as context:
    spark = SparkSession(context)
    given = context.parallelize(range(tasks), tasks).mapPartitionsWithIndex(rows)
    frame = spark.createDataFrame(given, "user_id long, orders long, amount long")
    frame.write.format("penstock").options(job=job, uid="people").mode("append").save(f"{folder}/there")
"""


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(JOB.format(**VALUES, root=str(tmp_path / "root")))
    return path


@pytest.fixture
def words(job_file, tmp_path):
    (tmp_path / "looked-at").write_text("yes")
    (tmp_path / "writes.py").write_text(WRITES)
    return (tmp_path / "writes.py", MASTER, tmp_path, job_file, TASKS, USERS)


def written(folder, task=None):
    """Names of the files that tasks have written; of one task by its number, whichever try it was."""
    names = [path.name for path in (folder / "there").rglob("*.parquet")]
    return [name for name in names if task is None or name.split("-")[2] == f"{task:05d}"]


def kill_between_two_files(program, gate, folder):
    """Let the task that waits write, and kill it with its executor when some of its files are there; return these."""
    executor = program.executor_of(gate.wait(program.process))
    others = SUBTASKS * (TASKS - 1)
    program.wait(lambda: len(written(folder)) == others, "the files of all other tasks")
    workers = [executor, *proc_tree.descendants(executor)]
    gate.lift()
    gate.let_through(executor)
    program.wait(lambda: written(folder, TASKS - 1), "a file", step=0.001)
    proc_tree.signal_all(workers, signal.SIGSTOP)
    # one that was idle may have ended meanwhile, one that syncs a file stops behind that
    running = lambda: [pid for pid in workers if proc_tree.alive(pid) and not proc_tree.stopped(pid)]
    wait_until(lambda: not running(), lambda: f"the stop of {running()}")
    found = written(folder, TASKS - 1)
    assert 0 < len(found) < SUBTASKS, "it was not in the middle"
    program.kill([executor], workers=True)
    return found


@pytest.mark.nightly
def test_a_write_of_state(job_file, words, tmp_path):
    users = range(USERS)
    rows = pl.DataFrame({"user_id": users, "orders": users, "amount": [7 * user for user in users]})
    here = ps.snapshots.write(str(tmp_path / "here"), {("people", "pair"): rows}, job=planned(job_file, {}, ""))
    with (
        Gate(tmp_path / "looked-at") as gate,
        OnExecutors(tmp_path, *words) as program,
    ):
        reader = gate.wait(program.process)
        program.kill([program.executor_of(reader)])
        gate.killed()
        left = kill_between_two_files(program, gate, tmp_path)
        code, _, said = program.end()
    assert all("ExecutorLostFailure" in reasons for reasons in program.lost().values())
    assert len(program.lost()) == 2
    assert code == 0, said[-2000:]
    there = str(tmp_path / "there")
    assert not set(left) & set(written(tmp_path))
    report = verify(there)
    assert (report.damaged, report.unknown) == ([], [])
    assert {found.verdict for found in diff(open_snapshot(here), open_snapshot(there))} == {"same"}
    read = ps.snapshots.read(there, uid="people").collect().select(rows.columns)
    assert read.sort("user_id").equals(rows)


@pytest.mark.nightly
def test_a_write_of_state_that_is_given_up(words, tmp_path):
    with (
        Gate(tmp_path / "looked-at") as gate,
        OnExecutors(tmp_path, *words, tries=1) as program,
    ):
        left = kill_between_two_files(program, gate, tmp_path)
        code, _, said = program.end()
    (reasons,) = program.lost().values()
    assert "ExecutorLostFailure" in reasons
    assert code == 1
    assert "ExecutorLostFailure" in said
    assert left
    assert LocalStore(str(tmp_path / "there")).list("") == []
    begun = [path.name for path in (tmp_path / "there").rglob("*") if path.is_file()]
    assert len(begun) <= 1, "more than the file that was being written"
