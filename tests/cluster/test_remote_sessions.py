"""Sessions whose state stays in the object store, on real processes: a worker is killed, and each comes out once."""

from collections import Counter

import pytest
from tests.cluster.killed_worker import rows_after_a_kill

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.datagen.source import OrderPattern, orders
from penstock_connectors.files import FileSink

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

USERS, RATE = 10_000, 4_000
GAP_US = 2_000_000
CHECKPOINTS = 4


def job(folder):
    env = ps.Environment(
        parallelism=2,
        state_backend="remote",
        local_recovery_bytes=0,
        checkpoint_interval="500ms",
        checkpoint_root=str(folder / "checkpoints"),
        managed_memory="4MB",
    )
    stream = env.from_source(
        DatagenSource(users=USERS, rows_per_second=RATE, event_rate=RATE, splits=1),
        watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts"),
        uid="orders",
    ).key_by("user_id")
    made = stream.window(ps.Session("2s")).aggregate(n=ps.count(), total=ps.sum("amount")).uid("sessions")
    made.sink_to(FileSink(str(folder / "out"), format="jsonl"), uid="out")
    return env


def expected(count):
    """Sessions of the first orders, made by hand."""
    by_user = {}
    made = orders(OrderPattern(splits=1, users=USERS, event_rate=RATE), 0, 0, count)
    for row in made.select(["user_id", "ts", "amount"]).to_pylist():
        by_user.setdefault(row["user_id"], []).append((round(row["ts"].timestamp() * 1_000_000), row["amount"]))
    found = Counter()
    for user, rows in by_user.items():
        rows.sort()
        n = total = 0
        for (time, amount), (after, _) in zip(rows, [*rows[1:], (rows[-1][0] + GAP_US + 1, 0)], strict=True):
            n, total = n + 1, total + amount
            if after - time > GAP_US:
                found[user, n, total] += 1
                n = total = 0
    return found


def test_a_kill_loses_no_session_and_makes_none_twice(tmp_path):
    graph = job(tmp_path).job_graph("remote")
    rows, read = rows_after_a_kill(graph, tmp_path, checkpoints=CHECKPOINTS, drain=True)
    assert Counter((row["user_id"], row["n"], row["total"]) for row in rows) == expected(read)
