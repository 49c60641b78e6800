"""A backfill from a table and the source behind it, an executor of which is killed while its task is held."""

import json
import os
import random
import subprocess
import sys

import pytest
from tests.spark.executors import MASTER, OnExecutors, executors
from tests.spark.gates import Gate
from tests.spark.golden import PARTS, Golden
from tests.spark.test_backfill import keyed, positions
from tests.spark.test_killed_executors import require_none
from tests.support.files import files_below

from penstock.snapshots.access.verify import verify

#: Two executors' JVMs beside the driver's: half a minute, and more where the cores are busy.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
CUTS, TABLE_ENDS = (700, 600, 790), (400, 390, 0)
#: Two tables' partitions, and what three splits have behind them.
PIECES = 5
#: What the rows of two times are multiplied by lies in files: one is looked at while a piece is read, one behind.
JOB = """
import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

FOLDER, FACTORS = Path({folder!r}), {factors!r}


def factor(name, at):
    return int((FOLDER / name).read_text()) if at == FACTORS[name] else 1


class Order(ps.Schema):
    user_id: int
    amount: int
    ts: dt.datetime


class Count(ps.Schema):
    user_id: int
    second: int
    rows: int


class BySecond(ps.KeyedProcessFunction):
    amounts: ps.MapState[int, int] = ps.map_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Count]:
        second = ctx.timestamp // 1_000_000
        amount = row.amount * factor("behind", ctx.timestamp)
        self.amounts.put(second, (self.amounts.get(second) or 0) + amount)
        ctx.timers.event((second + 1) * 1_000_000 - 1)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Count]:
        second = timestamp // 1_000_000
        yield Count(user_id=ctx.key, second=second, rows=self.amounts.get(second) or 0)
        self.amounts.remove(second)


def times(row) -> Order:
    at = int(row.ts.timestamp()) * 1_000_000 + row.ts.microsecond
    return Order(user_id=row.user_id, amount=row.amount * factor("reading", at), ts=row.ts)


env = ps.Environment(parallelism=2, checkpoint_root=str(FOLDER / "checkpoints"))
source = DatagenSource(rows=2_400, splits=3, users=40, event_rate=300, disorder_ms=400, seed=1)
strategy = ps.WatermarkStrategy.bounded_out_of_orderness(0.5, timestamp="ts")
orders = env.from_source(source, watermarks=strategy, uid="orders").map(times)
orders.key_by("user_id").process(BySecond()).uid("by-second").sink_to(FileSink(str(FOLDER / "out")), uid="out")
env.execute("stitched")
"""


class Stitched(Golden):
    """A job with its table."""

    def __init__(self, folder):
        super().__init__("process", folder)
        self.archive(TABLE_ENDS, rand=random.Random(3))
        times = {name: self.time_of(0, row) for name, row in (("reading", 200), ("behind", 330))}
        for name, factor in (("reading", "3"), ("behind", "5")):
            (folder / name).write_text(factor)
        (folder / "job.py").write_text(JOB.format(folder=str(folder), factors=times))

    def time_of(self, split, row):
        (at,) = self.rows_of(split, row, row + 1).column("ts").cast("int64").to_pylist()
        assert sum(at == other for *_, other in self.input(CUTS)) == 1, "the row would not be known by its time"
        return at

    def stitch(self, name, *options):
        """Arguments of an interpreter that does it."""
        table = ("--history", f"orders={self.folder}/table-orders", "--offsets", "orders=partition,offset")
        return self.command(CUTS, *table, *options, job=self.folder / "job.py", to=name)

    def content(self, uri):
        """What the savepoint at a URI holds: positions, watermarks, state and staged output."""
        states = {of: self.state(*of, uri) for of in keyed(uri)}
        return {"operators": positions(uri), "states": states, "output": self.staged(uri)}

    def undisturbed(self):
        """Return (what the command tells, what its savepoint holds) in one process."""
        done = subprocess.run(
            [sys.executable, *self.stitch("here")], env=os.environ, cwd=self.folder, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        return told, self.content(told["savepoint"])


def test_a_stitched_backfill(tmp_path):
    """While the table is read the executor that reads, behind that both, with the rows they keep of table and topic."""
    job = Stitched(tmp_path)
    told_here, here = job.undisturbed()
    assert told_here["tables"] == {"orders": {"orders-0": [0, 400], "orders-1": [0, 390]}}
    files, there = len(files_below(tmp_path / "here", "*.parquet")), tmp_path / "there"
    with (
        Gate(tmp_path / "reading") as reading,
        Gate(tmp_path / "behind") as behind,
        OnExecutors(tmp_path, *job.stitch("there", "--master", MASTER)) as program,
    ):
        reader = reading.wait(program.process)
        program.wait(lambda: len(program.kept(r"rdd_\d+_\d+")) == PIECES - 1, "the rows of all other pieces")
        assert not files_below(there, "*.parquet")
        program.kill([program.executor_of(reader)])
        reading.killed()
        reading.let_through(reading.wait(program.process))
        worker = behind.wait(program.process)
        others = files * (PARTS - 1) // PARTS
        program.wait(lambda: len(files_below(there, "*.parquet")) == others, "the files of all other parts")
        behind.lift()
        program.kill({program.executor_of(worker), *executors(program.process.pid)})
        again = reading.wait(program.process)  # rows of the table that were kept are computed again
        reading.lift()
        reading.let_through(again)
        code, out, said = program.end()
    reasons = list(program.lost().values())
    assert sum("ExecutorLostFailure" in found for found in reasons) >= 2
    assert code == 0, said[-2000:]
    told = json.loads(out)
    same = ("rows", "staged_rows", "late_rows", "watermark", "positions", "tables")
    assert {name: told[name] for name in same} == {name: told_here[name] for name in same}
    assert job.content(told["savepoint"]) == here
    assert here["output"]
    assert here["states"]["by-second", "amounts"]
    report = verify(told["savepoint"])
    assert (report.damaged, report.unknown) == ([], [])


@pytest.mark.nightly
def test_a_stitched_backfill_that_is_given_up(tmp_path):
    job = Stitched(tmp_path)
    with (
        Gate(tmp_path / "reading") as gate,
        OnExecutors(tmp_path, *job.stitch("there", "--master", MASTER), tries=1) as program,
    ):
        reader = gate.wait(program.process)
        gate.lift()
        program.kill([program.executor_of(reader)])
        code, out, said = program.end()
    assert "ExecutorLostFailure" in next(iter(program.lost().values()))
    assert (code, out) == (1, "")
    require_none(tmp_path / "there", said)
