"""Rows of joins in the object store: what a restore and a key read, what stays on the local disk, and what goes."""

import numpy as np
import pyarrow as pa
import pytest
from tests.property.harness.files import part
from tests.support.sizes import sizes

from penstock.config.settings import JobSettings
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

KEY, VALUES = pa.schema([pa.field("k", pa.int64())]), (pa.field("s", pa.string()),)
KEYS, TEXT = 100_000, "x" * 60
SPAN = 1 << 40


class Side:
    """One subtask whose operator keeps rows of one side, and its files; what it reads is counted."""

    def __init__(self, folder):
        self.folder, self.files, self.attempt, self.read = folder, {}, 0, 0
        self.snapshots = ()

    def open(self, backend, local_bytes=1 << 30):
        self.attempt += 1
        self.store = open_keyed_state(
            KeyedStateRequest(
                uid="j",
                snapshots=self.snapshots,
                hash_range=ALL_HASHES,
                settings=JobSettings(
                    state_backend=backend, managed_memory_bytes=4 << 20, remote_local_bytes=local_bytes
                ),
                read=self.reads,
                directory=self.folder / str(self.attempt),
                writer=f"run/v/0/{self.attempt}",
                budget=MemoryBudget(4 << 20),
                limits=sizes(),
            )
        )
        self.rows = self.store.row_state(KEY, evictable=True)
        self.table = self.rows.join_buffer("left", VALUES)

    def reads(self, file):
        data = part(self.files[file.path], file)
        self.read += len(data)
        return data

    def add(self, keys, times):
        columns = key_columns(pa.record_batch({"k": pa.array(keys)}), ("k",))
        slots = self.rows.upsert(columns, hash_key_columns(columns, len(keys))).copy()
        self.table.add(slots, times, [pa.array([f"{TEXT}{key}" for key in keys.tolist()])])
        self.rows.settle()

    def met(self, keys):
        """The times of all rows of some keys."""
        columns = key_columns(pa.record_batch({"k": pa.array(keys)}), ("k",))
        slots = self.rows.upsert(columns, hash_key_columns(columns, len(keys))).copy()
        found = [[] for _ in keys]
        for run, places, own in self.table.matching_runs(
            slots, np.zeros(len(keys), np.int64), np.full(len(keys), SPAN)
        ):
            for asking, at in run.pairs(own, np.zeros(len(own), np.int64), np.full(len(own), SPAN)):
                for row, time in zip(places[asking].tolist(), run.times[at].tolist(), strict=True):
                    found[row].append(time)
        self.rows.settle()
        return [sorted(times) for times in found]

    def checkpoint(self):
        (frozen,) = self.store.freeze(self.attempt)
        files = {}
        for encoded in frozen.encode():
            name = f"{self.attempt}/{len(self.files)}"
            self.files[name] = bytes(encoded.data)
            files[encoded.position] = FileRef(path=name, length=len(encoded.data))
        frozen.durable(files)
        self.snapshots = (frozen.snapshot(),)


@pytest.fixture
def side(tmp_path):
    made = Side(tmp_path)
    made.open("remote")
    for first in range(0, KEYS, 10_000):
        keys = np.arange(first, first + 10_000)
        made.add(keys, keys + 5)
    made.checkpoint()
    yield made
    made.store.close()


def test_a_key_fetches_its_piece_and_a_restore_nothing(side):
    side.store.close()
    total = sum(map(len, side.files.values()))
    side.read = 0
    side.open("remote")
    assert side.read < total // 20, "footers alone"
    assert side.met(np.array([777, KEYS + 1])) == [[782], []]
    assert side.read < total // 2
    seen = side.read
    assert side.met(np.array([777])) == [[782]]
    assert side.read == seen, "it is here"
    while (job := side.store.prefetch()) is not None:
        job.run()
        job.install()
    assert side.met(np.arange(0, KEYS, 7)) == [[key + 5] for key in range(0, KEYS, 7)]
    seen = side.read
    assert side.met(np.arange(1, KEYS, 7)) == [[key + 5] for key in range(1, KEYS, 7)]
    assert side.read == seen
    nine = key_columns(pa.record_batch({"k": pa.array([9])}), ("k",))
    column = side.table.look_up(nine, hash_key_columns(nine, 1), 10)
    assert column.column("__namespace").to_pylist() == [14]


def test_what_was_fetched_goes_again_and_comes_back(side):
    side.store.close()
    limit = 2 << 20
    side.open("remote", limit)
    far = side.rows.remote_runs
    every = pa.record_batch({"k": pa.array(np.arange(KEYS))})
    beside = np.argsort(hash_key_columns(key_columns(every, ("k",)), KEYS))
    for turn in range(2):
        for first in range(0, KEYS, 5000):
            keys = beside[first : first + 5000][np.random.default_rng(turn).permutation(5000)[:500]]
            assert side.met(keys) == [[key + 5] for key in keys.tolist()]
            assert int(far.local_bytes.sum()) < 2 * limit
        assert far.fetcher.dropped_regions > 0


def test_the_times_of_all_rows_are_told_within_the_local_bytes(side):
    side.store.close()
    limit = 1 << 20
    side.open("remote", limit)
    far, told, most = side.rows.remote_runs, [], [0]

    def on_fetched(times):
        told.append(times)
        most.append(int(far.local_bytes.sum()))

    side.table.watch_fetched(on_fetched)
    far.fetch_until(SPAN)
    assert np.unique(np.concatenate(told)).tolist() == list(range(5, KEYS + 5))
    assert far.fetcher.dropped_regions > 0
    assert max(most) < 3 * limit
    assert int(far.local_bytes.sum()) <= limit
    side.read = 0
    far.fetch_until(SPAN)
    assert side.read == 0, "all were told"


def test_freezes_whose_rows_are_durable_are_not_kept_in_mind(side):
    for turn in range(4):
        side.add(np.arange(5), np.full(5, 200 + turn))
        side.checkpoint()
    assert len(side.table._frozen) == 1


def test_rows_that_came_in_since_become_the_logs_when_they_are_durable(side):
    side.store.close()
    side.open("remote", 1 << 20)
    expected = {key: [key + 5] for key in range(KEYS)}
    for turn in range(6):
        keys = np.arange(turn * 1000, turn * 1000 + 20_000)
        side.add(keys, keys + 100 + turn)
        for key in keys.tolist():
            expected.setdefault(key, []).append(key + 100 + turn)
        side.checkpoint()
        side.rows.settle()
        matching_runs = np.arange(turn * 900, turn * 900 + 3000)
        assert side.met(matching_runs) == [expected[key] for key in matching_runs.tolist()]
    assert side.rows.remote_runs._sides[0].below > KEYS, "or this shows nothing"
    assert side.table.own_bytes < 3 << 20
    side.table.clean(90)
    assert min(side.table.within(0, 200).times.tolist()) == 91


def test_rows_that_are_here_and_in_the_log_are_found_once(side):
    side.store.close()
    side.open("remote")
    keys = np.arange(50, 60)
    side.add(keys, keys + 100)
    side.checkpoint()
    assert side.met(keys) == [[key + 5, key + 100] for key in keys.tolist()]
