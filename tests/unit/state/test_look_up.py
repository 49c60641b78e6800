"""One key of a live table is found wherever it lies, and looking makes nothing."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from tests.support.sizes import given

from penstock.core.clock import ManualClock
from penstock.core.keygroup import HASH_MAX, HASH_MIN, HashRange, key_group_of
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.keys.key_index import HASH, ROWS, KeyCounts, KeyIndex
from penstock.state.log.ttl import Ttl, TtlClock

ONE_PANE = PaneTableSpec(
    pa.schema([pa.field("k", pa.int64())]), (AccumulatorSpec("total", "int64", "sum"),), single_pane=True
)


def asked(key, kind=None):
    batch = pa.record_batch({"k": pa.array([key], kind or pa.int64())})
    return key_columns(batch, ("k",)), hash_columns(batch, ("k",))


def looked_up(table, key, most=100):
    found = table.look_up(*asked(key), most)
    assert found.schema == table.spec.segment_schema
    found.validate(full=True)
    return [(row["k"], row["__namespace"], row["__rows"], row["total"]) for row in found.to_pylist()]


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_an_index_finds_what_it_holds_and_nothing_else(kind):
    keys = [None, *(str(n) if kind == pa.string() else n for n in range(3000))]
    held, index = keys[:2000], KeyIndex(pa.schema([pa.field("k", kind)]))
    batch = pa.record_batch({"k": pa.array(held, kind)})
    slots = index.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).tolist()
    for key, slot in zip(held, slots, strict=True):
        assert index.find(*asked(key, kind)).tolist() == [slot]
    for key in keys[2000:]:
        assert index.find(*asked(key, kind)).tolist() == []
    assert index.count == len(held), "nothing was made"


def test_two_keys_of_one_hash_are_told_apart():
    index = KeyIndex(pa.schema([pa.field("k", pa.string())]))
    same = np.array([77], np.int64)
    for number, key in enumerate(["a", "b", "c"]):
        columns, _ = asked(key, pa.string())
        assert index.find(columns, same).tolist() == []
        assert index.upsert(columns, same).tolist() == [number]
    assert [index.find(asked(key, pa.string())[0], same).tolist() for key in "abc"] == [[0], [1], [2]]


def test_panes_of_a_key_in_order_and_no_more_than_asked_for(state):
    table = state.open().pane_table("panes", state.spec)
    state.update(table, [1, 2, 1, 1], [30, 10, 10, 30], [5, 6, 7, 8])
    assert looked_up(table, 1) == [(1, 10, 1, 7), (1, 30, 2, 13)]
    assert looked_up(table, 1, most=1) == [(1, 10, 1, 7)]
    assert looked_up(table, 9) == []
    table.drop_below(20)
    assert looked_up(table, 1) == [(1, 30, 2, 13)]
    assert looked_up(table, 2) == []
    assert table.counts().rows.tolist() == [1, 0]


def test_looking_between_freeze_and_copy_shows_what_is_there_now(state):
    table = state.open().pane_table("panes", state.spec)
    state.update(table, [1], [10], [5])
    frozen = table.freeze()
    state.update(table, [1], [10], [7])
    assert looked_up(table, 1) == [(1, 10, 2, 12)]
    again = state.open([state.upload(frozen)]).pane_table("panes", state.spec)
    assert looked_up(again, 1) == [(1, 10, 1, 5)], "what was frozen is as it was"


@pytest.mark.parametrize("spec", [None, ONE_PANE], ids=["rocksdb", "file"])
def test_cold_rows_are_found_and_stay_cold(state, spec):
    table = state.open(backend="rocksdb", memory=3 << 20).pane_table("panes", spec or state.spec)
    keys, width = 60_000, 4_000
    for first in range(0, keys, width):
        state.update(table, list(range(first, first + width)), [0] * width, list(range(first, first + width)))
    hot = len(table.counts().hashes)
    assert hot < keys, "some of the keys have left memory"
    for key in range(0, keys, 997):
        assert looked_up(table, key) == [(key, 0, 1, key)]
    assert looked_up(table, keys) == []
    assert len(table.counts().hashes) == hot
    state.update(table, [0], [0], [5])
    assert looked_up(table, 0) == [(0, 0, 2, 5)], "what is in memory is newer"


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_value_whose_time_has_passed_is_not_shown_though_no_sweep_has_removed_it(state, backend, monkeypatch):
    given(monkeypatch, hot_keys=1, incoming_keys=1)
    clock = ManualClock(start_ms=1000)
    time = TtlClock(clock)
    rows = state.open(backend=backend).row_state(state.spec.key_schema, evictable=True)
    table = rows.value("value", (pa.field("n", pa.int64()),), Ttl(time, duration_us=10_000_000))
    keys = list(range(8))
    for key in keys:
        table.write(rows.upsert(*asked(key)), [pa.array([key])])
        rows.settle()
        clock.advance(1000)
        time.tick()
    held = table.counts().total
    assert (held == len(keys)) if backend == "hashmap" else (held < len(keys)), "some keys have left memory"

    def shown():
        found = [table.look_up(*asked(key), 10).to_pylist() for key in keys]
        return [row["n"] for one in found for row in one]

    assert shown() == keys
    clock.advance(6000)  # the first five were written 14 to 10 seconds ago
    time.tick()
    assert shown() == keys[5:]
    assert table.counts().total == held, "a question removes nothing"
    table.write(rows.upsert(*asked(0)), [pa.array([100])])
    assert shown() == [100, *keys[5:]]


def test_rows_of_a_join_in_order_of_time_wherever_they_lie(state):
    fields = (pa.field("s", pa.string()), pa.field("n", pa.list_(pa.int64())))
    rows = state.open(backend="rocksdb", memory=1 << 20).row_state(state.spec.key_schema)
    table = rows.join_buffer("left", fields)
    expected = []
    for number in range(30):
        keys = np.arange(2000) % 97
        columns = key_columns(pa.record_batch({"k": pa.array(keys)}), ("k",))
        slots = rows.upsert(columns, hash_columns(pa.record_batch({"k": pa.array(keys)}), ("k",))).copy()
        times = (np.arange(2000) * 7919 + number * 31) % 100_000
        texts = [f"{number}-{row}-{'x' * (row % 50)}" for row in range(2000)]
        expected += [(time, text) for key, time, text in zip(keys, times.tolist(), texts, strict=True) if key == 5]
        table.add(slots, times, [pa.array(texts), pa.array([[row] for row in range(2000)])])
        rows.settle()
    table.clean(40_000)
    expected = sorted(row for row in expected if row[0] > 40_000)

    def found(key, most=10_000):
        shown = table.look_up(*asked(key), most)
        assert shown.schema == table.spec.segment_schema
        shown.validate(full=True)
        return [(row["__namespace"], row["s"]) for row in shown.to_pylist()]

    assert sorted(found(5)) == expected
    assert [time for time, _ in found(5)] == [time for time, _ in expected]
    assert found(5, most=3) == found(5)[:3]
    assert found(1000) == []
    assert table.counts().total >= len(expected)
    pages = pages_of(table, 7)
    assert [row["k"] for row in pages] == sorted({row["k"] for row in pages}, key=hash_of)
    assert len(pages) == len({row["k"] for row in pages}), "a key of several files is one"
    assert sum(row[ROWS] for row in pages) == table.counts().total
    assert next(row[ROWS] for row in pages if row["k"] == 5) >= len(expected)


def hash_of(key):
    return int(hash_columns(pa.record_batch({"k": pa.array([key])}), ("k",))[0])


def pages_of(table, most):
    """All keys of a table, `most` at a time."""
    found, low = [], HASH_MIN
    while rows := table.counts().page(HashRange(low, HASH_MAX), most)[0].to_pylist():
        assert len(rows) <= most
        found += rows
        low = rows[-1][HASH] + 1
    return found


def test_keys_of_one_hash_come_together_and_those_without_rows_do_not():
    hashes = np.array([5, -7, 5, 9, -7, 1], np.int64)
    keys = SimpleNamespace(
        schema=pa.schema([("k", pa.int64())]), hashes=hashes, gather=lambda slots: [pa.array(slots.astype(np.int64))]
    )
    counts = KeyCounts(hashes, np.array([1, 2, 3, 4, 0, 6]), ((keys, 6),))
    page = lambda low, high, most: [
        (row["k"], row[HASH], row[ROWS]) for row in counts.page(HashRange(low, high), most)[0].to_pylist()
    ]
    assert page(HASH_MIN, HASH_MAX, 3) == [(1, -7, 2), (5, 1, 6), (0, 5, 1), (2, 5, 3)]
    assert page(6, HASH_MAX, 3) == [(3, 9, 4)]
    assert page(-7, -7, 3) == [(1, -7, 2)]
    assert page(10, HASH_MAX, 3) == []


def test_rows_by_key_group_are_those_of_the_keys():
    hashes = np.random.default_rng(1).integers(-(1 << 63), (1 << 63) - 1, 5000)
    counts = KeyCounts(hashes, np.arange(5000) % 7)
    plain = {}
    for key_hash, rows in zip(hashes.tolist(), (np.arange(5000) % 7).tolist(), strict=True):
        group = key_group_of(key_hash, 64)
        plain[group] = plain.get(group, 0) + rows
    assert counts.by_group(64) == plain
    assert counts.total == sum(plain.values())
    part = counts.by_group(64, most=1000)
    assert sum(part.values()) == pytest.approx(counts.total, rel=0.1), "of a part of the keys, scaled"
    assert KeyCounts(hashes[:0], hashes[:0]).by_group(64) == {}
