"""Running aggregates, windows and sessions over texts of more than managed memory: right, counted, within it."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from tests.support.sizes import sizes

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.errors import PenstockError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

SCHEMA = pa.schema(
    [pa.field("k", pa.int64()), pa.field("t", pa.string()), pa.field(TS_COLUMN, pa.int64(), nullable=False)]
)
AGGREGATES, FOUR = (
    [{"fn": fn, "column": "t", "alias": fn} for fn in fns] for fns in (("min", "last"), ("min", "max", "first", "last"))
)
WINDOWS = {
    "running_aggregate": {},
    "window_aggregate": {"window": {"kind": "sliding", "size_us": 100, "slide_us": 50}},
    "session_aggregate": {"window": {"kind": "session", "gap_us": 100}},
}
STATES = {"running_aggregate": "running", "window_aggregate": "panes", "session_aggregate": "sessions"}
KEYS, SIZE, LIMIT, ROUNDS = 12_000, 1_000, 6 << 20, 2


def text(key, number):
    """What a key has in a round: the least comes last."""
    return f"{ROUNDS - number}-{key:06}-" + "x" * 410


class Out:
    def __init__(self):
        self.rows = {}

    def batch(self, batch):
        for row in batch.data.to_pylist():
            self.rows[row["k"]] = (row["min"], row["last"])

    def watermark(self, watermark):
        pass


class Job:
    """One operator over its store, whose files are inline."""

    def __init__(self, folder, kind, backend="rocksdb", limit=LIMIT, saved=((), ()), aggregates=AGGREGATES):
        self.budget = MemoryBudget(limit)
        self.store = open_keyed_state(
            KeyedStateRequest(
                uid="w",
                snapshots=saved[0],
                hash_range=ALL_HASHES,
                settings=JobSettings(state_backend=backend, managed_memory_bytes=limit),
                read=lambda file: file.inline[file.offset : file.offset + file.length],
                directory=folder,
                writer="run/v/0/1",
                budget=self.budget,
            )
        )
        self.operator, self.state = create_operator(kind), STATES[kind]
        config = {"key": ["k"], "aggregates": aggregates, **WINDOWS[kind]}
        self.operator.open(
            SimpleNamespace(
                spec=SimpleNamespace(uid="w", config=config),
                hash_range=ALL_HASHES,
                keyed_state=self.store,
                limits=sizes(),
                restored=saved[1],
                metrics=OperatorMetrics(),
                clock=ManualClock(),
                input_schemas=(SCHEMA,),
            )
        )

    def give(self, keys, number, out):
        columns = [pa.array(keys), pa.array([text(key, number) for key in keys.tolist()])]
        data = pa.RecordBatch.from_arrays([*columns, pa.array(np.full(len(keys), number))], schema=SCHEMA)
        self.operator.process_batch(Batch(data), 0, out)
        return self.budget.used_bytes

    def checkpoint(self):
        taken, found = self.operator.snapshot(Barrier(1), Out()), []
        for frozen in taken.keyed:
            while not frozen.copy_pages(16):
                pass
            files = {
                e.position: FileRef(path=str(e.position), length=len(e.data), inline=bytes(e.data))
                for e in frozen.encode()
            }
            frozen.durable(files)
            found.append(frozen.snapshot())
        return tuple(found), taken.operator

    def shown(self, key):
        """What a question from outside is answered."""
        batch = pa.record_batch({"k": pa.array([key], pa.int64())})
        found = self.store.tables[self.state].look_up(key_columns(batch, ("k",)), hash_columns(batch, ("k",)), 10)
        return [(row["min_t"], row["last_t"]) for row in found.to_pylist()]


@pytest.fixture(params=sorted(WINDOWS))
def kind(request):
    return request.param


def fill(job, out, look=lambda used: None):
    for number in range(ROUNDS):
        for first in range(0, KEYS, SIZE):
            look(job.give(np.arange(first, first + SIZE), number, out))


def test_texts_of_more_than_their_memory_leave_it_and_come_back(tmp_path, kind):
    job, out, used = Job(tmp_path / "1", kind), Out(), []
    fill(job, out, used.append)
    assert LIMIT // 4 < max(used) <= LIMIT
    here = job.store.tables[job.state].counts().hashes
    assert len(here) > SIZE // 4, "keys left in vain, for values that nothing refers to"
    newest = {key: (text(key, ROUNDS - 1), text(key, ROUNDS - 1)) for key in range(KEYS)}
    before = job.store.memory_bytes
    for key in (0, KEYS - 1):  # one that left long ago, one that has just come
        assert job.shown(key) == [newest[key]]
    assert (job.shown(-1), job.store.memory_bytes) == ([], before)
    saved = job.checkpoint()
    job.store.close()
    restored, later = Job(tmp_path / "2", kind, saved=saved), Out()
    assert LIMIT // 4 < restored.budget.peak_bytes <= 2 * LIMIT
    assert restored.budget.used_bytes <= LIMIT
    if kind == "running_aggregate":
        assert out.rows == newest
        restored.give(np.arange(0, KEYS, 7), 0, later)  # neither the least nor the last
        assert later.rows == {key: newest[key] for key in range(0, KEYS, 7)}
    else:
        restored.operator.process_watermark(Watermark(MAX_TIMESTAMP), later)
        assert later.rows == newest
    restored.store.close()


def test_a_restore_from_the_object_store_fetches_them(tmp_path, kind):
    job = Job(tmp_path / "1", kind)
    fill(job, Out())
    saved = job.checkpoint()
    job.store.close()
    remote, out = Job(tmp_path / "2", kind, "remote", saved=saved), Out()
    used = remote.give(np.arange(0, KEYS, 97), 0, out)
    assert used < LIMIT
    newest = (text(97, ROUNDS - 1), text(97, ROUNDS - 1))
    assert remote.shown(97) == [newest]
    if kind != "running_aggregate":
        remote.operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
        assert len(out.rows) == KEYS
    assert out.rows[97] == newest
    remote.store.close()


def test_without_the_disk_the_way_out_is_named(tmp_path, kind):
    job = Job(tmp_path, kind, "hashmap")
    with pytest.raises(PenstockError, match="state_backend=rocksdb"):
        fill(job, Out())
    job.store.close()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_texts_that_nothing_refers_to_any_more_make_no_key_leave(tmp_path, kind, backend, monkeypatch):
    job, keys = Job(tmp_path, kind, backend, 16 << 20), np.arange(SIZE)
    let_no_key_leave(monkeypatch)
    used = [job.give(keys, number % 50, Out()) for number in range(60)]
    assert max(used) <= job.budget.limit_bytes
    given = 60 * SIZE * len(text(0, 0))
    assert given > job.budget.limit_bytes, "it would not have been full"
    job.store.close()


@pytest.mark.parametrize(("backend", "limit"), [("hashmap", 24 << 20), ("rocksdb", 64 << 20)])
def test_aggregates_that_have_one_value_take_the_memory_of_one(tmp_path, kind, backend, limit, monkeypatch):
    """Also when the heap was compacted, and behind a restore, which reads a column for each."""
    let_no_key_leave(monkeypatch)
    job, keys, out = Job(tmp_path / "1", kind, backend, limit, aggregates=FOUR), 2 * KEYS, Out()
    for first in range(0, keys, SIZE):
        used = job.give(np.arange(first, first + SIZE), 0, SimpleNamespace(batch=lambda _: None))
    values = keys * len(text(0, 0))
    assert 8 << 20 < values < used < 2 * values, "it was not compacted, or takes more for it"
    assert len(job.store.tables[job.state].counts().hashes) == keys
    saved = job.checkpoint()
    job.store.close()
    restored = Job(tmp_path / "2", kind, backend, limit, saved, FOUR)
    assert restored.give(np.arange(1), 0, out) < 2 * values < limit
    assert restored.shown(7)[0] == (text(7, 0), text(7, 0))
    restored.store.close()


def let_no_key_leave(monkeypatch):
    monkeypatch.setattr("penstock.state.tables.pane_table.PaneTable.evict_keys", refuse)


def refuse(*_):
    raise AssertionError("a key left memory")
