"""A running table far larger than its memory stays within it: rows, eviction, freezes and their encoding.

What is counted is what NumPy and Arrow have in fact allocated, whatever the table says of itself.
"""

import threading
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from tests.support.sizes import sizes

from penstock.config.settings import JobSettings
from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.state.cells.accumulators import AccumulatorInput, AccumulatorSpec, PaneTableSpec
from penstock.state.log.segments import SegmentWriter
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

SPEC = PaneTableSpec(
    pa.schema([pa.field("k", pa.int64())]), (AccumulatorSpec("total", "int64", "sum"),), single_pane=True
)
KEYS, BATCH, BATCHES = 200_000, 20_000, 40
WIDE = PaneTableSpec(
    SPEC.key_schema, tuple(AccumulatorSpec(f"s{i}", "int64", "sum") for i in range(64)), single_pane=True
)
WIDE_KEYS, ADDED, GROUP = 60_000, 2048, 256


class Meter:
    """Most bytes of arrays and columns since the last look, beside those that were there before."""

    def __init__(self):
        self._arrow = pa.total_allocated_bytes()
        self._most_arrow = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        tracemalloc.start()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._thread.join()
        tracemalloc.stop()

    def _watch(self):
        while not self._stopping.wait(0.0005):
            self._most_arrow = max(self._most_arrow, pa.total_allocated_bytes() - self._arrow)

    def take(self):
        """Return the peak and begin anew."""
        _, most = tracemalloc.get_traced_memory()
        found = most + self._most_arrow
        tracemalloc.reset_peak()
        self._most_arrow = 0
        return found


def opened(tmp_path, limit, snapshots=()):
    request = KeyedStateRequest(
        uid="op",
        snapshots=snapshots,
        hash_range=ALL_HASHES,
        settings=JobSettings(state_backend="rocksdb", managed_memory_bytes=limit),
        read=lambda file: file.inline,
        directory=tmp_path,
        writer="run/v/0/0",
        budget=MemoryBudget(limit),
        limits=sizes(),
    )
    return open_keyed_state(request), request.budget


def add(table, keys, found):
    """One to each key, in pieces as an operator gives them; `found` is what each row then has."""
    for first in range(0, len(keys), table.most_rows):
        batch = pa.record_batch({"k": pa.array(keys[first : first + table.most_rows])})
        given = AccumulatorInput(np.ones(batch.num_rows, np.int64), np.zeros(0, np.uint8))
        words = table.run(key_columns(batch, ("k",)), hash_columns(batch, ("k",)), [given])
        found[first : first + batch.num_rows] = words[1]


def checkpoint(store):
    """Freeze, copy, encode and name; returns the rows written."""
    (frozen,) = store.freeze()
    while not frozen.copy_pages(16):
        pass
    encoded = frozen.encode()
    frozen.durable({e.position: FileRef(path="x", length=len(e.data)) for e in encoded})
    return sum(e.entry.rows for e in encoded)


def warm_up(folder):
    """Import and compile what a first eviction and a first checkpoint import and compile."""
    store, _ = opened(folder, 1 << 20)
    table = store.running_table("running", SPEC)
    add(table, np.arange(BATCH), np.zeros(BATCH, np.int64))
    checkpoint(store)
    store.close()


def running_counts(keys):
    """How often each key has come up to each row."""
    seen = {}
    return [seen.setdefault(key, [0]).append(0) or len(seen[key]) - 1 for key in keys.tolist()]


@pytest.mark.parametrize("limit", [2 << 20, pytest.param(4 << 20, marks=pytest.mark.nightly)])
def test_state_stays_within_its_memory_at_every_step(tmp_path, limit):
    rng = np.random.default_rng(5)
    keys = rng.integers(0, KEYS, (BATCHES, BATCH))
    found = np.zeros((BATCHES, BATCH), np.int64)
    warm_up(tmp_path / "before")
    store, budget = opened(tmp_path / "state", limit)
    table = store.running_table("running", SPEC)
    peaks, uploaded = {"rows": [], "checkpoint": []}, 0
    with Meter() as meter:
        for number in range(BATCHES):
            add(table, keys[number], found[number])
            peaks["rows"].append(meter.take())
            if number % 10 == 9:
                uploaded += checkpoint(store)
                peaks["checkpoint"].append(meter.take())
    store.close()
    assert found.reshape(-1).tolist() == running_counts(keys.reshape(-1))
    assert uploaded > KEYS, "most of it had left memory"
    for what, seen in peaks.items():
        assert max(seen) <= limit, f"{what}: {max(seen):,} bytes of {limit:,}, as it says {budget.peak_bytes:,}"
    assert limit // 4 < budget.peak_bytes <= limit


def wide_state():
    """Return the snapshot of rows of 65 words, each word the row's key."""
    keys, schema = np.arange(WIDE_KEYS), WIDE.segment_schema
    hashes = hash_columns(pa.record_batch({"k": pa.array(keys)}), ("k",))
    order = np.argsort(hashes)
    columns = {"__key_hash": hashes[order], "__namespace": np.zeros(WIDE_KEYS, np.int64)}
    columns |= {"__deleted": np.zeros(WIDE_KEYS, np.bool_)}
    rows = pa.table([pa.array(columns.get(field.name, order)) for field in schema], schema=schema)
    writer = SegmentWriter(schema, 1, limits=sizes().changed(group_rows=GROUP))
    encoded = writer.write([rows])
    segment = encoded.stored(FileRef(path="x", length=len(encoded.data), inline=encoded.data), "savepoint")
    state = {"hash_low": HASH_MIN, "hash_high": HASH_MAX, "segments": (segment,)}
    return KeyedStateSnapshot(uid="op", state="running", schema=schema_to_text(schema), **state)


def test_wide_rows_stay_within_their_memory_from_the_restore_on(tmp_path):
    warm_up(tmp_path / "before")
    limit, saved, peaks = 16 << 20, wide_state(), {}
    store, budget = opened(tmp_path / "state", limit, (saved,))
    with Meter() as meter:
        table = store.running_table("running", WIDE)
        peaks["restore"] = meter.take()
        for first in range(0, WIDE_KEYS, ADDED):
            batch = pa.record_batch({"k": pa.array(np.arange(first, min(first + ADDED, WIDE_KEYS)))})
            for piece in table.batches(batch):
                given = [AccumulatorInput(np.ones(piece.num_rows, np.int64), np.zeros(0, np.uint8))] * 64
                words = table.run(key_columns(piece, ("k",)), hash_columns(piece, ("k",)), given)
                assert (words[1:] == np.asarray(piece.column("k")) + 1).all()
        peaks["rows"] = meter.take()
        assert checkpoint(store) == WIDE_KEYS
        peaks["checkpoint"] = meter.take()
    store.close()
    for what, peak in {**peaks, "report": budget.peak_bytes}.items():
        assert peak <= limit, f"{what}: {peak:,} bytes of {limit:,}"
