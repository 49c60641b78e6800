"""The window operator over its state against a plain Python model: the output of any order of batches (also combined),
watermarks, freezes, failed uploads, compactions, restores and rescales, on both backends; late rows are
counted or put aside.
"""

import math
import tempfile
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.small_pieces import LOCAL_BYTES, Fetching, part, small_pieces
from tests.property.window_model import Model
from tests.support.depth import examples
from tests.support.sizes import sizes

from penstock.config.settings import JobSettings
from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.keygroup import HashRange, hash_range_of
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import FileRef
from penstock.kernels.hashing import hash_columns
from penstock.kernels.split import order_by_owner, take_split
from penstock.operators.combine import combiner_for
from penstock.operators.operator import OperatorMetrics
from penstock.operators.window import WindowAggregateOperator
from penstock.state.budget import MemoryBudget
from penstock.state.store import KeyedStateRequest, open_keyed_state

UID = "windows"
KEY_GROUPS = 64
ALWAYS = JobSettings(combine="all", combine_min_rows=1, combine_ratio=1.0)
AGGREGATES = [
    {"fn": "count", "column": None, "alias": "n"},
    {"fn": "count", "column": "v", "alias": "values"},
    {"fn": "sum", "column": "v", "alias": "total"},
    {"fn": "min", "column": "v", "alias": "least"},
    {"fn": "max", "column": "x", "alias": "most"},
    {"fn": "mean", "column": "v", "alias": "mean"},
    {"fn": "var", "column": "x", "alias": "var"},
    {"fn": "first", "column": "v", "alias": "first"},
    {"fn": "last", "column": "x", "alias": "last"},
]
PICKED = [{"fn": fn, "column": c, "alias": f"{fn}_{c}"} for c in "td" for fn in ("min", "max", "first", "last")]
#: Their order is that of their bytes, whatever their length.
STRINGS = ["", "a", "a\0", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", "ä", "\U0001f600", "z" * 40]
KEYS = {
    "int": (("a",), [(i,) for i in range(12)]),
    "string": (("s",), [(None,), ("",), *[(f"key-{i}" * (i % 5),) for i in range(10)]]),
    "both": (("a", "s"), [(a, s) for a in (None, 1, 2) for s in (None, "1", "x" * 40)]),
    "twins": (("a", "b"), [(None, 1), (1, None), (None, 2), (2, None), (None, None), (1, 1), (1, 2)]),
}
FIELDS = [
    pa.field("a", pa.int64()),
    pa.field("b", pa.int32()),
    pa.field("s", pa.string()),
    pa.field("v", pa.int32()),
    pa.field("x", pa.float64(), nullable=False),
    pa.field("t", pa.string()),
    pa.field("d", pa.decimal128(38, 2)),
    pa.field(TS_COLUMN, pa.int64(), nullable=False),
]
SCHEMA = pa.schema(FIELDS)


class Out:
    def __init__(self):
        self.rows = []
        self.late = []
        self.watermarks = []

    def batch(self, batch):
        assert batch.num_rows
        self.rows += batch.data.to_pylist()

    def side(self, tag, batch):
        assert batch.num_rows
        assert (tag, batch.data.schema) == ("late", SCHEMA)
        self.late += batch.data.to_pylist()

    def watermark(self, watermark):
        self.watermarks.append(watermark.timestamp)


def close(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
    return left == right


def order(rows):
    return sorted(rows, key=lambda r: repr([r["start"], r[TS_COLUMN], *[r.get(c) for c in "abs"]]))


class Job(Fetching):
    """Subtasks of the operator, a store of files, and the newest complete checkpoint."""

    def __init__(self, folder, kind, window, backend, way="plain", local_bytes=1 << 30):
        self.folder, self.backend, self.fetching = Path(folder), backend, []
        self.options = JobSettings(state_backend=backend, managed_memory_bytes=64 << 20, remote_local_bytes=local_bytes)
        self.key, keys = KEYS[kind]
        *window, lateness = window
        size, slide, offset, step = window
        kind = {"kind": "cumulative", "step_us": step} if step else {"kind": "sliding", "slide_us": slide}
        shape = {**kind, "size_us": size, "offset_us": offset}
        values = "values" in way
        aggregates = AGGREGATES + PICKED if values else AGGREGATES
        self.config = {"key": list(self.key), "window": shape, "aggregates": aggregates}
        self.config["allowed_lateness_us"] = lateness
        if way == "routed":
            self.config["late_to"] = {"tag": "late", "columns": SCHEMA.names}
        self.model = Model(self.key, keys, window, lateness, values=values)
        self.combiner = combiner_for(self.config, SCHEMA, ALWAYS) if way == "combined" or values else None
        self.files = {}
        self.complete = (None, 1, self.model.copy())
        self.checkpoint_id = 0
        self.attempt = 0
        self.late = 0
        self.aside = []
        self.frozen = []
        self.subtasks = []
        named = {c: [k[i] for k in keys] for i, c in enumerate(self.key)}
        columns = [pa.array(named.get(f.name, [None] * len(keys)), f.type) for f in FIELDS[:3]]
        batch = pa.RecordBatch.from_arrays(columns, names=["a", "b", "s"])
        self.hash = dict(zip(keys, hash_columns(batch, self.key).tolist(), strict=True))
        self.start(1)

    def start(self, parallelism):
        """Open the subtasks anew from the newest complete checkpoint."""
        for operator, store in self.subtasks:
            operator.close()
            store.close()
        self.attempt += 1
        self.late, self.aside, self.frozen, self.fetching = 0, [], [], []
        snapshot, _, model = self.complete
        self.model = model.copy()
        self.subtasks = [self.open(s, parallelism, snapshot) for s in range(parallelism)]

    def open(self, subtask, parallelism, snapshot):
        owned = hash_range_of(subtask, parallelism, KEY_GROUPS)
        options = self.options
        keyed, restored = ([], []) if snapshot is None else snapshot
        budget = MemoryBudget(options.managed_memory_bytes if self.backend == "hashmap" else 200_000)
        store = open_keyed_state(
            KeyedStateRequest(
                uid=UID,
                snapshots=tuple(c for s in keyed if (c := clip(s, owned)) is not None),
                hash_range=owned,
                settings=options,
                read=self.read,
                directory=self.folder / f"{self.attempt}-{subtask}",
                writer=f"run/v/{subtask}/{self.attempt}",
                budget=budget,
            )
        )
        operator = WindowAggregateOperator()
        operator.open(
            SimpleNamespace(
                spec=SimpleNamespace(uid=UID, config=self.config),
                hash_range=owned,
                settings=options,
                metrics=OperatorMetrics(),
                input_schemas=(SCHEMA,),
                keyed_state=store,
                limits=sizes(),
                restored=tuple(restored),
            )
        )
        operator._table.heap._least = operator._table.heap._most = 64  # compacted all the time
        open_from = operator._first_open_start(operator._watermarks.low)
        # a footer names the panes of all that shared the file before a change of parallelism
        if self.backend != "remote":
            assert all(pane >= open_from for pane in operator._table.panes()), "closed panes came back"
        return operator, store

    def read(self, file):
        return file.inline if file.inline is not None else part(self.files[file.path], file)

    def write(self, encoded):
        name = f"{self.attempt}/{len(self.files)}"
        self.files[name] = bytes(encoded.data)
        return FileRef(path=name, length=len(encoded.data))

    def owned(self, subtask):
        return hash_range_of(subtask, len(self.subtasks), KEY_GROUPS)

    def batch(self, seed, count, around):
        random = np.random.default_rng(seed)
        keys = list(self.hash)
        rows = []
        for _ in range(count):
            row = dict.fromkeys(["a", "b", "s"])
            row.update(zip(self.key, keys[random.integers(len(keys))], strict=True))
            row["v"] = None if random.random() < 0.3 else int(random.integers(-50, 50))
            row["x"] = float(random.integers(-50, 50)) / 4
            row["t"] = None if random.random() < 0.3 else STRINGS[random.integers(len(STRINGS))]
            row["d"] = None if random.random() < 0.3 else Decimal(f"{random.integers(-300, 300)}{'0' * 28}.00")
            row[TS_COLUMN] = int(around + random.integers(-120, 120))
            rows.append(row)
        again = self.model.again(set().union(*[self.model.add(row) for row in rows]))
        found = []
        # a slice at an odd offset: validity bits do not begin with a byte
        data = pa.RecordBatch.from_pylist([rows[0], *rows], schema=SCHEMA).slice(1)
        combined = self.combiner.combine(data) if self.combiner is not None and seed % 4 else None
        data = data if combined is None else combined
        parts = take_split(data, *order_by_owner(data, self.key, KEY_GROUPS, len(self.subtasks)))
        for (operator, _), rows_of in zip(self.subtasks, parts, strict=True):
            if rows_of is not None:
                before, out = operator._context.metrics.late_records_dropped, Out()
                operator.process_batch(Batch(rows_of, combined is not None), 0, out)
                self.late += operator._context.metrics.late_records_dropped - before
                self.aside += out.late
                found += out.rows
        self.same(found, again)
        if "late_to" in self.config:
            assert (self.late, sorted(map(repr, self.aside))) == (0, sorted(map(repr, self.model.late)))
        else:
            assert (self.late, self.aside) == (len(self.model.late), [])

    def watermark(self, subtask, timestamp):
        subtask %= len(self.subtasks)
        out = Out()
        self.subtasks[subtask][0].process_watermark(Watermark(timestamp), out)
        assert out.watermarks == [timestamp]
        keys = {k for k, h in self.hash.items() if h in self.owned(subtask)}
        expected = self.model.advance(keys, timestamp)
        assert [r[TS_COLUMN] for r in out.rows] == [r[TS_COLUMN] for r in expected]
        self.same(out.rows, expected)

    @staticmethod
    def same(found, expected):
        for row in found:
            row["start"], end = micros(row.pop("window_start")), micros(row.pop("window_end"))
            assert end == row[TS_COLUMN] + 1
        for got, wanted in zip(order(found), order(expected), strict=True):
            assert got.keys() == wanted.keys()
            assert all(close(got[c], wanted[c]) for c in got), (got, wanted)

    def freeze(self):
        self.checkpoint_id += 1
        taken = [o.snapshot(Barrier(self.checkpoint_id), Out()) for o, _ in self.subtasks]
        self.frozen.append((self.checkpoint_id, taken, self.model.copy()))
        del self.frozen[:-2]  # two at a time; an older one is aborted

    def copy(self, pages):
        for _, taken, _ in self.frozen:
            for snapshot in taken:
                snapshot.keyed[0].copy_pages(pages)

    def finish(self, outcome):
        if not self.frozen:
            return
        checkpoint_id, taken, model = self.frozen.pop(0)
        if outcome == "aborted":
            return
        for snapshot in taken:
            while not snapshot.keyed[0].copy_pages(1):
                pass
        encoded = [s.keyed[0].encode() for s in taken]
        if outcome == "failed":
            for snapshot, files in zip(taken, encoded, strict=True):
                half = {e.position: self.write(e) for e in files[::2]}
                snapshot.keyed[0].durable(half)
                snapshot.keyed[0].failed()
            return
        keyed = []
        for snapshot, files in zip(taken, encoded, strict=True):
            snapshot.keyed[0].durable({e.position: self.write(e) for e in files})
            keyed.append(snapshot.keyed[0].snapshot())
        restored = [state for s in taken for state in s.operator]
        self.complete = ((keyed, restored), len(taken), model)
        for operator, _ in self.subtasks:
            operator.notify_complete(CommitPermit("j", "r", 1, checkpoint_id, checkpoint_id))

    def compact(self, done):
        for _, store in self.subtasks:
            job = store.compaction()
            if job is not None:
                encoded = job.run(self.read)
                store.compacted(job, self.write(encoded) if done else None)


def clip(snapshot, owned):
    common = HashRange(snapshot.hash_low, snapshot.hash_high).intersect(owned)
    if common is None:
        return None
    parts = [(s, HashRange(s.clip_low, s.clip_high).intersect(common)) for s in snapshot.segments]
    segments = tuple(replace(s, clip_low=p.low, clip_high=p.high) for s, p in parts if p is not None)
    return replace(snapshot, segments=segments, hash_low=common.low, hash_high=common.high)


def micros(moment):
    return int(pa.scalar(moment, pa.timestamp("us", tz="UTC")).value)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 60)),
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 60)),
        st.tuples(st.just("watermark"), st.integers(0, 3), st.integers(0, 150)),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("copy"), st.integers(1, 3)),
        st.tuples(st.just("finish"), st.sampled_from(["done", "done", "done", "failed", "aborted"])),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("begin_fetch")),
        st.tuples(st.just("end_fetch")),
        st.tuples(st.just("restart"), st.integers(1, 4)),
    ),
    max_size=50,
)
#: Size, slide, offset, step of cumulative windows, allowed lateness.
_SHAPES = [(100, 100, 0, 0), (100, 100, 33, 0), (90, 30, 7, 0), (100, 40, 0, 0), (30, 70, 0, 0), (120, 120, 7, 30)]
WINDOWS = st.sampled_from([(*shape, lateness) for shape in _SHAPES for lateness in (0, 0, 60)])


