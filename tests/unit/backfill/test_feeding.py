"""Event time between the rows of a part."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.backfill.exchange import ordered
from penstock.backfill.feeding import Feeding
from penstock.backfill.stages import Stage
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import JobEdge, JobVertex, KeyGroup, OperatorSpec

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("__ts", pa.int64(), nullable=False)])
SESSION = {"window": {"kind": "session", "gap_us": 10}}


class Part:
    """Records what it is given."""

    may_fire, next_timer = False, None

    def __init__(self):
        self.given = []

    def feed(self, rows, edge):
        self.given += rows.column("__ts").to_pylist()

    def feed_ordered(self, rows, edge, watermark):
        self.given.append(("ordered", rows.column("__ts").to_pylist(), watermark))

    def advance(self, watermark):
        self.given.append(("watermark", watermark))


class Timed(Part):
    """Has a function with timers."""

    may_fire = True


def stage_of(kind, config, *behind):
    kinds = {kind: config} | {other: {} for other in behind}
    operators = tuple(OperatorSpec(uid=name, name=name, kind=name, config=own) for name, own in kinds.items())
    edge = JobEdge(source="s", target="v", partitioner=KeyGroup(columns=("k",)), schema=schema_to_text(SCHEMA))
    return Stage(
        job_name="j", run_id="r", vertex=JobVertex(id="v", name="v", operators=operators, parallelism=2), parts=1,
        key_groups=8, inputs=(edge,), outputs=(), places=(0,), targets=(), settings=b"", target_uri="memory://x",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "config", "behind"),
    [
        ("window_aggregate", {"window": {"kind": "tumbling", "size_us": 10}}, 1),
        ("process", {}, 1),
        ("session_aggregate", SESSION, 2),
        ("window_rows", SESSION, 2),
        ("window_rows_join", SESSION, 2),
    ],
)
def test_a_session_that_ends_where_rows_begin_waits_for_them(kind, config, behind):
    feeding, part = Feeding(stage_of(kind, config)), Part()
    for time in (100, 110):
        times = np.array([time])
        rows = pa.record_batch([pa.array([1]), pa.array(times)], schema=SCHEMA)
        feeding.feed(part, ordered([(0, rows, times)]))
    reached = [("watermark", 100 - behind), ("watermark", 110 - behind)]
    assert list(dict.fromkeys(part.given)) == [reached[0], 100, reached[1], 110]


@pytest.mark.parametrize(
    ("kind", "behind", "by_key"),
    [
        ("process", (), True),
        ("process", ("map", "sink"), True),
        ("process", ("assign_watermarks",), False),
        ("process", ("map_batches",), False),
        ("co_process", (), False),
    ],
)
def test_keys_come_one_after_the_other_only_if_nothing_sees_their_order(kind, behind, by_key):
    feeding, part = Feeding(stage_of(kind, {}, *behind)), Timed()
    times = np.array([5, 7, 9])
    feeding.feed(part, ordered([(0, pa.record_batch([pa.array([1, 2, 1]), pa.array(times)], schema=SCHEMA), times)]))
    in_order = [("watermark", 4), ("ordered", [5, 7, 9], 8)]
    row_by_row = [("watermark", 4), 5, 7, ("watermark", 8), 9, ("watermark", 8)]
    assert part.given == (in_order if by_key else row_by_row)
    assert feeding.batch_rows(10) == (40 if by_key else 10)
