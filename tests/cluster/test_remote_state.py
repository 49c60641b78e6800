"""State that stays in the object store, on real processes: a worker is killed, and every row is counted once."""

from collections import Counter

import pytest
from tests.cluster.killed_worker import rows_after_a_kill

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.datagen.source import OrderPattern, orders
from penstock_connectors.files import FileSink

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

USERS, RATE = 40_000, 5_000
#: By then segments were merged, so that what is read is more than a file that is read at once.
CHECKPOINTS = 10


def job(folder):
    env = ps.Environment(
        parallelism=2,
        state_backend="remote",
        checkpoint_interval="300ms",
        checkpoint_root=str(folder / "checkpoints"),
        managed_memory="4MB",
    )
    stream = env.from_source(
        DatagenSource(users=USERS, rows_per_second=RATE, splits=1),
        watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
        uid="orders",
    ).key_by("user_id")
    stream.aggregate(n=ps.count()).uid("running").sink_to(FileSink(str(folder / "out"), format="jsonl"), uid="out")
    return env


def test_a_kill_counts_nothing_twice(tmp_path):
    graph = job(tmp_path).job_graph("remote")
    rows, count = rows_after_a_kill(graph, tmp_path, checkpoints=CHECKPOINTS)
    counts = {}
    for row in rows:
        counts.setdefault(row["user_id"], []).append(row["n"])
    read = orders(OrderPattern(splits=1, users=USERS), 0, 0, count)["user_id"].to_pylist()
    assert Counter(read) == Counter(row["user_id"] for row in rows), "a row for each order that was read"
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())
