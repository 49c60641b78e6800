"""Windows of processing time: the clock fires them, event time passes through, a restore fires what has ended."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from tests.support.sizes import given, sizes

from penstock.config.settings import JobSettings
from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN, HashRange
from penstock.core.snapshot import FileRef
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.restore_plan import clip_keyed
from penstock.kernels.keys.hashing import hash_columns
from penstock.operators.aggregates.combine import combiner_for
from penstock.operators.registry import create_operator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
TIMED = SCHEMA.append(pa.field(TS_COLUMN, pa.int64(), nullable=False))
TUMBLING = {"kind": "tumbling", "size_us": 10_000_000, "slide_us": 10_000_000, "offset_us": 0, "time": "processing"}
AGGREGATES = [
    {"fn": "count", "column": None, "alias": "n"},
    {"fn": "first", "column": "v", "alias": "first"},
    {"fn": "last", "column": "v", "alias": "last"},
]
SUMS = [AGGREGATES[0], {"fn": "sum", "column": "v", "alias": "total"}, {"fn": "max", "column": "v", "alias": "most"}]
SLIDING = TUMBLING | {"kind": "sliding", "slide_us": 5_000_000}


@pytest.fixture
def make(bench, tmp_path):
    stores = []

    def made(window=TUMBLING, schema=SCHEMA, saved=(), hash_range=ALL_HASHES, aggregates=AGGREGATES):
        config = {"key": ["k"], "window": window, "aggregates": aggregates}
        spec = OperatorSpec(uid="w", name="Window", kind="processing_window", config=config, stateful=True)
        keyed = tuple(c for s in saved for k in s[0] if (c := clip_keyed(k, hash_range)) is not None)
        restored = tuple(o for s in saved for o in s[1])
        request = KeyedStateRequest(
            uid="w",
            snapshots=keyed,
            hash_range=hash_range,
            settings=bench.context(spec).settings,
            read=lambda file: file.inline,
            directory=tmp_path / str(len(stores)),
            writer=f"run/v/{len(stores)}/0",
            budget=MemoryBudget(1 << 30),
            limits=sizes(),
            in_parts=True,
        )
        stores.append(open_keyed_state(request))
        operator = create_operator("processing_window")
        changes = {"keyed_state": stores[-1], "restored": restored, "hash_range": hash_range}
        operator.open(bench.context(spec, schema, **changes))
        return operator

    yield made
    for store in stores:
        store.close()


def feed(operator, rows, out, schema=SCHEMA):
    columns = [pa.array(c, pa.int64()) for c in zip(*rows, strict=True)]
    operator.process_batch(Batch(pa.RecordBatch.from_arrays(columns, schema=schema)), 0, out)


def save(operator, out):
    taken = operator.snapshot(Barrier(1), out)
    (frozen,) = taken.keyed
    while not frozen.copy_pages(1):
        pass
    frozen.durable({e.position: FileRef(inline=e.data, length=len(e.data)) for e in frozen.encode()})
    return [frozen.snapshot()], taken.operator


def inside(key, owned):
    return int(hash_columns(pa.RecordBatch.from_pydict({"k": [key]}), ("k",))[0]) in owned


def seconds(row):
    return tuple(row[c].timestamp() - 1_700_000_000 for c in ("window_start", "window_end"))


def test_a_window_fires_when_the_clock_reaches_its_end(make, bench, out):
    operator = make()
    assert operator.next_timer_ms is None
    feed(operator, [(1, 5), (2, 6), (1, 7)], out)
    assert operator.next_timer_ms == bench.clock.now_ms() + 10_000
    bench.clock.advance(9_999)
    operator.process_time(bench.clock.now_ms(), out)
    feed(operator, [(1, 8)], out)
    assert out.rows == []
    bench.clock.advance(1)
    operator.process_time(bench.clock.now_ms(), out)
    assert [(r["k"], r["n"], r["first"], r["last"]) for r in out.rows] == [(1, 3, 5, 8), (2, 1, 6, 6)]
    assert {seconds(r) for r in out.rows} == {(0, 10)}
    assert {r[TS_COLUMN] for r in out.rows} == {1_700_000_010_000_000 - 1}
    assert operator.next_timer_ms is None


def test_a_batch_that_comes_before_the_timer_fires_what_is_due(make, bench, out):
    operator = make()
    feed(operator, [(1, 5)], out)
    bench.clock.advance(10_500)
    feed(operator, [(1, 6)], out)
    assert [(r["n"], *seconds(r)) for r in out.rows] == [(1, 0, 10)]
    assert operator.next_timer_ms == 1_700_000_020_000


def test_sliding_windows_fire_one_after_the_other(make, bench, out):
    operator = make(SLIDING)
    feed(operator, [(1, 5)], out)
    assert operator.next_timer_ms == 1_700_000_005_000
    bench.clock.advance(60_000)
    operator.process_time(bench.clock.now_ms(), out)
    assert [seconds(r) for r in out.rows] == [(-5, 5), (0, 10)]


def test_event_time_is_not_looked_at_and_watermarks_pass(make, bench, out):
    operator = make(schema=TIMED)
    feed(operator, [(1, 5, -7), (1, 6, 10**17)], out, TIMED)
    operator.process_watermark(Watermark(10**16), out)
    assert out.elements == [Watermark(10**16)]
    operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
    assert [r["n"] for r in out.rows] == [2]
    assert out.watermarks == [10**16, MAX_TIMESTAMP]
    assert isinstance(out.elements[1], Batch), "what the end of input closes comes before its watermark"
    feed(operator, [(1, 5, 0)], out, TIMED)
    assert operator.next_timer_ms == 1_700_000_020_000, "a window that has fired is not entered again"


def test_a_clock_that_is_set_back_makes_no_row_late(make, bench, out):
    operator = make()
    feed(operator, [(1, 5)], out)
    bench.clock.advance(10_000)
    operator.process_time(bench.clock.now_ms(), out)
    bench.clock._elapsed_ms -= 5_000
    feed(operator, [(1, 6)], out)
    assert operator._windows._context.metrics.late_records_dropped == 0
    bench.clock.advance(15_000)
    operator.process_time(bench.clock.now_ms(), out)
    assert [(r["n"], *seconds(r)) for r in out.rows] == [(1, 0, 10), (1, 10, 20)]


def test_windows_that_have_ended_meanwhile_fire_after_a_restore(make, bench, out):
    operator = make()
    feed(operator, [(k, 5) for k in range(20)], out)
    saved = save(operator, out)
    bench.clock.advance(100_000)
    halves = [HashRange(HASH_MIN, -1), HashRange(0, HASH_MAX)]
    for half in halves:
        restored = make(saved=[saved], hash_range=half)
        assert restored.next_timer_ms == 1_700_000_010_000
        restored.process_time(bench.clock.now_ms(), out)
        assert restored.next_timer_ms is None
    assert sorted(r["k"] for r in out.rows) == list(range(20))
    assert {seconds(r) for r in out.rows} == {(0, 10)}


def test_windows_whose_state_is_large_are_loaded_before_their_timer_is_set(make, bench, out, monkeypatch):
    """Rows that come before a timer fire what is due: no key may be missing then."""
    given(monkeypatch, restored_at_once_rows=2, loaded_rows=1, group_rows=2)
    operator = make()
    feed(operator, [(k, 5) for k in range(20)], out)
    saved = save(operator, out)
    bench.clock.advance(100_000)
    restored = make(saved=[saved])
    assert restored.next_timer_ms == 1_700_000_010_000
    feed(restored, [(k, 5) for k in range(20)], out)
    assert sorted(r["k"] for r in out.rows) == list(range(20))
    assert {seconds(r) for r in out.rows} == {(0, 10)}


def test_two_subtasks_that_had_fired_differently_become_one(make, bench, out):
    halves = [HashRange(HASH_MIN, -1), HashRange(0, HASH_MAX)]
    saved = []
    for number, half in enumerate(halves):
        operator = make(hash_range=half)
        feed(operator, [(k, 5) for k in range(20) if inside(k, half)], out)
        if number:
            bench.clock.advance(10_000)
            operator.process_time(bench.clock.now_ms(), out)
        saved.append(save(operator, out))
    out.elements.clear()
    one = make(saved=saved)
    one.process_time(bench.clock.now_ms(), out)
    first = [k for k in range(20) if inside(k, halves[0])]
    assert 0 < len(first) < 20
    assert sorted(r["k"] for r in out.rows) == first, "the other half had fired already"
    feed(one, [(k, 5) for k in range(20)], out)
    one.process_watermark(Watermark(MAX_TIMESTAMP), out)
    assert one._windows._context.metrics.late_records_dropped == 0
    assert len(out.rows) == len(first) + 20
    assert out.rows[-1]["window_start"] == dt.datetime.fromtimestamp(1_700_000_010, dt.UTC)


@pytest.mark.parametrize("window", [TUMBLING, SLIDING, TUMBLING | {"offset_us": 3_000_000}])
def test_rows_that_come_combined_count_as_those_they_stand_for(make, bench, out, window):
    """Some batches combined and some not, the clock going on between them, against a model that adds up rows."""
    config = {"key": ["k"], "window": window, "aggregates": SUMS}
    combiner = combiner_for(config, SCHEMA, JobSettings(combine_min_rows=1, combine_ratio=1.0))
    operator, random = make(window, aggregates=SUMS), np.random.default_rng(5)
    sums = {}
    for number in range(12):
        keys, values = random.integers(0, 5, 40), random.integers(-9, 9, 40)
        rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], schema=SCHEMA)
        fewer = combiner.combine(rows)
        assert fewer.num_rows == len(set(keys.tolist()))
        combined = number % 3 > 0
        operator.process_batch(Batch(fewer if combined else rows, combined=combined), 0, out)
        now, size, slide = bench.clock.now_ms() * 1000, window["size_us"], window["slide_us"]
        start = now - (now - window["offset_us"]) % slide
        for first in range(start, now - size, -slide):
            for key, value in zip(keys.tolist(), values.tolist(), strict=True):
                sums.setdefault((first, key), []).append(value)
        bench.clock.advance(1_700)
    operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
    found = {(round(r["window_start"].timestamp() * 1e6), r["k"]): (r["n"], r["total"], r["most"]) for r in out.rows}
    assert found == {at: (len(v), sum(v), max(v)) for at, v in sums.items()}
    assert operator._windows._context.metrics.late_records_dropped == 0


def test_first_and_last_are_not_combined_as_the_sender_does_not_know_when_rows_arrive():
    always = JobSettings(combine_min_rows=1, combine_ratio=1.0)
    for aggregates, combines in ((SUMS, True), (AGGREGATES, False)):
        config = {"key": ["k"], "window": TUMBLING, "aggregates": aggregates}
        assert (combiner_for(config, SCHEMA, always) is not None) == combines
    assert combiner_for({"key": ["k"], "window": TUMBLING, "aggregates": AGGREGATES}, TIMED, always) is not None
