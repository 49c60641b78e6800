"""The log of changed entries: how large it gets, and what it may forget."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.keygroup import ALL_HASHES
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.row_spec import ENTRY, RowSpec
from penstock.state.log.segment_columns import DELETED
from penstock.state.log.segment_log import SegmentLog
from penstock.state.memory.limits import StateLimits
from penstock.state.tables.changes import ChangeLog

SPEC = RowSpec(
    pa.schema([("k", pa.int64())]),
    values=(pa.field("value", pa.binary()),),
    entries=(pa.field(ENTRY, pa.int64()),),
)


@pytest.fixture
def saved():
    return SegmentLog(ALL_HASHES)


@pytest.fixture
def log(saved):
    return ChangeLog(SPEC, saved)


def put(log, entries, value=b""):
    slots = np.zeros(len(entries), np.int32)
    log.put(slots, [pa.array(entries, pa.int64())], [pa.array([value] * len(entries), pa.binary())])


def remove(log, entries):
    log.remove(np.zeros(len(entries), np.int32), [pa.array(entries, pa.int64())])


def held(log):
    """The changes in memory: (entry, value or None where it is gone)."""
    frozen = log.freeze(None)
    rows = [row for part in frozen.parts for row in part.to_pylist()] if frozen else []
    return [(row[ENTRY], None if row[DELETED] else row["value"]) for row in rows]


def test_one_entry_that_grows_does_not_fill_the_log(log):
    most = 0
    for size in range(5_000, 1_000_000, 5_000):  # 100 MB of versions, 1 MB of them the last
        put(log, [7], bytes(size))
        most = max(most, log.nbytes)
    assert most < 20 << 20
    assert held(log)[-1] == (7, bytes(995_000))


def test_a_large_log_is_not_reduced_with_every_batch(saved, monkeypatch):
    saved.limits = StateLimits(large_changes_bytes=1000)
    log = ChangeLog(SPEC, saved)
    reductions, reduce = [], log.reduce
    monkeypatch.setattr(log, "reduce", lambda: (reductions.append(1), reduce()))
    for entry in range(4096):
        put(log, [entry], b"x" * 100)
    assert 3 < len(reductions) < 40, "as often as it doubles"
    assert [entry for entry, _ in held(log)] == list(range(4096))


def test_entries_that_come_and_go_leave_nothing_where_nothing_is_saved(saved):
    saved.limits = StateLimits(many_changes=100)
    log = ChangeLog(SPEC, saved)
    put(log, [-1], b"stays")
    for first in range(0, 5000, 50):
        numbers = list(range(first, first + 50))
        put(log, numbers)
        remove(log, numbers)
        assert log.nbytes < 10_000
    log.reduce()
    assert held(log) == [(-1, b"stays")]
    put(log, [1])
    remove(log, [1])
    log.clear(np.zeros(1, np.int32))
    log.reduce()
    assert log.nbytes == 0
    assert log.freeze(None) is None


def test_deletions_stay_where_something_is_saved_that_they_may_hide(log, saved):
    put(log, [1, 2], b"old")
    assert len(held(log)) == 2
    saved.append(saved.next_position())
    remove(log, [1])
    put(log, [3], b"new")
    log.reduce()
    assert held(log) == [(1, None), (3, b"new")]


def test_changes_of_a_key_stay_in_order_in_a_segment(log):
    """A clearing that comes after the puts that followed it would remove them at a restore."""
    batch = pa.record_batch({"k": pa.array([1, 2])})
    index = KeyIndex(SPEC.key_schema)
    both = index.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()
    log.clear(both)
    entries = np.arange(1000)
    log.put(both[entries % 2], [pa.array(entries)], [pa.array([b""] * len(entries))])
    (table,) = log.freeze(index.view()).whole()
    rows = [(row["k"], row[ENTRY]) for row in table.to_pylist()]
    for key in (1, 2):
        assert [entry for k, entry in rows if k == key] == [None, *range(key - 1, 1000, 2)]
