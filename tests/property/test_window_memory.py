"""Windows that keep rows, sessions and versions of more than managed memory: results are right, memory is kept."""

import tracemalloc
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from tests.support.sizes import sizes

import penstock as ps
from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.errors import PenstockError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.aggregates.aggregate_schema import output_schema
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.operators.windows.window_schemas import aggregated_schema
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

SCHEMA = pa.schema(
    [pa.field("k", pa.int64()), pa.field("v", pa.int64()), pa.field(TS_COLUMN, pa.int64(), nullable=False)]
)
ROUNDS = 4
ROWS = {
    "key": ["k"],
    "window": {"kind": "tumbling", "size_us": 10**9},
    "mode": "aggregate",
    "aggregates": [{"fn": "collect", "column": "v", "alias": "all"}],
}
SESSIONS = {
    "key": ["k"],
    "window": {"kind": "session", "gap_us": 10**9},
    "aggregates": [{"fn": "sum", "column": "v", "alias": "total"}],
}
VERSIONS = {"left_key": ["k"], "right_key": ["k"], "suffix": "_right", "how": "inner"}
JOINS = {
    "temporal_join": VERSIONS,
    "interval_join": VERSIONS | {"how": "left", "lower_us": 0, "upper_us": 10**9},
    "window_join": VERSIONS | {"how": "full", "window": {"size_us": 10**9, "slide_us": 10**9, "offset_us": 0}},
}
RESULTS = ("all", "total", "v_right")


class Out:
    def __init__(self):
        self.rows = 0
        self.total = 0

    def batch(self, batch):
        self.rows += batch.num_rows
        found = next(batch.data.column(name) for name in batch.data.schema.names if name in RESULTS)
        values = found.flatten() if pa.types.is_list(found.type) else found
        self.total += int(values.to_numpy().sum())

    def watermark(self, watermark):
        pass


def opened(folder, kind, limit, snapshots=(), backend="rocksdb"):
    config = {"window_rows": ROWS, "session_aggregate": SESSIONS, **JOINS}[kind]
    budget = MemoryBudget(limit)
    store = open_keyed_state(
        KeyedStateRequest(
            uid="w",
            snapshots=snapshots,
            hash_range=ALL_HASHES,
            settings=JobSettings(state_backend=backend, managed_memory_bytes=limit),
            read=lambda file: file.inline,
            directory=folder,
            writer="run/v/0/1",
            budget=budget,
        )
    )
    payload = cloudpickle.dumps((ps.trigger.event_time(), None, None, None)) if kind == "window_rows" else b""
    schemas = {"window_rows": aggregated_schema, "session_aggregate": output_schema}
    schema = schemas[kind](config, SCHEMA) if kind in schemas else SCHEMA
    operator = create_operator(kind)
    operator.open(
        SimpleNamespace(
            spec=SimpleNamespace(uid="w", config=config, payload=payload, output_schema=schema_to_text(schema)),
            hash_range=ALL_HASHES,
            keyed_state=store,
            limits=sizes(),
            restored=(),
            metrics=OperatorMetrics(),
            clock=ManualClock(),
            input_schemas=(SCHEMA, SCHEMA),
        )
    )
    return operator, store, budget


def checkpoint(operator):
    """Freeze, encode and name; returns the snapshots."""
    found = []
    for frozen in operator.snapshot(Barrier(1), Out()).keyed:
        while not frozen.copy_pages(16):
            pass
        encoded = frozen.encode()
        frozen.durable(
            {e.position: FileRef(path=str(e.position), length=len(e.data), inline=bytes(e.data)) for e in encoded}
        )
        found.append(frozen.snapshot())
    return tuple(found)


def fill(operator, shape, look):
    """Rows of all keys again and again, the same number of each; `look` is called behind every batch."""
    keys, size = shape
    for number in range(ROUNDS):
        for first in range(0, keys, size):
            mine = np.arange(first, first + size)
            columns = [mine, mine + number, np.full(size, number * 10**6)]
            data = pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=SCHEMA)
            operator.process_batch(Batch(data), 0, Out())
            look()


def asked(key):
    batch = pa.record_batch({"k": pa.array([key], pa.int64())})
    return key_columns(batch, ("k",)), hash_columns(batch, ("k",))


CASES = [("window_rows", 3 << 19, (2000, 500)), ("session_aggregate", 1 << 20, (30_000, 2500))]


