"""Pieces of splits and what becomes of them; rows between stages keep their values, whatever their type."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.backfill.stages import (
    EDGE,
    PART,
    RESULT,
    SEQ,
    TIME,
    Outbox,
    Stage,
    TaskResult,
    rows_of,
    runs,
    source_snapshots,
    source_tasks,
    watermark_after,
    wire_type,
)
from penstock.connector.source import HistorySplit, SourceSplit
from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import UsageError
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import Committable, SubtaskSnapshot
from penstock.graph.job_graph import JobEdge, JobVertex, OperatorSpec, Rebalance

SCHEMA = pa.schema(
    [
        pa.field("i", pa.int64()),
        pa.field("u", pa.uint64()),
        pa.field("s", pa.large_string()),
        pa.field("at", pa.timestamp("ns", tz="UTC")),
        pa.field("naive", pa.timestamp("ms")),
        pa.field("d", pa.decimal128(20, 3)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("b", pa.bool_()),
        pa.field("__ts", pa.int64(), nullable=False),
    ]
)
ROWS = pa.record_batch(
    [
        pa.array([1, None, 3]),
        pa.array([2**64 - 1, 0, None], pa.uint64()),
        pa.array(["a", None, ""], pa.large_string()),
        pa.array([1, None, -5], pa.timestamp("ns", tz="UTC")),
        pa.array([dt.datetime(2020, 1, 1), None, None], pa.timestamp("ms")),
        pa.array([decimal.Decimal("1.500"), None, None], pa.decimal128(20, 3)),
        pa.array([["x"], [], None], pa.list_(pa.string())),
        pa.array([True, None, False]),
        pa.array([10, 20, 30]),
    ],
    schema=SCHEMA,
)


def stage(**values):
    edge = JobEdge(source="v", target="t", partitioner=Rebalance(), schema=schema_to_text(SCHEMA))
    vertex = JobVertex(id="v", name="v", operators=(OperatorSpec(uid="in", name="in", kind="source"),), parallelism=1)
    known = {
        "job_name": "j", "run_id": "r", "vertex": vertex, "parts": 1, "key_groups": 8, "inputs": (), "outputs": (edge,),
        "places": (), "targets": (4,), "settings": b"", "target_uri": "memory://x",
    }  # fmt: skip
    return Stage(**{**known, **values})


def test_rows_travel_with_their_place_and_come_back_as_they_were():
    box = Outbox(stage(), origin=7)
    box.add(0, ROWS.slice(1), np.array([3, 2]))
    box.add(0, ROWS.slice(0, 1), np.array([0]))
    box.result(b"done")
    first, second, result = box.take()
    assert box.take() == []
    assert first.column(PART).to_pylist() == [3, 2]
    assert first.column(TIME).to_pylist() == [20, 30]
    assert first.column(SEQ).to_pylist() + second.column(SEQ).to_pylist() == [0, 1, 2]
    assert rows_of(first, 0, SCHEMA).equals(ROWS.slice(1))
    assert rows_of(second, 0, SCHEMA).equals(ROWS.slice(0, 1))
    assert (result.column(EDGE).to_pylist(), result.column(RESULT).to_pylist()) == ([-1], [b"done"])


def test_a_type_that_does_not_travel_is_refused_by_name():
    with pytest.raises(UsageError, match="column 'm' of type map"):
        wire_type(pa.schema([pa.field("m", pa.map_(pa.string(), pa.timestamp("us")))]))


def test_runs():
    assert list(runs(np.array([1, 1, 0, 2, 2]))) == [(1, 0, 2), (0, 2, 3), (2, 3, 5)]
    assert list(runs(np.array([], np.int64))) == []


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
