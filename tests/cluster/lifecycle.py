"""Every lifecycle action on a running job by every way of asking for it: one table, and the life that fills its cells.

A way (command line, REST, Python, web interface) is an object with a method for each of `ACTIONS`; `live` leads one job
through all of them and has the output read from outside after each. Used by `tests/cluster/test_lifecycle.py` and
`tests/ui/test_lifecycle.py`.
"""

from collections import Counter
from functools import cache
from typing import Protocol

import polars as pl
from tests.cluster.savepoints import rows_read
from tests.support.files import files_below
from tests.support.waiting import wait_until

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.snapshots.access.opening import open_snapshot
from penstock_connectors.datagen import OrderPattern, orders

#: In the order in which a life takes them; `submit` is asked for twice with one token.
ACTIONS = ("submit", "savepoint", "rescale", "upgrade", "cancel", "stop", "drain")
WAYS = ("cli", "rest", "python", "ui")
USERS, RATE = 20, 400
#: Subtasks before and after the rescale.
NARROW, WIDE = 2, 3
LIMIT_S = 90.0
#: More rows than a life can have.
MOST_ROWS = 200_000
#: A row behind the end of event time, which a drain alone reaches: the count as a negative number.
JOB = """
from collections.abc import Iterator

import penstock as ps
import polars as pl
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

FAR = 9_000_000_000_000_000


class Counted(ps.Schema):
    user_id: int
    seq: int
    total: int


class Count(ps.KeyedProcessFunction):
    seen: ps.ValueState[tuple[int, int]] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Counted]:
        seq, total = self.seen.value() or (0, 0)
        if not seq:
            ctx.timers.event(FAR)
        self.seen.update((seq + 1, total + row.amount))
        yield Counted(user_id=row.user_id, seq=seq + 1, total=total + row.amount)

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Counted]:
        seq, total = self.seen.value()
        yield Counted(user_id=ctx.key, seq=-seq, total=total)


env = ps.Environment(parallelism={parallelism}, checkpoint_interval="200ms", checkpoint_root={root!r})
orders = env.from_source(
    DatagenSource(splits=1, users={users}, rows_per_second={rate}),
    watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders",
).set_parallelism(1)
(orders.key_by("user_id").process(Count()).uid("count"){step}
       .sink_to(FileSink({output!r}), uid="out"))
env.execute({name!r})
"""
#: Another version of it, with the same rows.
STEP = '.with_columns(total=pl.col("total") + 0)'


class Way(Protocol):
    """How actions are asked for; each returns when the cluster has done what was asked."""

    def submit(self, file, token, from_uri=""):
        """Start a job file; return the job's id."""

    def savepoint(self, job_id, target):
        """Return where it lies."""

    def rescale(self, job_id, parallelism): ...

    def upgrade(self, job_id, file): ...

    def cancel(self, job_id): ...

    def stop(self, job_id, target):
        """Return where the savepoint lies."""

    def drain(self, job_id, target):
        """Return where the savepoint lies."""


def cluster(folder, **options):
    """Return a cluster for one life at a time."""
    directory = folder / "cluster"
    return LocalCluster(LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=WIDE, directory=directory, **options))


class Place:
    """One job's files and its output."""

    def __init__(self, running, folder, name):
        self.cluster, self.folder, self.name = running, folder / name, name
        self.folder.mkdir()
        self.output = self.folder / "out"
        self.rest = running.client()

    def file(self, version, parallelism=NARROW, step=""):
        path = self.folder / f"{version}.py"
        where = {"root": str(self.folder / "root"), "output": str(self.output), "name": self.name}
        text = JOB.format(parallelism=parallelism, users=USERS, rate=RATE, step=step, **where)
        path.write_text(text, encoding="utf-8")
        return path

    def state(self, job_id):
        return self.rest.job(job_id)["state"]

    def wait(self, job_id, state):
        wait_until(
            lambda: self.state(job_id) == state,
            lambda: f"{state}: {self.rest.story(job_id)[-9:]}",
            seconds=LIMIT_S,
            step=0.1,
        )

    def widths(self, job_id):
        return {v["parallelism"] for v in self.rest.job(job_id)["vertices"]}

    def read(self):
        """The rows a reader outside sees, judged: their number, and those of a drain."""
        files = files_below(self.output, "[!.]*")
        rows = pl.concat([pl.read_parquet(p) for p in files]).rows() if files else []
        counted = [row for row in rows if row[1] > 0]
        judge(counted)
        return counted, [row for row in rows if row[1] <= 0]

    def goes_on(self, job_id):
        """Wait for more rows of a running job; return how many there are, all of them exact."""
        self.wait(job_id, "RUNNING")
        before = len(self.read()[0])
        wait_until(
            lambda: len(self.read()[0]) > before,
            lambda: f"more rows: {self.rest.story(job_id)[-9:]}",
            seconds=LIMIT_S,
            step=0.1,
        )
        return len(self.read()[0])

    def ended(self, job_id, uri):
        """Return the rows of a job that has stopped with a savepoint: one for each row that it had read by then."""
        self.wait(job_id, "FINISHED")
        counted, closed = self.read()
        assert Counter(user for user, *_ in counted) == Counter(first_users(rows_read(uri)))
        return counted, closed