@pytest.mark.parametrize(("kind", "limit", "shape"), CASES)
def test_windows_of_more_than_their_memory_stay_within_it(tmp_path, kind, limit, shape):
    operator, store, budget = opened(tmp_path / "1", kind, limit)
    used = []
    fill(operator, shape, lambda: used.append(budget.used_bytes))
    assert limit // 4 < max(used) <= limit
    snapshots = checkpoint(operator)
    for state, rows in {"window_rows": {"rows": ROUNDS, "windows": 1}, "session_aggregate": {"sessions": 1}}[
        kind
    ].items():
        before = store.memory_bytes
        for key in (0, shape[0] - 1):  # one that left long ago, one that has just come
            found = store.tables[state].look_up(*asked(key), 10)
            assert found.column("k").to_pylist() == [key] * rows
        assert store.tables[state].look_up(*asked(-1), 10).num_rows == 0
        assert store.memory_bytes == before
    store.close()
    operator, store, budget = opened(tmp_path / "2", kind, limit, snapshots)
    assert limit // 4 < budget.peak_bytes <= limit
    out = Out()
    operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
    store.close()
    keys = shape[0]
    assert (out.rows, out.total) == (keys, sum(range(keys)) * ROUNDS + keys * sum(range(ROUNDS)))
    assert budget.peak_bytes <= limit


@pytest.mark.parametrize(("kind", "limit", "shape"), CASES)
def test_without_the_disk_twice_that_memory_does_not_hold_them(tmp_path, kind, limit, shape):
    operator, store, _ = opened(tmp_path, kind, 2 * limit, backend="hashmap")
    with pytest.raises(PenstockError, match="state_backend=rocksdb"):
        fill(operator, shape, lambda: None)
    store.close()


def test_rows_take_the_memory_that_is_counted(tmp_path):
    for name in ("before", "then"):  # the first time code is loaded
        operator, store, budget = opened(tmp_path / name, "window_rows", 6 << 20)
        tracemalloc.start()
        fill(operator, (4000, 500), lambda: None)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        store.close()
    assert budget.peak_bytes > budget.limit_bytes // 3, "it was not full"
    assert most < budget.limit_bytes


def test_versions_of_a_temporal_join_are_more_than_their_memory(tmp_path):
    limit, size, keys = 1 << 20, 2500, 30_000
    operator, store, budget = opened(tmp_path, "temporal_join", limit)
    out, used = Out(), []

    def give(side, first, time):
        mine = pa.array(np.arange(first, first + size))
        columns = [mine, mine, pa.array(np.full(size, time))]
        operator.process_batch(Batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)), side, out)
        used.append(budget.used_bytes)

    for side in (1, 0):
        for first in range(0, keys, size):
            time = (keys if side == 0 else 0) + first
            give(side, first, time)
            operator.process_watermark(Watermark(time), out)
            while operator.output_queue.has_pending_output:
                operator.output_queue.emit_ready(out)
    store.close()
    assert limit // 4 < max(used) <= limit
    assert (out.rows, out.total) == (keys, sum(range(keys)))


@pytest.mark.parametrize("kind", list(JOINS))
def test_keys_of_joins_whose_rows_wait_are_more_than_their_memory(tmp_path, kind):
    limit, size, keys = 1 << 20, 2500, 30_000
    operator, store, budget = opened(tmp_path / "1", kind, limit)
    out, used = Out(), []

    def emit_ready():
        while operator.output_queue.has_pending_output:
            operator.output_queue.emit_ready(out)
            used.append(budget.used_bytes)

    for side in (0, 1):
        for first in range(0, keys, size):
            mine = pa.array(np.arange(first, first + size))
            columns = [mine, mine, pa.array(np.full(size, 1 + side if kind != "temporal_join" else 2 - side))]
            operator.process_batch(Batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)), side, out)
            emit_ready()
            used.append(budget.used_bytes)
        if side == 0:
            snapshots = checkpoint(operator)
            store.close()
            operator, store, budget = opened(tmp_path / "2", kind, limit, snapshots)
            assert budget.peak_bytes <= limit
    operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
    emit_ready()
    store.close()
    assert limit // 4 < max(used) <= limit
    assert (out.rows, out.total) == (keys, sum(range(keys)))
