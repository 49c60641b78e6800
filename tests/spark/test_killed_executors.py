"""An executor is killed while its task is held in the middle: the result is the undisturbed one, or there is none."""

import polars as pl
import pytest
from tests.spark.executors import MASTER, OnExecutors, executors
from tests.spark.gates import Gate
from tests.support.files import files_below
from tests.unit.snapshots.test_rekey import job

import penstock as ps
from penstock.core.errors import NotFoundError
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.verify import verify
from penstock.snapshots.rewrite.rekey import rekey
from penstock.snapshots.rewrite.repartition import repartition

#: Two executors' JVMs beside the driver's: half a minute, and more where the cores are busy.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
COMMAND = ("-m", "penstock.cli.main")
USERS = range(600)
KEY = "user=CAST(user_id AS VARCHAR)"
ON_SPARK = ("--engine", "spark", "--master", MASTER)


@pytest.fixture
def savepoint(tmp_path):
    panes = [(user, 10_000_000 * pane, user + 1, pane) for user in USERS for pane in range(2)]
    tables = {
        ("people", "profile"): pl.DataFrame({"user_id": USERS, "orders": USERS, "user_id_": USERS}),
        ("people", "recent"): pl.DataFrame({"user_id": USERS, "__entry": [0] * 600, "value": USERS}),
        ("people", "__timers_event"): pl.DataFrame({"user_id": USERS, "__namespace": [9] * 600}),
        ("windows", "panes"): pl.DataFrame(panes, ["user_id", "__namespace", "__rows", "sum_amount"], orient="row"),
    }
    return ps.snapshots.write(str(tmp_path / "sp"), tables, job=job("user_id"))


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def content(folder):
    """All files by name, of a manifest what does not name the place."""
    manifest = open_snapshot(str(folder)).manifest
    held = {name: (folder / name).read_bytes() for name in files(folder) - {"manifest.json"}}
    return held, manifest.subtasks, manifest.operators, manifest.pending, manifest.key_groups


def require_none(folder, said):
    """Assert that a command has failed with one error of its own, and that there is no savepoint."""
    (line,) = [line for line in said.splitlines() if line.startswith("penstock: ")]
    assert "executor" in line, line
    assert line == said.splitlines()[-1]
    with pytest.raises(NotFoundError):
        open_snapshot(str(folder))


@pytest.mark.nightly
@pytest.mark.parametrize("tries", [4, 1])
def test_a_repartition(savepoint, tmp_path, tries):
    here = repartition(open_snapshot(savepoint), str(tmp_path / "here"))
    undisturbed, there = content(tmp_path / "here"), tmp_path / "there"
    command = (*COMMAND, "state", "repartition", savepoint, there, *ON_SPARK)
    with (
        Gate(max((tmp_path / "sp" / "people" / "profile").iterdir())) as gate,
        OnExecutors(tmp_path, *command, tries=tries) as program,
    ):
        reader = gate.wait(program.process)
        others = len(undisturbed[0]) - 1
        program.wait(lambda: len(files_below(there, "*.parquet")) == others, "the files of all other tasks")
        gate.lift()
        program.kill([program.executor_of(reader)])
        code, _, said = program.end()
    assert "ExecutorLostFailure" in next(iter(program.lost().values()))
    if tries == 1:
        assert code == 1
        require_none(there, said)
    else:
        assert code == 0, said[-2000:]
        assert content(there) == undisturbed
        assert verify(str(there)).damaged == verify(here).damaged == []


@pytest.mark.nightly
def test_a_change_of_keys_in_both_of_its_jobs(savepoint, tmp_path):
    """In the first one the executor that reads, in the second one both, with the rows they keep for the others."""
    rekey(open_snapshot(savepoint), str(tmp_path / "here"), uid="people", key=[KEY])
    undisturbed, there = content(tmp_path / "here"), tmp_path / "there"
    command = (*COMMAND, "state", "rekey", savepoint, there, "--uid", "people", "--key", KEY, *ON_SPARK)
    with (
        Gate(max((tmp_path / "sp" / "people" / "recent").iterdir())) as gate,
        OnExecutors(tmp_path, *command) as program,
    ):
        first = gate.wait(program.process)
        program.wait(lambda: len(program.kept(r"shuffle_0_.*\.index")) == 2, "the keys of the other states")
        assert not there.exists()
        program.kill([program.executor_of(first)])
        gate.killed()
        gate.let_through(gate.wait(program.process))
        second = gate.wait(program.process)
        program.wait(lambda: len(program.kept(r"shuffle_1_.*\.index")) == 2, "the rows of the other states")
        assert not (there / "people").exists()
        gate.lift()
        program.kill({program.executor_of(second), *executors(program.process.pid)})
        code, _, said = program.end()
    reasons = list(program.lost().values())
    assert sum("ExecutorLostFailure" in found for found in reasons) >= 2
    assert any("Resubmitted" in found for found in reasons), "rows that were kept are computed again"
    assert code == 0, said[-2000:]
    assert content(there) == undisturbed


@pytest.mark.nightly
def test_a_change_of_keys_that_is_given_up(savepoint, tmp_path):
    there = tmp_path / "there"
    command = (*COMMAND, "state", "rekey", savepoint, there, "--uid", "people", "--key", KEY, *ON_SPARK)
    with (
        Gate(max((tmp_path / "sp" / "people" / "recent").iterdir())) as gate,
        OnExecutors(tmp_path, *command, tries=1) as program,
    ):
        gate.let_through(gate.wait(program.process))
        reader = gate.wait(program.process)
        gate.lift()
        program.kill([program.executor_of(reader)])
        code, _, said = program.end()
    assert "ExecutorLostFailure" in next(iter(program.lost().values()))
    assert code == 1
    require_none(there, said)
