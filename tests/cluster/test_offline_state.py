"""State that is written, checked, read, repartitioned and started from, beside real processes: nothing is lost.

Every order of a generator is added to a value and to running aggregates by user, which begin with what a table said.
"""

import polars as pl
import pytest
from tests.cluster.stage import _Capture
from tests.support.waiting import wait_until

import penstock as ps
from penstock.api.environment import use_executor
from penstock.cli.start.run import execute_file
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import PenstockError
from penstock.graph.state_check import check_states
from penstock.snapshots.access.declared import with_states
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.verify import verify
from penstock.snapshots.rewrite.prepared import Preparation, RewritePlan
from penstock.snapshots.rewrite.repartition import repartition
from penstock.snapshots.rewrite.split_points import SnapshotLimits
from penstock_connectors.datagen.source import OrderPattern, orders

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

USERS, ROWS = 200, 40_000
JOB = """
from collections.abc import Iterator
from typing import NamedTuple

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Total(ps.Schema):
    user_id: int
    amount: int


class Pair(NamedTuple):
    orders: int
    amount: int
{extra}

class Totals(ps.KeyedProcessFunction):
    {state}: ps.ValueState[Pair] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Total]:
        pair = self.{state}.value() or Pair(0, 0)
        self.{state}.update(pair._replace(orders=pair.orders + 1, amount=pair.amount + row.amount))
        yield Total(user_id=row.user_id, amount=pair.amount + row.amount)


env = ps.Environment(
    parallelism={parallelism}, checkpoint_interval="300ms", checkpoint_root={root!r}, key_groups={key_groups}
)
keyed = env.from_source(
    DatagenSource(rows={rows}, users={users}, rows_per_second={rate}), uid="orders"
).key_by("user_id")
keyed.process(Totals()).uid("people").sink_to(FileSink({root!r} + "/totals"), uid="out")
running = keyed.aggregate(n=ps.count(), total=ps.sum("amount")).uid("running")
running.sink_to(FileSink({root!r} + "/running"), uid="out2")
env.execute({name!r})
"""


class Jobs:
    """Makes graphs of the job's text, and runs them on one cluster."""

    def __init__(self, folder):
        self.folder = folder
        self.root = str(folder / "root")
        self.cluster = LocalCluster(
            LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=3, directory=folder / "cluster")
        )

    def graph(self, **changes):
        values = {
            "name": "offline", "root": self.root, "rows": ROWS, "users": USERS, "rate": 2_000, "parallelism": 2,
            "key_groups": 1024, "state": "pair", "extra": "",
        }  # fmt: skip
        path = self.folder / "job.py"
        path.write_text(JOB.format(**{**values, **changes}))
        found = _Capture()
        with use_executor(found):
            execute_file(path)
        return found.graphs[-1]

    def submit(self, graph, from_uri=None, **options):
        made = SubmitOptions(from_uri=from_uri, **options)
        return ClusterExecutor(url=self.cluster.rest_url, options=made).submit(graph)

    def completed(self, handle):
        return handle.client.summary(handle.job_id).get("checkpoints-completed", 0)


@pytest.fixture
def jobs(tmp_path):
    found = Jobs(tmp_path)
    found.cluster.start()
    yield found
    found.cluster.close()


def begun_with(users):
    """Return the tables the job begins with: by user 1000 orders of amount 7 each."""
    people = pl.DataFrame({"user_id": users, "orders": [1000] * len(users), "amount": [7000] * len(users)})
    running = people.select("user_id", pl.col("orders").alias("__rows"), pl.col("amount").alias("sum_amount"))
    return {("people", "pair"): people, ("running", "running"): running}


