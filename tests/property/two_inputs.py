"""Subtasks of an operator with two keyed inputs, a store of files, and the newest complete checkpoint, beside a model.

A model has `copy()`, `row(side, row)` and `advance(keys, watermark)`, which return the rows that must come out, and
`late`, how many rows were late. Rows are dicts of the side's columns.
"""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from tests.property.process_job import PlainStore, keys_leave_for_rocksdb
from tests.property.small_pieces import Fetching, part
from tests.support.sizes import sizes

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.keygroup import hash_range_of
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import FileRef
from penstock.graph.restore_plan import clip_keyed
from penstock.kernels.hashing import hash_columns
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.budget import MemoryBudget
from penstock.state.segments import read_state
from penstock.state.store import KeyedStateRequest, open_keyed_state

UID, KEY_GROUPS = "two", 64
KEYS = [None, "", *(f"key-{i}" for i in range(5))]
LEFT = pa.schema(
    [
        pa.field("v", pa.int32()),
        pa.field("k", pa.string()),
        pa.field("s", pa.string()),
        pa.field("id", pa.int64(), nullable=False),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
RIGHT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("tags", pa.list_(pa.int64()), nullable=False),
        pa.field("k", pa.bool_()),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
SCHEMAS, KEY_NAMES = (LEFT, RIGHT), ("k", "key")
LATE_TO = {
    "late_to": {"left": {"tag": "l", "columns": LEFT.names}, "right": {"tag": "r", "columns": RIGHT.names}},
}
CONFIG = {"left_key": ["k"], "right_key": ["key"], "suffix": "_right"}


def joined(left, right):
    """The result row of a pair, or of one row and None."""
    row = {name: left and left[name] for name in ("v", "k", "s", "id")}
    row |= {f"{name}_right": right and right[name] for name in ("id", "k")}
    row["tags"] = right and right["tags"]
    row["k"] = left["k"] if left else right["key"]
    return row


class Out:
    def __init__(self):
        self.rows, self.watermarks, self.late = [], [], []

    def batch(self, batch):
        assert batch.num_rows
        batch.data.validate(full=True)
        self.rows += batch.data.to_pylist()

    def watermark(self, watermark):
        self.watermarks.append(watermark.timestamp)

    def side(self, tag, batch):
        self.late += [(tag, row) for row in batch.data.to_pylist()]

    def status(self, status):
        self.watermarks.append("idle" if status.idle else "active")


def counted(rows):
    return Counter(repr(sorted(row.items())) for row in rows)


def go_on(operator, out):
    """Do what the task does where output comes in pieces, and say that each of them is small."""
    while getattr(operator, "held", False):
        assert not operator.available
        before = len(out.rows)
        operator.go_on(out)
        assert len(out.rows) - before < 2 * sizes().output_rows + sizes().join_pairs


class Job(Fetching):
    fetching = ()

    def __init__(self, folder, spec, model, schemas=SCHEMAS, *, broadcast=False, backend="hashmap"):
        self.broadcast, self.backend = broadcast, backend
        self.folder, self.spec, self.model, self.schemas = Path(folder), spec, model, schemas
        self.files, self.frozen, self.subtasks = {}, [], []
        self.complete = (None, model.copy())
        self.checkpoint_id = self.attempt = self.late = self.next_id = 0
        self.clock = ManualClock(start_ms=0)
        self.emitted = 0
        #: No more keys than this stay in memory; None: any number.
        self.most_keys = None
        hashes = hash_columns(pa.record_batch({"k": pa.array(KEYS, pa.string())}), ("k",)).tolist()
        self.hash = dict(zip(KEYS, hashes, strict=True))
        self.restart(1)

    def restart(self, parallelism):
        for operator, store in self.subtasks:
            operator.close()
            store.close()
        self.attempt += 1
        self.frozen, self.fetching = [], []
        saved, model = self.complete
        self.model = model.copy()
        self.late = self.model.late
        self.metrics = [OperatorMetrics() for _ in range(parallelism)]
        self.subtasks = [self.open(hash_range_of(s, parallelism, KEY_GROUPS), s, saved) for s in range(parallelism)]

    def open(self, owned, subtask, saved):
        keyed, restored = saved or ([], [])
        store = open_keyed_state(
            KeyedStateRequest(
                uid=UID,
                snapshots=tuple(c for s in keyed if (c := clip_keyed(s, owned)) is not None),
                hash_range=owned,
                settings=JobSettings(state_backend=self.backend),
                read=self.read,
                directory=self.folder / f"{self.attempt}-{subtask}",
                writer=f"run/v/{subtask}/{self.attempt}",
                budget=MemoryBudget(64 << 20),
                limits=sizes(),
            )
        )
        operator = create_operator(self.spec.kind)
        operator.open(
            SimpleNamespace(
                spec=self.spec,
                job_name="j",
                subtask=subtask,
                parallelism=1,
                clock=self.clock,
                hash_range=owned,
                metrics=self.metrics[subtask],
                input_schemas=self.schemas,
                keyed_state=store,
                limits=sizes(),
                restored=tuple(restored),
            )
        )
        return operator, store

    def owned(self, subtask):
        owned = hash_range_of(subtask, len(self.subtasks), KEY_GROUPS)
        return [key for key in KEYS if self.hash[key] in owned]

    def batch(self, side, seed, count, around):
        random = np.random.default_rng(seed)
        rows = [self.drawn(random, side, around) for _ in range(count)]
        expected, late, out = [], [], Out()
        for row in rows:
            known = self.model.late
            expected += self.model.row(side, row)
            late += [row] * (self.model.late - known)
        for s, (operator, _) in enumerate(self.subtasks):
            everywhere = self.broadcast and side == 1
            mine = [r for r in rows if everywhere or r[KEY_NAMES[side]] in self.owned(s)]
            if mine:
                # a slice at an odd offset: validity bits do not begin with a byte
                data = pa.RecordBatch.from_pylist([mine[0], *mine], schema=self.schemas[side]).slice(1)
                before = self.dropped(s)
                operator.process_batch(Batch(data), side, out)
                go_on(operator, out)
                self.late += self.dropped(s) - before
        if "late_to" in self.spec.config:
            assert self.dropped(0) == 0
            assert {tag for tag, _ in out.late} <= {LATE_TO["late_to"][("left", "right")[side]]["tag"]}
            assert counted(row for _, row in out.late) == counted(late)
            self.late += len(out.late)
        self.emitted += len(out.rows)
        self.check_keys()
        assert counted(out.rows) == counted(expected)
        assert self.late == self.model.late

    def check_keys(self):
        """Whether a bound on the keys in memory has been kept to."""
        if self.most_keys is not None:
            assert all(operator._state.rows.index.count <= self.most_keys for operator, _ in self.subtasks)

    def dropped(self, subtask):
        return self.metrics[subtask].late_records_dropped

    def drawn(self, random, side, around):
        self.next_id += 1
        key = KEYS[int(random.integers(len(KEYS)))]
        time = int(around + random.integers(-40, 40) * random.integers(1, 6))
        number, null = int(random.integers(100)), random.random() < 0.3
        if side:
            tags = [number] * int(random.integers(3))
            return {"id": self.next_id, "key": key, "tags": tags, "k": None if null else True, TS_COLUMN: time}
        return {"v": None if null else number, "k": key, "s": "x" * (number % 3), "id": self.next_id, TS_COLUMN: time}

    def watermark(self, subtask, timestamp):
        out = Out()
        operator = self.subtasks[subtask][0]
        # behind a restore a function has seen the watermark of before, and a lower one lets no timer fire
        seen = getattr(getattr(operator, "_context", None), "watermark", MIN_TIMESTAMP)
        operator.process_watermark(Watermark(timestamp), out)
        go_on(operator, out)
        assert out.watermarks == [timestamp]
        self.emitted += len(out.rows)
        self.check_keys()
        keys = self.owned(subtask) if timestamp > seen else []
        assert counted(out.rows) == counted(self.model.advance(keys, timestamp))

    def freeze(self):
        self.checkpoint_id += 1
        taken = [o.snapshot(Barrier(self.checkpoint_id), Out()) for o, _ in self.subtasks]
        self.frozen = [*self.frozen[-1:], (self.checkpoint_id, taken, self.model.copy())]

    def finish(self, outcome):
        if not self.frozen:
            return
        checkpoint_id, taken, model = self.frozen.pop(0)
        if outcome == "aborted":
            return
        keyed = []
        for frozen in (state for snapshot in taken for state in snapshot.keyed):
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
        for operator, _ in self.subtasks:
            operator.notify_complete(CommitPermit("j", "r", 1, checkpoint_id, checkpoint_id))

    def checkpoint(self):
        while self.frozen:
            self.finish("done")
        self.freeze()
        self.finish("done")

    def rows_of(self, state):
        """What the newest complete checkpoint holds of a state, as an offline reader sees it."""
        keyed = [s for s in (self.complete[0] or ([], []))[0] if s.state == state]
        return [
            row for k in keyed for t in read_state(k, lambda f: part(self.files[f.path], f)) for row in t.to_pylist()
        ]

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

    def close(self):
        for operator, store in self.subtasks:
            operator.close()
            store.close()


BACKENDS = st.sampled_from(["hashmap", "rocksdb"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 1), st.integers(0, 2**31), st.integers(5, 40)),
        st.tuples(st.just("batch"), st.integers(0, 1), st.integers(0, 2**31), st.integers(5, 40)),
        st.tuples(st.just("batch"), st.integers(0, 1), st.integers(0, 2**31), st.integers(5, 40)),
        st.tuples(st.just("watermark"), st.integers(0, 3), st.integers(0, 200)),
        st.tuples(st.just("watermark"), st.integers(0, 3), st.integers(0, 200)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("finish"), st.sampled_from(["done", "done", "done", "failed", "aborted"])),
        st.tuples(st.just("compact")),
        st.tuples(st.just("restart"), st.integers(1, 4)),
    ),
    min_size=15,
    max_size=50,
)


