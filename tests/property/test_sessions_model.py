"""Session windows over their state against a plain Python model.

Any order of batches, watermarks, freezes, failed uploads, compactions, restores and rescales gives the model's output;
late rows are counted or put aside, or within the allowed lateness make their session come out again.
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property import process_job
from tests.property.process_job import keys_leave, keys_leave_for_rocksdb
from tests.property.small_pieces import part
from tests.support import sizes as state_sizes
from tests.support.depth import examples

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.keygroup import hash_range_of
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import FileRef
from penstock.graph.restore_plan import clip_keyed
from penstock.kernels.hashing import hash_columns
from penstock.operators.operator import OperatorMetrics
from penstock.operators.session import SessionAggregateOperator
from penstock.state.budget import MemoryBudget
from penstock.state.segments import read_state
from penstock.state.store import KeyedStateRequest, open_keyed_state

UID, KEY_GROUPS = "sessions", 64
KEYS = [None, "", *(f"key-{i}" for i in range(6))]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("v", pa.int32()),
        pa.field("x", pa.float64(), nullable=False),
        pa.field("t", pa.large_string()),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
AGGREGATES = [
    {"fn": "count", "column": None, "alias": "n"},
    {"fn": "sum", "column": "v", "alias": "total"},
    {"fn": "max", "column": "x", "alias": "most"},
    {"fn": "first", "column": "x", "alias": "first"},
    {"fn": "last", "column": "x", "alias": "last"},
    {"fn": "min", "column": "t", "alias": "least_text"},
    {"fn": "max", "column": "t", "alias": "most_text"},
]


class Out:
    def __init__(self):
        self.rows, self.late, self.watermarks = [], [], []

    def batch(self, batch):
        assert batch.num_rows
        self.rows += batch.data.to_pylist()

    def side(self, tag, batch):
        assert batch.num_rows
        assert (tag, batch.data.schema) == ("late", SCHEMA)
        self.late += batch.data.to_pylist()

    def watermark(self, watermark):
        self.watermarks.append(watermark.timestamp)


class Model:
    """Sessions as lists of rows in order of arrival; each key has the watermark its subtask had."""

    def __init__(self, gap, lateness=0):
        self.gap, self.lateness, self.late = gap, lateness, []
        self.sessions = {key: [] for key in KEYS}
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def copy(self):
        other = Model(self.gap, self.lateness)
        other.sessions = {k: [list(s) for s in v] for k, v in self.sessions.items()}
        other.marks = dict(self.marks)
        return other

    def add(self, row):
        key, time = row["k"], row[TS_COLUMN]
        mine = self.sessions[key]
        touched = [s for s in mine if first(s) - self.gap <= time <= last(s) + self.gap]
        merged = [r for s in touched for r in s] + [row]
        if last(merged) + self.gap - 1 + self.lateness <= self.marks[key]:
            self.late.append(row)
            return None
        self.sessions[key] = [s for s in mine if s not in touched] + [merged]
        return row

    def fire_again(self, rows):
        """Return the sessions with one of these rows that had ended already."""
        ended = [
            (key, s)
            for key, mine in self.sessions.items()
            for s in mine
            if last(s) + self.gap - 1 <= self.marks[key] and any(r is row for r in s for row in rows)
        ]
        return [self.result(key, s) for key, s in ended]

    def advance(self, keys, watermark):
        fired = []
        for key in keys:
            ends = [(last(s) + self.gap - 1, s) for s in self.sessions[key]]
            ended = [s for end, s in ends if self.marks[key] < end <= watermark]
            self.sessions[key] = [s for end, s in ends if end + self.lateness > watermark]
            self.marks[key] = max(self.marks[key], watermark)
            fired += [self.result(key, s) for s in ended]
        return fired

    def result(self, key, rows):
        values = [r["v"] for r in rows if r["v"] is not None]
        texts = [r["t"] for r in rows if r["t"] is not None]
        return {
            "k": key,
            "window_start": first(rows),
            "window_end": last(rows) + self.gap,
            "n": len(rows),
            "total": sum(values) if values else None,
            "most": max(r["x"] for r in rows),
            "least_text": min(texts, default=None),
            "most_text": max(texts, default=None),
            "first": {r["x"] for r in rows if r[TS_COLUMN] == first(rows)},
            "last": {r["x"] for r in rows if r[TS_COLUMN] == last(rows)},
            TS_COLUMN: last(rows) + self.gap - 1,
        }


def first(rows):
    return min(r[TS_COLUMN] for r in rows)


def last(rows):
    return max(r[TS_COLUMN] for r in rows)


def order(rows):
    return sorted(rows, key=lambda r: repr([r["k"], r["window_start"]]))


class Job:
    """Subtasks of the operator, a store of files, and the newest complete checkpoint."""

    def __init__(self, folder, gap, lateness=0, *, routed=False):
        self.folder, self.gap = Path(folder), gap
        self.config = {"key": ["k"], "window": {"kind": "session", "gap_us": gap}, "aggregates": AGGREGATES}
        if routed:
            self.config["late_to"] = {"tag": "late", "columns": SCHEMA.names}
        self.config["allowed_lateness_us"] = lateness
        self.files, self.frozen, self.subtasks = {}, [], []
        self.model = Model(gap, lateness)
        self.complete = (None, self.model.copy())
        self.checkpoint_id = self.attempt = self.late = 0
        batch = pa.RecordBatch.from_pydict({"k": pa.array(KEYS, pa.string())})
        self.hash = dict(zip(KEYS, hash_columns(batch, ("k",)).tolist(), strict=True))
        self.restart(1)

    def restart(self, parallelism):
        for _, store in self.subtasks:
            store.close()
        self.attempt += 1
        self.frozen, self.late, self.aside = [], 0, []
        saved, model = self.complete
        self.model = model.copy()
        self.subtasks = [self.open(hash_range_of(s, parallelism, KEY_GROUPS), s, saved) for s in range(parallelism)]

    def open(self, owned, subtask, saved):
        keyed, restored = saved or ([], [])
        store = open_keyed_state(
            KeyedStateRequest(
                uid=UID,
                snapshots=tuple(c for s in keyed if (c := clip_keyed(s, owned)) is not None),
                hash_range=owned,
                settings=process_job.SETTINGS,
                read=self.read,
                directory=self.folder / f"{self.attempt}-{subtask}",
                writer=f"run/v/{subtask}/{self.attempt}",
                budget=MemoryBudget(64 << 20),
                limits=state_sizes.sizes(),
            )
        )
        operator = SessionAggregateOperator()
        operator.open(
            SimpleNamespace(
                spec=SimpleNamespace(uid=UID, config=self.config),
                hash_range=owned,
                metrics=OperatorMetrics(),
                input_schemas=(SCHEMA,),
                keyed_state=store,
                limits=state_sizes.sizes(),
                restored=tuple(restored),
            )
        )
        operator._table.heap._least = operator._table.heap._most = 64  # compacted all the time
        return operator, store

    def owned(self, subtask):
        owned = hash_range_of(subtask, len(self.subtasks), KEY_GROUPS)
        return [key for key in KEYS if self.hash[key] in owned]

    def batch(self, seed, count, around):
        random = np.random.default_rng(seed)
        rows = []
        for _ in range(count):
            value = None if random.random() < 0.3 else int(random.integers(-50, 50))
            time = int(around + random.integers(-40, 40) * random.integers(1, 6))
            key = KEYS[int(random.integers(len(KEYS)))]
            text = None if random.random() < 0.2 else "text-" * int(random.integers(0, 3)) + str(random.integers(100))
            rows.append({"k": key, "v": value, "x": float(random.integers(-50, 50)), "t": text, TS_COLUMN: time})
        expected = self.model.fire_again([row for row in rows if self.model.add(row) is not None])
        found = []
        for s, (operator, _) in enumerate(self.subtasks):
            mine = [r for r in rows if r["k"] in self.owned(s)]
            if mine:
                data = pa.RecordBatch.from_pylist([mine[0], *mine], schema=SCHEMA).slice(1)
                before, out = operator._context.metrics.late_records_dropped, Out()
                operator.process_batch(Batch(data), 0, out)
                self.late += operator._context.metrics.late_records_dropped - before
                self.aside += out.late
                found += out.rows
        same(found, expected)
        if "late_to" in self.config:
            assert (self.late, sorted(map(repr, self.aside))) == (0, sorted(map(repr, self.model.late)))
        else:
            assert (self.late, self.aside) == (len(self.model.late), [])

    def watermark(self, subtask, timestamp):
        out = Out()
        self.subtasks[subtask][0].process_watermark(Watermark(timestamp), out)
        assert out.watermarks == [timestamp]
        same(out.rows, self.model.advance(self.owned(subtask), timestamp))

    def freeze(self):
        self.checkpoint_id += 1
        taken = [o.snapshot(Barrier(self.checkpoint_id), Out()) for o, _ in self.subtasks]
        self.frozen = [*self.frozen[-1:], (self.checkpoint_id, taken, self.model.copy())]

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
        keyed = []
        for snapshot in taken:
            for frozen in snapshot.keyed:
                while not frozen.copy_pages(1):
                    pass
                encoded = frozen.encode()
                if outcome == "failed":
                    frozen.failed()
                    continue
                frozen.durable({e.position: self.write(e) for e in encoded})
                keyed.append(frozen.snapshot())
        if outcome == "failed":
            return
        self.complete = ((keyed, [state for s in taken for state in s.operator]), model)
        sessions = [state for state in keyed if state.state == "sessions"]
        rows = [r for k in sessions for t in read_state(k, self.read) for r in t.to_pylist()]
        assert all(r["__rows"] > 0 for r in rows), "what was emptied is shown as a row"
        for operator, _ in self.subtasks:
            operator.notify_complete(CommitPermit("j", "r", 1, checkpoint_id, checkpoint_id))

    def compact(self):
        for _, store in self.subtasks:
            job = store.compaction()
            if job is not None:
                store.compacted(job, self.write(job.run(self.read)))

    def read(self, file):
        return part(self.files[file.path], file)

    def write(self, encoded):
        name = f"{self.attempt}/{len(self.files)}"
        self.files[name] = encoded.data
        return FileRef(path=name, length=len(encoded.data))


def same(found, expected):
    assert len(found) == len(expected)
    for got, wanted in zip(order(with_micros(found)), order(expected), strict=True):
        assert got.pop("first") in wanted.pop("first")
        assert got.pop("last") in wanted.pop("last")
        assert got == wanted


def with_micros(rows):
    kind = pa.timestamp("us", tz="UTC")
    bounds = ("window_start", "window_end")
    return [{**r, **{c: int(pa.scalar(r[c], kind).value) for c in bounds}} for r in rows]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 40)),
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 40)),
        st.tuples(st.just("watermark"), st.integers(0, 3), st.integers(0, 200)),
        st.tuples(st.just("watermark"), st.integers(0, 3), st.integers(0, 200)),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("copy"), st.integers(1, 3)),
        st.tuples(st.just("finish"), st.sampled_from(["done", "done", "done", "failed", "aborted"])),
        st.tuples(st.just("compact")),
        st.tuples(st.just("restart"), st.integers(1, 4)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize(("gap", "lateness"), [(7, 0), (30, 0), (100, 0), (7, 20), (30, 200), (100, 30)])
@examples(20)
@given(operations=OPERATIONS)
def test_output_is_the_models(gap, lateness, routed, operations):
    with tempfile.TemporaryDirectory() as folder:
        run(Job(folder, gap, lateness, routed=routed), operations)


def run(job, operations):
    now, marks = 0, {}
    for name, *arguments in operations:
        if name == "batch":
            now += 25
            job.batch(*arguments, now - 150)
        elif name == "watermark":
            subtask = arguments[0] % len(job.subtasks)
            marks[subtask] = max(marks.get(subtask, -400), now - 350 + arguments[1])
            job.watermark(subtask, marks[subtask])
        else:
            marks = {} if name == "restart" else marks
            getattr(job, name)(*arguments)
    for subtask in range(len(job.subtasks)):
        job.watermark(subtask, MAX_TIMESTAMP)
    for operator, store in job.subtasks:
        assert operator._table.panes() == [], "a pane outlives its sessions"
        store.close()


@pytest.fixture
def in_pieces(monkeypatch):
    """No more than two keys come back together, and hardly any stays behind a batch."""
    state_sizes.given(monkeypatch, incoming_keys=2, evicted_sessions=2, dead_keys=1)


@pytest.fixture
def leaving(monkeypatch, in_pieces):
    with keys_leave(monkeypatch, 1):
        yield


@pytest.fixture
def leaving_for_rocksdb(monkeypatch, in_pieces):
    keys_leave_for_rocksdb(monkeypatch, 1)


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize(("gap", "lateness"), [(7, 0), (30, 0), (100, 0), (7, 20), (30, 200), (100, 30)])
@examples(40)
@given(operations=OPERATIONS, routed=st.booleans())
def test_output_is_the_models_when_keys_leave_memory(gap, lateness, routed, operations):
    with tempfile.TemporaryDirectory() as folder:
        run(Job(folder, gap, lateness, routed=routed), operations)


@pytest.mark.usefixtures("leaving_for_rocksdb")
@examples(15)
@given(operations=OPERATIONS, gap=st.sampled_from([7, 30, 100]), lateness=st.sampled_from([0, 40]))
def test_output_is_the_models_when_keys_leave_for_rocksdb(gap, lateness, operations):
    with tempfile.TemporaryDirectory() as folder:
        run(Job(folder, gap, lateness), operations)


@pytest.mark.usefixtures("leaving")
def test_a_session_that_fired_before_its_key_left_does_not_come_out_again(tmp_path):
    """One fires, leaves for the other, and is back for its row at 5, which has to be in a newer pane from 49 on."""
    job = Job(tmp_path, 30, 20)
    for key, times in (("key-1", [45]), ("key-0", [5, 32])):
        rows = [{"k": key, "v": 1, "x": 1.0, "t": "", TS_COLUMN: time} for time in times]
        assert all(job.model.add(row) is not None for row in rows)
        job.subtasks[0][0].process_batch(Batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA)), 0, Out())
    for closed_to in (28, 50, 200):
        job.watermark(0, closed_to + 29)
    for _, store in job.subtasks:
        store.close()