def expected():
    """Return (orders, amount) by user at the end."""
    pattern = OrderPattern(users=USERS)
    made = [pl.from_arrow(orders(pattern, split, 0, ROWS // 4)) for split in range(4)]
    sums = pl.concat(made).group_by("user_id").agg(pl.len().cast(pl.Int64), pl.col("amount").sum())
    return {user: (1000 + count, 7000 + amount) for user, count, amount in sums.rows()}


def held(uri, uid, columns):
    frame = ps.snapshots.read(uri, uid=uid, name="pair" if uid == "people" else "running").collect()
    return {row[0]: row[1:] for row in frame.select("user_id", *columns).rows()}


def test_from_a_table_to_a_savepoint_to_another_number_of_key_groups(jobs, tmp_path):
    graph = jobs.graph()
    bootstrap = ps.snapshots.write(str(tmp_path / "bootstrap"), begun_with(list(range(USERS))), job=graph)
    assert verify(bootstrap).damaged == []

    first = jobs.submit(graph, bootstrap)
    wait_until(lambda: jobs.completed(first) >= 1, "a checkpoint")
    savepoint = first.stop(target=str(tmp_path / "sp"))
    part = held(savepoint, "people", ["orders", "amount"])
    assert min(count for count, _ in part.values()) >= 1000, "begun with the table"
    assert 1000 * USERS < sum(count for count, _ in part.values()) < 1000 * USERS + ROWS, "stopped half way"
    assert held(savepoint, "running", ["__rows", "sum_amount"]) == part
    assert verify(savepoint).damaged == []

    snapshot = open_snapshot(savepoint)
    again = with_states(jobs.graph(key_groups=64, parallelism=3, rate=None, extra="    seen: bool = False\n"))
    verdicts = check_states(again, snapshot.manifest.subtasks, pending=snapshot.manifest.pending)
    found = {v.place: v.verdict for v in verdicts}
    assert [found[p] for p in ("people/pair", "running/running", "orders/splits")] == ["migrates", "same", "same"]
    moved = repartition(snapshot, str(tmp_path / "moved"), key_groups=64)
    assert held(moved, "people", ["orders", "amount"]) == part

    with pytest.raises(PenstockError, match="rows of state 'pair' of 'people', which no longer declares it"):
        jobs.submit(jobs.graph(state="renamed"), moved)
    second = jobs.submit(again, moved)
    assert second.wait(timeout_ms=100_000) == "FINISHED"
    final = f"{jobs.root}/offline"
    assert held(final, "people", ["orders", "amount"]) == expected()
    assert held(final, "people", ["seen"]) == dict.fromkeys(range(USERS), (False,))
    assert held(final, "running", ["__rows", "sum_amount"]) == expected()
    assert verify(final).damaged == []


@pytest.mark.nightly
def test_state_that_is_prepared_while_the_job_runs_and_finished_after_its_cancel(jobs, tmp_path):
    graph = jobs.graph()
    bootstrap = ps.snapshots.write(str(tmp_path / "bootstrap"), begun_with(list(range(USERS))), job=graph)
    first = jobs.submit(graph, bootstrap)
    wait_until(lambda: jobs.completed(first) >= 1, "a checkpoint")
    folder, files = f"{jobs.root}/offline", str(tmp_path / "files")
    limits = SnapshotLimits(large_file_bytes=1)
    assert Preparation.of(open_snapshot(folder), files, limits=limits).write().written > 0
    taken = jobs.completed(first)
    wait_until(lambda: jobs.completed(first) >= taken + 2, "newer checkpoints")
    first.cancel()
    assert first.wait(timeout_ms=100_000) == "CANCELED"
    plan = RewritePlan.of(open_snapshot(folder), files, key_groups=64, limits=limits)
    assert 0 < len(plan.missing) < sum(len(runs) for _, runs in plan.states)
    moved = plan.write(str(tmp_path / "moved"))
    assert verify(moved).damaged == []
    second = jobs.submit(jobs.graph(key_groups=64, parallelism=3, rate=None), moved)
    assert second.wait(timeout_ms=100_000) == "FINISHED"
    assert held(folder, "people", ["orders", "amount"]) == expected()
    assert held(folder, "running", ["__rows", "sum_amount"]) == expected()
    assert verify(folder).damaged == []