#: With state in the object store: what the background fetches goes in between.
REMOTE_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 1), st.integers(0, 2**31), st.integers(5, 40)),
        st.tuples(st.just("batch"), st.integers(0, 1), st.integers(0, 2**31), st.integers(5, 40)),
        st.tuples(st.just("watermark"), st.integers(0, 3), st.integers(0, 200)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("finish"), st.sampled_from(["done", "done", "done", "failed", "aborted"])),
        st.tuples(st.just("compact")),
        st.tuples(st.just("begin_fetch")),
        st.tuples(st.just("end_fetch")),
        st.tuples(st.just("restart"), st.integers(1, 4)),
        st.tuples(st.just("restart"), st.integers(1, 4)),
    ),
    min_size=15,
    max_size=50,
)
#: Keys in memory, and fetched bytes beyond which some are dropped: all at once, after some, never.
REMOTE = ((1, 1), (100, 1), (100, 40_000), (1, 1 << 50))


def rows_are_remote(monkeypatch, keys, local_bytes):
    """Have no more than so many keys in memory, and keep so many bytes of what was fetched."""
    monkeypatch.setattr("penstock.state.cold_places.ColdPlaces._open_store", lambda store, name: PlainStore())
    keys_leave_for_rocksdb(monkeypatch, keys)
    monkeypatch.setattr("penstock.state.cold_places.ColdPlaces._local_bytes", local_bytes)


def run(job, operations):
    """Do what is drawn, then let the end of time come."""
    now, marks = 0, {}
    for name, *arguments in operations:
        if name == "batch":
            now += 25
            job.batch(*arguments, now - 150)
        elif name == "watermark":
            subtask = arguments[0] % len(job.subtasks)
            mark = now - 350 + arguments[1]
            if mark > marks.get(subtask, -400):
                marks[subtask] = mark
                job.watermark(subtask, mark)
        else:
            marks = {} if name == "restart" else marks
            getattr(job, name)(*arguments)
