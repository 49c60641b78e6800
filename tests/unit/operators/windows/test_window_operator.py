"""The window operator by example: firing, lateness, nulls, types, what it saves."""

import datetime as dt
from types import SimpleNamespace

import pyarrow as pa
import pytest
from tests.support.sizes import sizes

from penstock.config.settings import JobSettings
from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.errors import GraphError, PenstockError
from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN, HashRange
from penstock.kernels.keys.hashing import hash_columns
from penstock.operators.aggregates.aggregate_schema import output_schema
from penstock.operators.lateness import RangeWatermarks
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)


class Out:
    def __init__(self):
        self.events = []

    def batch(self, batch):
        self.events.append(batch.data)

    def watermark(self, watermark):
        self.events.append(watermark.timestamp)

    def rows(self):
        return [r for b in self.events if not isinstance(b, int) for r in b.to_pylist()]


@pytest.fixture
def make(tmp_path):
    stores = []

    def opened(window, *aggregates, restored=(), schema=SCHEMA, key=("k",), lateness=0):
        named = [{"fn": f, "column": c, "alias": f"{f}_{c}" if c else f} for f, c in aggregates or [("count", None)]]
        config = {"key": list(key), "window": window, "aggregates": named, "allowed_lateness_us": lateness}
        store = open_keyed_state(
            KeyedStateRequest(
                uid="w",
                snapshots=(),
                hash_range=ALL_HASHES,
                settings=JobSettings(),
                read=lambda file: b"",
                directory=tmp_path / str(len(stores)),
                writer="run/v/0/0",
                budget=MemoryBudget(1 << 30),
                limits=sizes(),
            )
        )
        stores.append(store)
        operator = create_operator("window_aggregate")
        context = SimpleNamespace(
            spec=SimpleNamespace(uid="w", config=config),
            hash_range=ALL_HASHES,
            metrics=OperatorMetrics(),
            input_schemas=(schema,),
            keyed_state=store,
            limits=sizes(),
            restored=restored,
        )
        operator.open(context)
        operator.context = context
        operator.expected_schema = output_schema(config, schema)
        return operator

    yield opened
    for store in stores:
        store.close()


def feed(operator, rows, out=None, schema=SCHEMA):
    columns = list(zip(*rows, strict=True))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
    operator.process_batch(Batch(batch), 0, out or Out())


def fire(operator, watermark):
    out = Out()
    operator.process_watermark(Watermark(watermark), out)
    return out


def tumbling(size, **more):
    return {"kind": "tumbling", "size_us": size, **more}


def sliding(size, slide):
    return {"kind": "sliding", "size_us": size, "slide_us": slide}


def test_a_window_fires_when_its_last_microsecond_is_reached_and_before_the_watermark_is_passed_on(make):
    operator = make(tumbling(10))
    feed(operator, [(1, 5, 3), (1, 5, 9), (2, 5, 10)])
    assert fire(operator, 8).events == [8]
    out = fire(operator, 9)
    assert out.events[-1] == 9
    (row,) = out.rows()
    assert (row["k"], row["count"], row[TS_COLUMN]) == (1, 2, 9)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert (row["window_start"], row["window_end"]) == (epoch, epoch + dt.timedelta(microseconds=10))
    assert out.events[0].schema == operator.expected_schema
    assert [r["k"] for r in fire(operator, MAX_TIMESTAMP).rows()] == [2]


def test_windows_come_in_order(make):
    operator = make(tumbling(10))
    feed(operator, [(1, 0, 35), (1, 0, 5), (1, 0, -15), (1, 0, 14)])
    assert [r[TS_COLUMN] for r in fire(operator, 100).rows()] == [-11, 9, 19, 39]


def test_before_1970_and_with_an_offset(make):
    operator = make(tumbling(10, offset_us=3))
    feed(operator, [(1, 0, -8), (1, 0, -7), (1, 0, 2), (1, 0, 3)])
    found = [(r[TS_COLUMN], r["count"]) for r in fire(operator, 1000).rows()]
    assert found == [(-8, 1), (2, 2), (12, 1)]


def test_late_rows_are_counted_and_dropped(make):
    operator = make(tumbling(10))
    fire(operator, 9)
    feed(operator, [(1, 0, 9), (1, 0, 10), (1, 0, -100)])
    assert operator.context.metrics.late_records_dropped == 2
    assert [r["count"] for r in fire(operator, 19).rows()] == [1]


