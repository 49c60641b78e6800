"""State that stays in the object store, on real processes: a worker is killed, and every row is counted once."""

import pytest
from tests.cluster.killed_worker import rows_behind_a_kill

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(360)]

ROWS, USERS, RATE = 160_000, 40_000, 5_000
#: By then segments were merged, so that what is read is more than a file that is read at once.
CHECKPOINTS = 10


def job(folder):
    env = ps.Environment(
        parallelism=2,
        state_backend="remote",
        checkpoint_interval="500ms",
        checkpoint_root=str(folder / "checkpoints"),
        managed_memory="4MB",
    )
    orders = env.from_source(
        DatagenSource(rows=ROWS, users=USERS, rows_per_second=RATE),
        watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
        uid="orders",
    ).key_by("user_id")
    orders.aggregate(n=ps.count()).uid("running").sink_to(FileSink(str(folder / "out"), format="jsonl"), uid="out")
    return env


def test_a_kill_counts_nothing_twice(tmp_path):
    graph = job(tmp_path).job_graph("remote")
    rows = rows_behind_a_kill(graph, tmp_path, checkpoints=CHECKPOINTS, limit_s=120, end_s=180)
    counts = {}
    for row in rows:
        counts.setdefault(row["user_id"], []).append(row["n"])
    assert len(rows) == ROWS
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())
