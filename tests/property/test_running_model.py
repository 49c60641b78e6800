"""Running aggregates and deduplication over their state against a plain Python model.

Any order of batches, freezes, failed uploads, compactions, restores and rescales, on both backends, gives the model's
output, row by row.
"""

import copy
import math
import tempfile
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.small_pieces import LOCAL_BYTES, Fetching, part, small_pieces

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import TS_COLUMN, Barrier, Batch
from penstock.core.keygroup import HashRange, hash_range_of
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import FileRef
from penstock.kernels.hashing import hash_columns
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.budget import MemoryBudget
from penstock.state.store import KeyedStateRequest, open_keyed_state

KEY_GROUPS = 64
SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("v", pa.int32()),
        pa.field("x", pa.float64()),
        pa.field("t", pa.string()),
        pa.field("d", pa.decimal128(30, 1)),
        pa.field("b", pa.binary(3)),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
FUNCTIONS = ("count", "sum", "min", "max", "mean", "var", "std", "first", "last")
AGGREGATES = [("n", "count", None), *((f"{fn}_{c}", fn, c) for c in "vx" for fn in FUNCTIONS)]
_PICKS = ("count", "min", "max", "first", "last")
VALUES = [("total", "sum", "v"), *((f"{fn}_{c}", fn, c) for c in "tdb" for fn in _PICKS)]
#: Their order is that of their bytes, whatever their length.
STRINGS = ["", "a", "a\0", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", "ä", "\U0001f600", "z" * 40]
KEYS = {
    "one": (("a",), [(i,) for i in range(15)]),
    "null": (("a",), [(None,), *((i,) for i in range(9))]),
    "two": (("a", "s"), [(a, s) for a in (None, 1, 2) for s in (None, "1", "x" * 40)]),
}


def aggregate(fn, rows, column):
    """One aggregate of a key's rows so far, as SQL defines it."""
    if column is None:
        return len(rows)
    rows = [r for r in rows if r[column] is not None]
    values = [r[column] for r in rows]
    if fn == "count":
        return len(values)
    if not values:
        return None
    if fn in ("first", "last"):
        times = [r[TS_COLUMN] for r in rows]
        return values[times.index(min(times))] if fn == "first" else values[-1 - times[::-1].index(max(times))]
    if fn in ("var", "std"):
        if len(values) < 2:
            return None
        mean = sum(values) / len(values)
        variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
        return variance if fn == "var" else math.sqrt(variance)
    return {"sum": sum, "min": min, "max": max, "mean": lambda v: sum(v) / len(v)}[fn](values)


class Running:
    """Every row comes out with its key's aggregates."""

    kind = "running_aggregate"

    def __init__(self, key, aggregates=AGGREGATES):
        self.key, self.rows, self.aggregates = key, {}, aggregates
        self.config = {
            "key": list(key),
            "aggregates": [{"alias": alias, "fn": fn, "column": column} for alias, fn, column in aggregates],
        }

    #: The clock, in milliseconds, and the time-to-live.
    now, ttl_ms = 0, None

    def expires(self, ttl_ms):
        """Let keys begin anew when they had no row for so long."""
        self.ttl_ms, self.times = ttl_ms, {}
        self.config["ttl"] = {"duration_us": ttl_ms * 1000, "on_read": False, "return_expired": False}
        return self

    def add(self, row):
        name = tuple(row[c] for c in self.key)
        if self.ttl_ms is not None:
            if self.times.get(name, self.now) + self.ttl_ms <= self.now:
                del self.rows[name]
            self.times[name] = self.now
        rows = self.rows.setdefault(name, [])
        rows.append(row)
        key = {c: row[c] for c in self.key}
        return [{**key, **{n: aggregate(fn, rows, c) for n, fn, c in self.aggregates}, TS_COLUMN: row[TS_COLUMN]}]


class Kept:
    """A row comes out when it takes its key's place."""

    kind = "deduplicate"

    def __init__(self, key, keep, by):
        self.key, self.keep, self.by, self.orders = key, keep, by, {}
        self.config = {"key": list(key), "keep": keep, "by": by}

    now, ttl_ms = 0, None
    expires = Running.expires

    def add(self, row):
        key = tuple(row[c] for c in self.key)
        order = row[self.by or TS_COLUMN]
        order = -math.inf if order is None else order
        old = self.orders.get(key)
        if old is not None and self.ttl_ms is not None and self.times[key] + self.ttl_ms <= self.now:
            old = None
        if old is not None and (order < old if self.keep == "last" else order >= old):
            return []
        self.orders[key] = order
        if self.ttl_ms is not None:
            self.times[key] = self.now
        return [row]


class Out:
    def __init__(self):
        self.rows = []

    def batch(self, batch):
        assert batch.num_rows
        batch.data.validate(full=True)
        self.rows += batch.data.to_pylist()


class Job(Fetching):
    """Subtasks of the operator, a store of files, and the newest complete checkpoint."""

    def __init__(self, folder, model, keys, backend, local_bytes=1 << 30):
        self.folder, self.backend, self.model = Path(folder), backend, model
        self.settings = JobSettings(
            state_backend=backend, managed_memory_bytes=64 << 20, remote_local_bytes=local_bytes
        )
        self.fetching = []
        self.files, self.frozen, self.subtasks = {}, [], []
        self.checkpoint_id = self.attempt = self.written = 0
        self.complete = ((), copy.deepcopy(model))
        self.clock = ManualClock()
        self.holds_values = any(c in ("t", "d", "b") for *_, c in getattr(model, "aggregates", ()))
        columns = {c: pa.array([k[i] for k in keys], SCHEMA.field(c).type) for i, c in enumerate(model.key)}
        hashes = hash_columns(pa.RecordBatch.from_pydict(columns), model.key).tolist()
        self.hash = dict(zip(keys, hashes, strict=True))
        self.start(1)

    def close(self):
        for operator, store in self.subtasks:
            operator.close()
            store.close()

    def start(self, parallelism):
        """Open the subtasks anew from the newest complete checkpoint."""
        self.close()
        self.attempt += 1
        self.frozen, self.fetching = [], []
        snapshots, model = self.complete
        self.model = copy.deepcopy(model)
        self.subtasks = [self.open(s, parallelism, snapshots) for s in range(parallelism)]

    def open(self, subtask, parallelism, snapshots):
        owned = hash_range_of(subtask, parallelism, KEY_GROUPS)
        store = open_keyed_state(
            KeyedStateRequest(
                uid="op",
                snapshots=tuple(c for s in snapshots if (c := clip(s, owned)) is not None),
                hash_range=owned,
                settings=self.settings,
                read=self.read,
                directory=self.folder / f"{self.attempt}-{subtask}",
                writer=f"run/v/{subtask}/{self.attempt}",
                # with a cold side less than one page: every batch evicts
                # (values of any length stay in memory)
                budget=MemoryBudget(64 << 20 if self.backend == "hashmap" or self.holds_values else 50_000),
            )
        )
        operator = create_operator(self.model.kind)
        operator.open(
            SimpleNamespace(
                spec=SimpleNamespace(uid="op", config=self.model.config),
                hash_range=owned,
                metrics=OperatorMetrics(),
                input_schemas=(SCHEMA,),
                keyed_state=store,
                restored=(),
                clock=self.clock,
            )
        )
        operator._table.heap._least = operator._table.heap._most = 64  # compacted all the time
        return operator, store

    def read(self, file):
        return part(self.files[file.path], file)

    def write(self, encoded):
        self.written += 1
        name = str(self.written)
        self.files[name] = bytes(encoded.data)
        return FileRef(path=name, length=len(encoded.data))

    def tick(self, milliseconds):
        self.clock.advance(milliseconds)

    def batch(self, seed, count):
        self.model.now = self.clock.now_ms()
        random = np.random.default_rng(seed)
        keys = list(self.hash)
        rows = []
        for _ in range(count):
            row = dict.fromkeys("as") | dict(zip(self.model.key, keys[random.integers(len(keys))], strict=True))
            row["v"] = None if random.random() < 0.3 else int(random.integers(-50, 50))
            row["x"] = None if random.random() < 0.3 else float(random.integers(-50, 50)) / 4
            row["t"] = None if random.random() < 0.3 else STRINGS[random.integers(len(STRINGS))]
            row["d"] = None if random.random() < 0.3 else Decimal(int(random.integers(-30, 30))) * 10**20 / 10
            row["b"] = None if random.random() < 0.3 else bytes(random.integers(0, 256, 3).tolist())
            row[TS_COLUMN] = int(random.integers(-9, 9))
            rows.append(row)
        for s, (operator, _) in enumerate(self.subtasks):
            owned = hash_range_of(s, len(self.subtasks), KEY_GROUPS)
            mine = [r for r in rows if self.hash[tuple(r[c] for c in self.model.key)] in owned]
            if not mine:
                continue
            out = Out()
            # a slice at an odd offset: validity bits do not begin with a byte
            operator.process_batch(Batch(pa.RecordBatch.from_pylist([mine[0], *mine], schema=SCHEMA).slice(1)), 0, out)
            for got, wanted in zip(out.rows, [o for r in mine for o in self.model.add(r)], strict=True):
                assert got.keys() == wanted.keys()
                assert all(close(got[c], wanted[c]) for c in got), (got, wanted)

    def freeze(self):
        self.checkpoint_id += 1
        taken = [o.snapshot(Barrier(self.checkpoint_id), Out()).keyed[0] for o, _ in self.subtasks]
        self.frozen.append((self.checkpoint_id, taken, copy.deepcopy(self.model)))
        del self.frozen[:-2]  # two at a time; an older one is aborted

    def copy(self, pages):
        for _, taken, _ in self.frozen:
            for frozen in taken:
                frozen.copy_pages(pages)

    def finish(self, outcome):
        if not self.frozen:
            return
        checkpoint_id, taken, model = self.frozen.pop(0)
        if outcome == "aborted":
            return
        for frozen in taken:
            while not frozen.copy_pages(1):
                pass
        encoded = [frozen.encode() for frozen in taken]
        part = slice(None, None, 2) if outcome == "failed" else slice(None)
        for frozen, segments in zip(taken, encoded, strict=True):
            frozen.durable({e.position: self.write(e) for e in segments[part]})
        if outcome == "failed":
            for frozen in taken:
                frozen.failed()
            return
        before = named(self.complete[0])
        self.complete = (tuple(frozen.snapshot() for frozen in taken), model)
        for path in before - named(self.complete[0]):
            del self.files[path]
        for operator, _ in self.subtasks:
            operator.notify_complete(CommitPermit("j", "r", 1, checkpoint_id, checkpoint_id))

    def compact(self, done):
        for _, store in self.subtasks:
            job = store.compaction()
            if job is not None:
                encoded = job.run(self.read)
                store.compacted(job, self.write(encoded) if done else None)


def named(snapshots):
    return {segment.file.path for snapshot in snapshots for segment in snapshot.segments}


def close(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
    return left == right


def clip(snapshot, owned):
    common = HashRange(snapshot.hash_low, snapshot.hash_high).intersect(owned)
    if common is None:
        return None
    parts = [(s, HashRange(s.clip_low, s.clip_high).intersect(common)) for s in snapshot.segments]
    segments = tuple(replace(s, clip_low=p.low, clip_high=p.high) for s, p in parts if p is not None)
    return replace(snapshot, segments=segments, hash_low=common.low, hash_high=common.high)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 60)),
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 4)),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("tick"), st.sampled_from([1, 2_500, 9_999, 10_000])),
        st.tuples(st.just("copy"), st.integers(1, 3)),
        st.tuples(st.just("finish"), st.sampled_from(["done", "done", "done", "failed", "aborted"])),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("begin_fetch")),
        st.tuples(st.just("end_fetch")),
        st.tuples(st.just("restart"), st.integers(1, 4)),
    ),
    min_size=12,
    max_size=60,
)
MODELS = {
    "running": Running,
    "running over values of any length": lambda key: Running(key, VALUES),
    "running, for a time": lambda key: Running(key).expires(10_000),
    "running over values of any length, for a time": lambda key: Running(key, VALUES).expires(10_000),
    "last, for a time": lambda key: Kept(key, "last", None).expires(10_000),
    "first, for a time": lambda key: Kept(key, "first", None).expires(10_000),
    "last": lambda key: Kept(key, "last", None),
    "first": lambda key: Kept(key, "first", None),
    "last by a nullable column": lambda key: Kept(key, "last", "v"),
    "first by a nullable column": lambda key: Kept(key, "first", "v"),
}


#: Values of any length and times-to-live are refused with `remote`.
CASES = [
    (name, backend)
    for backend in ("hashmap", "rocksdb", "remote")
    for name in sorted(MODELS)
    if backend != "remote" or ("any length" not in name and "time" not in name)
]


@pytest.mark.parametrize(("name", "backend"), CASES)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(KEYS)), OPERATIONS, st.sampled_from(LOCAL_BYTES))
def test_any_history_gives_the_rows_of_the_model(name, backend, kind, operations, local_bytes):
    key, keys = KEYS[kind]
    with tempfile.TemporaryDirectory() as folder, small_pieces():
        job = Job(folder, MODELS[name](key), keys, backend, local_bytes)
        try:
            for operation, *arguments in operations:
                getattr(job, {"restart": "start"}.get(operation, operation))(*arguments)
        finally:
            job.close()