def test_a_partly_late_row_goes_into_its_open_windows_alone(make):
    operator = make(sliding(20, 10))
    feed(operator, [(1, 0, 5)])
    assert len(fire(operator, 9).rows()) == 1  # [-10, 10)
    feed(operator, [(1, 0, 5)])
    assert operator.context.metrics.late_records_dropped == 0
    assert [(r[TS_COLUMN], r["count"]) for r in fire(operator, 50).rows()] == [(19, 2)]


def test_rows_in_the_gap_between_windows_belong_to_none(make):
    operator = make(sliding(10, 30))
    feed(operator, [(1, 0, 5), (1, 0, 15), (1, 0, 31)])
    assert [(r[TS_COLUMN], r["count"]) for r in fire(operator, 1000).rows()] == [(9, 1), (39, 1)]
    assert operator.context.metrics.late_records_dropped == 0


def test_nulls_as_in_sql(make):
    every = [(f, "v") for f in ("count", "sum", "min", "max", "mean", "var", "std", "first", "last")]
    operator = make(tumbling(10), ("count", None), *every)
    feed(operator, [(1, None, 0), (2, None, 0), (2, 7, 1), (3, 4, 2), (3, 8, 1), (3, None, 9)])
    rows = {r["k"]: [r["count"], *[r[f"{f}_v"] for f, _ in every]] for r in fire(operator, 100).rows()}
    assert rows[1] == [1, 0, *[None] * 8]
    assert rows[2] == [2, 1, 7, 7, 7, 7.0, None, None, 7, 7]
    assert rows[3] == [3, 2, 12, 4, 8, 6.0, 8.0, pytest.approx(8**0.5), 8, 4]


def test_first_and_last_of_equal_times_go_by_arrival(make):
    operator = make(tumbling(10), ("first", "v"), ("last", "v"))
    feed(operator, [(1, 1, 5), (1, 2, 5)])
    feed(operator, [(1, 3, 5)])
    (row,) = fire(operator, 100).rows()
    assert (row["first_v"], row["last_v"]) == (1, 3)


@pytest.mark.parametrize(
    ("kind", "values", "least", "greatest"),
    [
        (pa.int8(), [3, -4], -4, 3),
        (pa.float32(), [1.5, -0.5], -0.5, 1.5),
        (pa.date32(), [dt.date(2024, 1, 2), dt.date(1960, 1, 1)], dt.date(1960, 1, 1), dt.date(2024, 1, 2)),
        (
            pa.timestamp("ms"),
            [dt.datetime(2024, 1, 2), dt.datetime(2023, 1, 2)],
            dt.datetime(2023, 1, 2),
            dt.datetime(2024, 1, 2),
        ),
        (pa.bool_(), [True, False], False, True),
        (pa.float64(), [float("nan"), 2.0], 2.0, None),
    ],
)
def test_least_and_greatest_of_every_type(make, kind, values, least, greatest):
    schema = SCHEMA.set(1, pa.field("v", kind))
    operator = make(tumbling(10), ("min", "v"), ("max", "v"), schema=schema)
    feed(operator, [(1, v, 0) for v in [*values, None]], schema=schema)
    (row,) = fire(operator, 100).rows()
    assert row["min_v"] == least
    if greatest is None:
        assert row["max_v"] != row["max_v"], "NaN is the greatest"
    else:
        assert row["max_v"] == greatest


def test_an_accumulator_may_have_the_name_of_a_key(make):
    schema = pa.schema([pa.field("sum_v", pa.int64()), *list(SCHEMA)[1:]])
    operator = make(tumbling(10), ("mean", "v"), schema=schema, key=("sum_v",))
    operator.process_batch(
        Batch(pa.RecordBatch.from_pydict({"sum_v": [9], "v": [5], TS_COLUMN: [0]}, schema)), 0, Out()
    )
    (row,) = fire(operator, 100).rows()
    assert (row["sum_v"], row["mean_v"]) == (9, 5.0)


def test_allowed_lateness_fires_again_for_the_keys_that_got_rows(make):
    operator = make(tumbling(10), lateness=10)
    feed(operator, [(1, 0, 5), (2, 0, 5)])
    assert len(fire(operator, 9).rows()) == 2
    out = Out()
    feed(operator, [(1, 0, 6), (1, 0, 7), (3, 0, 12)], out)
    assert [(r["k"], r["count"], r[TS_COLUMN]) for r in out.rows()] == [(1, 3, 9)]
    assert [r["k"] for r in fire(operator, 19).rows()] == [3]
    feed(operator, [(1, 0, 6)])
    assert operator.context.metrics.late_records_dropped == 1