def play(job, operations):
    now, marks = 0, {}
    for name, *arguments in operations:
        if name == "batch":
            now += 10
            job.batch(*arguments, now - 200)
        elif name == "watermark":
            subtask = arguments[0] % len(job.subtasks)
            marks[subtask] = max(marks.get(subtask, -400), now - 300 + arguments[1])
            job.watermark(subtask, marks[subtask])
        elif name == "restart":
            marks = {}
            job.start(*arguments)
        else:
            getattr(job, name)(*arguments)
    for subtask in range(len(job.subtasks)):
        job.watermark(subtask, MAX_TIMESTAMP)
    for operator, _ in job.subtasks:
        assert operator._table.panes() == []


WAYS = ["hashmap", "rocksdb", "remote", "combined", "routed", "values", "values, rocksdb", "values, remote"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", list(KEYS))
@examples(12)
@given(operations=OPERATIONS, window=WINDOWS, local_bytes=st.sampled_from(LOCAL_BYTES))
def test_output_is_the_models(way, kind, operations, window, local_bytes):
    with tempfile.TemporaryDirectory() as folder, small_pieces():
        backend = next((name for name in ("rocksdb", "remote") if name in way), "hashmap")
        job = Job(folder, kind, window, backend, way, local_bytes)
        play(job, operations)
        for _, store in job.subtasks:
            store.close()


def episodes(seed, count):
    """A long random job: subtasks drift apart in event time, checkpoints and restarts come often."""
    random = Random(seed)
    for _ in range(count):
        for _ in range(random.randrange(1, 4)):
            yield "batch", random.randrange(1 << 30), random.randrange(1, 60)
            yield "watermark", random.randrange(4), random.randrange(300)
        if random.random() < 0.6:
            yield ("freeze",)
            for _ in range(random.randrange(3)):
                yield "batch", random.randrange(1 << 30), random.randrange(1, 40)
                yield "watermark", random.randrange(4), random.randrange(300)
                yield "copy", 1
                if random.random() < 0.3:
                    yield ("freeze",)
            yield "finish", random.choice(["done", "done", "failed", "aborted"])
        if random.random() < 0.3:
            yield "finish", "done"
            yield "compact", random.random() < 0.8
            yield "restart", random.randrange(1, 5)
            yield ("begin_fetch",)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "remote"])
@pytest.mark.parametrize("window", [(100, 100, 33, 0, 0), (200, 40, 0, 0, 0), (200, 200, 0, 50, 0), (90, 30, 7, 0, 70)])
def test_long_jobs(backend, window, seed, tmp_path):
    way = {1: "values", 2: "routed", 3: "combined"}.get(seed, "plain")
    job = Job(tmp_path, list(KEYS)[seed % len(KEYS)], window, backend, way)
    with small_pieces():
        play(job, episodes(seed, 40))
    for _, store in job.subtasks:
        store.close()
