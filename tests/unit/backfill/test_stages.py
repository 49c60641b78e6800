"""Pieces of splits and what becomes of them."""

import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.backfill.stages import Stage, TaskResult, source_snapshots, source_tasks, watermark_after
from penstock.connector.source import HistorySplit, SourceSplit
from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import Committable, SubtaskSnapshot
from penstock.graph.job_graph import JobEdge, JobVertex, OperatorSpec, Rebalance

SCHEMA = pa.schema([pa.field("i", pa.int64()), pa.field("__ts", pa.int64(), nullable=False)])


def stage(**values):
    edge = JobEdge(source="v", target="t", partitioner=Rebalance(), schema=schema_to_text(SCHEMA))
    vertex = JobVertex(id="v", name="v", operators=(OperatorSpec(uid="in", name="in", kind="source"),), parallelism=1)
    known = {
        "job_name": "j", "run_id": "r", "vertex": vertex, "parts": 1, "key_groups": 8, "inputs": (), "outputs": (edge,),
        "places": (), "targets": (4,), "settings": b"", "target_uri": "memory://x",
    }  # fmt: skip
    return Stage(**{**known, **values})


def split(name, low, high):
    return SourceSplit(id=name, state={"position": low, "end": high}, finished=low >= high)


HISTORY = (
    HistorySplit((split("a", 0, 5), split("a", 5, 9)), SourceSplit(id="a", state={"position": 9})),
    HistorySplit((split("b", 0, 0),), SourceSplit(id="b", state={"position": 0})),
)


def results(*watermarks):
    return [
        TaskResult(
            vertex_id="v", part=part, watermark=watermark, rows_in=0,
            snapshot=SubtaskSnapshot(
                vertex_id="v", subtask=part,
                committables=(Committable(id=f"o/{part}", uid="o", run_id="r", subtask=part, checkpoint_id=1),),
            ),
        )
        for part, watermark in enumerate(watermarks)
    ]  # fmt: skip


@pytest.mark.parametrize("quiet_are_idle", [False, True])
def test_pieces_of_a_split_are_one_subtask_where_the_live_job_goes_on(quiet_are_idle):
    planned = replace(stage(), pieces=source_tasks(HISTORY), parts=3)
    assert [(p.number, p.empty) for p in planned.pieces] == [(0, False), (0, False), (1, True)]
    found = source_snapshots(planned, HISTORY, results(50, 40, MIN_TIMESTAMP), quiet_are_idle=quiet_are_idle)
    splits = [state.items[0] for part in found for state in part.operator if state.name == "splits"]
    assert [(s["id"], s["state"], s["watermark"]) for s in splits] == [
        ("a", {"position": 9}, 50),
        ("b", {"position": 0}, None),
    ]
    floors = [state.items for part in found for state in part.operator if state.name == "watermark"]
    assert floors == [(50,)] + ([] if quiet_are_idle else [(MIN_TIMESTAMP,)])
    assert [len(part.committables) for part in found] == [2, 1]


def test_event_time_is_where_the_last_is_and_the_quiet_hold_it_unless_they_are_idle():
    assert watermark_after(results(50, 40), quiet_are_idle=False) == 40
    assert watermark_after(results(50, MIN_TIMESTAMP), quiet_are_idle=False) == MIN_TIMESTAMP
    assert watermark_after(results(50, MIN_TIMESTAMP), quiet_are_idle=True) == 50
    assert watermark_after([], quiet_are_idle=False) == MIN_TIMESTAMP
