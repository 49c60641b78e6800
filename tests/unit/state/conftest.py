"""Keyed state of one operator whose files are kept in memory."""

import numpy as np
import pyarrow as pa
import pytest
from tests.support.sizes import given, sizes

from penstock.config.settings import JobSettings
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import fixed_column, key_columns
from penstock.state.cells.accumulators import AccumulatorInput, AccumulatorSpec, PaneTableSpec
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

SPEC = PaneTableSpec(pa.schema([pa.field("k", pa.int64())]), (AccumulatorSpec("total", "int64", "sum"),))


class Harness:
    """Keyed state of one operator whose files are kept in memory."""

    spec = SPEC

    def __init__(self, directory):
        self.directory = directory
        self.files = {}
        self.stores = []

    def open(self, snapshots=(), *, backend="hashmap", memory=1 << 30, hash_range=ALL_HASHES):
        store = open_keyed_state(
            KeyedStateRequest(
                uid="op",
                snapshots=tuple(snapshots),
                hash_range=hash_range,
                settings=JobSettings(state_backend=backend, managed_memory_bytes=64 << 20),
                read=lambda file: self.files[file.path],
                directory=self.directory / str(len(self.stores)),
                writer=f"run/v/0/{len(self.stores)}",
                budget=MemoryBudget(memory),
                limits=sizes(),
            )
        )
        self.stores.append(store)
        return store

    def update(self, table, keys, panes, values=None):
        batch = pa.record_batch({"k": pa.array(keys, pa.int64())})
        column = fixed_column(pa.array(values if values is not None else [1] * len(keys), pa.int64()))
        columns = key_columns(batch, ("k",))
        given = AccumulatorInput(column.values, column.bitmap, column.bit_offset)
        table.update(columns, hash_columns(batch, ("k",)), np.array(panes, np.int64), [given])

    def write(self, encoded):
        name = str(len(self.files))
        self.files[name] = encoded.data
        return FileRef(path=name)

    def upload(self, frozen):
        while not frozen.copy_pages(1):
            pass
        frozen.durable({e.position: self.write(e) for e in frozen.encode()})
        return frozen.snapshot()

    def rows(self, table, panes=None):
        """Return {key: (rows, total)} over the panes."""
        found = {}
        for piece in table.fire(table.panes() if panes is None else panes):
            for key, cell in zip(piece.keys[0].to_pylist(), piece.cells.tolist(), strict=True):
                assert key not in found
                found[key] = tuple(cell)
        return found


@pytest.fixture
def state(tmp_path):
    harness = Harness(tmp_path)
    yield harness
    for store in harness.stores:
        store.close()


@pytest.fixture
def deltas(monkeypatch):
    """Tables of few rows are saved by their changes too."""
    given(monkeypatch, whole_rows=0)
