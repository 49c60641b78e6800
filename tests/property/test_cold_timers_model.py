"""Timers whose keys leave memory all the time against a set of (key, time).

Few keys and few times, so that a timer is registered again and deleted while it lies in the cold store, and due in
pieces of one time and of several; freezes between, and restores of what they have saved.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.process_job import keys_leave
from tests.support.depth import examples
from tests.support.sizes import sizes

from penstock.config.settings import JobSettings
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.kernels.columns import key_columns
from penstock.kernels.hashing import hash_columns
from penstock.state.budget import MemoryBudget
from penstock.state.store import KeyedStateRequest, open_keyed_state

KEYS = pa.schema([pa.field("k", pa.string())])
#: Several fall into one bucket.
UNIT = 400_000
CHANGES = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 7), st.booleans()), min_size=1, max_size=6)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), CHANGES),
        st.tuples(st.just("change"), CHANGES),
        st.tuples(st.just("fire"), st.integers(0, 8), st.integers(1, 5)),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


class Timers:
    def __init__(self, folder):
        self.folder, self.files, self.opened = folder, {}, 0
        self.model = set()
        self.open(())

    def open(self, snapshots):
        self.opened += 1
        self.store = open_keyed_state(
            KeyedStateRequest(
                uid="op",
                snapshots=tuple(snapshots),
                hash_range=ALL_HASHES,
                settings=JobSettings(state_backend="rocksdb"),
                read=lambda file: self.files[file.path],
                directory=self.folder / str(self.opened),
                writer=f"w{self.opened}",
                budget=MemoryBudget(1 << 30),
                limits=sizes(),
            )
        )
        self.rows = self.store.row_state(KEYS, leaves=True)
        self.table = self.rows.timers("event")

    def change(self, changes):
        batch = pa.record_batch({"k": [key for key, *_ in changes]}, schema=KEYS)
        slots = self.rows.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()
        times = np.array([unit * UNIT for _, unit, _ in changes], np.int64)
        self.table.change(slots, times, np.array([deleted for *_, deleted in changes], np.bool_))
        for key, unit, deleted in changes:
            (self.model.discard if deleted else self.model.add)((unit * UNIT, key))
        self.rows.settle()

    def fire(self, unit, limit):
        until, fired = unit * UNIT, []
        due = sorted(timer for timer in self.model if timer[0] <= until)
        least = self.table.next_time()
        assert least is not None or not self.model
        assert all(least <= time for time, _ in self.model)
        while taken := self.table.take_due(until, limit):
            slots, times = taken
            fired += zip(times.tolist(), self.rows.keys(slots)[0].to_pylist(), strict=True)
            self.rows.settle()
        assert [time for time, _ in fired] == [time for time, _ in due]
        assert sorted(fired) == due
        self.model -= set(due)

    def restart(self):
        snapshots = []
        for frozen in self.store.freeze(1):
            named = {}
            for encoded in frozen.encode():
                name = str(len(self.files))
                self.files[name] = encoded.data
                named[encoded.position] = FileRef(path=name, length=len(encoded.data))
            frozen.durable(named)
            snapshots.append(frozen.snapshot())
        self.store.close()
        self.open(snapshots)


@pytest.fixture
def leaving(monkeypatch):
    """Hardly any key stays in memory."""
    with keys_leave(monkeypatch, 1):
        yield


@examples(150)
@given(operations=OPERATIONS)
def test_timers_fire_once_and_in_order_wherever_they_lie(leaving, operations):
    with tempfile.TemporaryDirectory() as folder:
        timers = Timers(Path(folder))
        for name, *arguments in [*operations, ("restart",), ("fire", 8, 3)]:
            getattr(timers, name)(*arguments)
        timers.store.close()