@cache
def answers():
    """(user, number of its order) -> the sum of its amounts so far, and the users of all orders; without the engine."""
    batch = orders(OrderPattern(splits=1, users=USERS), 0, 0, MOST_ROWS)
    users, sums, seen, found = batch["user_id"].to_pylist(), Counter(), Counter(), {}
    for user, amount in zip(users, batch["amount"].to_pylist(), strict=True):
        seen[user] += 1
        sums[user] += amount
        found[user, seen[user]] = sums[user]
    return found, users


def first_users(count):
    return answers()[1][:count]


def judge(rows):
    """Each row once, right, and none without those before it."""
    found, _ = answers()
    numbers = {}
    for user, seq, total in rows:
        assert total == found[user, seq], f"user {user}: order {seq} has {total}, not {found[user, seq]}"
        numbers.setdefault(user, []).append(seq)
    for user, seen in numbers.items():
        assert sorted(seen) == list(range(1, len(seen) + 1)), f"user {user}: missing or twice"


def live(place, way):
    """Lead a job through all actions; return action -> rows seen by then, each action in between being exact."""
    table, target = {}, str(place.folder / "savepoints")
    first = place.file("first")
    job = submitted(place, way, first)
    table["submit"] = place.goes_on(job)

    saved(place, way.savepoint(job, target), "savepoint")
    table["savepoint"] = place.goes_on(job)

    way.rescale(job, WIDE)
    assert place.widths(job) == {1, WIDE}
    table["rescale"] = place.goes_on(job)

    second = place.file("second", parallelism=WIDE, step=STEP)
    way.upgrade(job, second)
    found = place.rest.newest_upgrade(job)
    assert found["phase"] == "completed", found
    table["upgrade"] = place.goes_on(job)

    way.cancel(job)
    place.wait(job, "CANCELED")
    job = submitted(place, way, second)
    table["cancel"] = place.goes_on(job)

    uri = saved(place, way.stop(job, target), "stop")
    counted, closed = place.ended(job, uri)
    assert closed == [], "a stop fires no timers"
    job = submitted(place, way, second, uri)
    table["stop"] = place.goes_on(job)
    assert table["stop"] > len(counted)

    uri = saved(place, way.drain(job, target), "drain")
    counted, closed = place.ended(job, uri)
    per_user = Counter(user for user, *_ in counted)
    assert {user: -seq for user, seq, _ in closed} == per_user, "a drain fires the timer of every user, once"
    assert len(closed) == USERS
    table["drain"] = len(counted)
    assert sorted(table.values()) == list(table.values()), table
    assert tuple(table) == ACTIONS
    print(f"{place.name}: {table}")
    return table


def submitted(place, way, file, from_uri=""):
    """Submit twice with one token: it is one job."""
    before = {job["jid"] for job in place.rest.jobs()}
    token = f"{place.name}-{len(before)}"
    job = way.submit(file, token, from_uri)
    assert way.submit(file, token, from_uri) == job
    assert {found["jid"] for found in place.rest.jobs()} == {*before, job}
    assert job not in before
    return job


def saved(place, uri, barrier):
    """Return where a savepoint lies that is whole, and was taken as was asked."""
    manifest = open_snapshot(uri).manifest
    assert (manifest.job_name, manifest.barrier) == (place.name, barrier)
    assert place.name in uri
    return uri