def test_times_beyond_reason_are_an_error(make):
    operator = make(tumbling(10))
    with pytest.raises(PenstockError, match="73,000 years"):
        feed(operator, [(1, 0, 1 << 62)])


def test_a_window_without_keyed_state(make):
    operator = make(tumbling(10))
    operator.context.keyed_state = None
    with pytest.raises(GraphError, match="needs keyed state"):
        operator.open(operator.context)


def test_the_watermark_is_saved_with_its_range(make):
    operator = make(tumbling(10))
    fire(operator, 25)
    (saved,) = operator.snapshot(Barrier(1), Out()).operator
    assert (saved.name, saved.mode) == ("watermark", "union")
    assert saved.items == ({"hash_low": HASH_MIN, "hash_high": HASH_MAX, "watermark": 25},)
    again = make(tumbling(10), restored=(saved,))
    feed(again, [(1, 0, 19), (1, 0, 20)])
    assert again.context.metrics.late_records_dropped == 1


def test_after_scaling_in_each_range_keeps_its_own_lateness(make):
    halves = [
        {"hash_low": HASH_MIN, "hash_high": -1, "watermark": 40},
        {"hash_low": 0, "hash_high": HASH_MAX, "watermark": 19},
    ]
    restored = (SimpleNamespace(name="watermark", items=halves),)
    operator = make(tumbling(10), restored=restored)
    keys = pa.record_batch({"k": pa.array(range(20))})
    ahead = [k for k, h in enumerate(hash_columns(keys, ("k",)).tolist()) if h < 0]
    feed(operator, [(k, 0, 25) for k in range(20)])
    assert operator.context.metrics.late_records_dropped == len(ahead)
    assert {r["k"] for r in fire(operator, 29).rows()} == set(range(20)) - set(ahead)


@pytest.mark.parametrize("window", [tumbling(10), sliding(20, 10)], ids=["tumbling", "sliding"])
def test_after_scaling_in_late_rows_fire_again_what_their_former_subtask_had_fired(make, window):
    """And nothing of windows that were over for their key, or that only another key's subtask had fired."""
    halves = [
        {"hash_low": HASH_MIN, "hash_high": -1, "watermark": 25},
        {"hash_low": 0, "hash_high": HASH_MAX, "watermark": 5},
    ]
    operator = make(window, restored=(SimpleNamespace(name="watermark", items=halves),), lateness=10)
    keys = pa.record_batch({"k": pa.array(range(20))})
    ahead = {k for k, h in enumerate(hash_columns(keys, ("k",)).tolist()) if h < 0}
    out = Out()
    feed(operator, [(k, 0, 15) for k in range(20)], out)
    assert {(r["k"], r[TS_COLUMN]) for r in out.rows()} == {(k, 19) for k in ahead}
    again = {(r["k"], r[TS_COLUMN]) for r in fire(operator, 29).rows()}
    ends = (19,) if window["kind"] == "tumbling" else (19, 29)
    others = {(k, end) for k in set(range(20)) - ahead for end in ends}
    assert again == others | {(k, 29) for k in ahead if 29 in ends}


def test_watermarks_by_range():
    pieces = [
        {"hash_low": 0, "hash_high": 9, "watermark": 5},
        {"hash_low": 10, "hash_high": 19, "watermark": 7},
        {"hash_low": 20, "hash_high": 29, "watermark": 5},
    ]
    marks = RangeWatermarks.restored(HashRange(5, 24), pieces)
    assert marks.low == 5
    assert marks.ahead() == [(HashRange(10, 19), 7)]
    assert [(i["hash_low"], i["hash_high"], i["watermark"]) for i in marks.items()] == [
        (5, 9, 5),
        (10, 19, 7),
        (20, 24, 5),
    ]
    marks.advance(6)
    assert marks.differ
    marks.advance(7)
    assert not marks.differ
    assert marks.items() == ({"hash_low": 5, "hash_high": 24, "watermark": 7},)
    assert RangeWatermarks.restored(HashRange(0, 99), pieces).low < 0, "what nobody saved saw no watermark"
