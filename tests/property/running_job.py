"""Subtasks of a running aggregate or a deduplication over their state, a store of files, and plain Python models.

For tests that compare rows: freezes, failed uploads, aborts, compactions, restarts with another parallelism or backend
and steps of the clock in both directions take the model along.
"""

import copy
import math
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.harness.clock import SteppingClock
from tests.property.small_pieces import Fetching, part
from tests.support.sizes import sizes

from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN, Barrier, Batch
from penstock.core.keygroup import hash_range_of
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import FileRef
from penstock.graph.restore_plan import clip_keyed
from penstock.kernels.columns import key_columns
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
#: Their order is that of their bytes, whatever their length.
STRINGS = ["", "a", "a\0", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", "ä", "\U0001f600", "z" * 40]
KEYS = {
    "one": (("a",), [(i,) for i in range(15)]),
    "null": (("a",), [(None,), *((i,) for i in range(9))]),
    "two": (("a", "s"), [(a, s) for a in (None, 1, 2) for s in (None, "1", "x" * 40)]),
}


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
        self.clock = SteppingClock()
        #: The latest time at which any subtask has written.
        self.latest = 0
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
        #: What each subtask takes for the time.
        self.held = [self.time_of(operator) for operator, _ in self.subtasks]
        if self.model.ttl_ms is not None:
            for subtask in range(parallelism):
                self.went_on(subtask)

    def time_of(self, operator):
        ttl = operator._table.source.ttl
        return self.clock.now_ms() if ttl is None else ttl.clock.now // 1000

    def went_on(self, subtask):
        """Time goes on from what was restored, and from the clock.

        What had expired by a clock that is behind now may have been removed, or not: it shows.
        """
        model, now = self.model, self.held[subtask]
        assert self.clock.now_ms() <= now <= max(self.latest, self.clock.now_ms())
        for name in self.keys_of(subtask):
            if model.alive(name, now) and not model.alive(name, model.seen[name]):
                if not self.found(subtask, name).num_rows:
                    model.forget(name)
            elif name in model.held:
                assert not model.alive(name, now) or model.times[name] <= now
            model.seen[name] = now

    def move(self, backend):
        """From the next restart on state is elsewhere."""
        self.backend = backend
        self.settings = replace(self.settings, state_backend=backend)

    def keys_of(self, subtask):
        owned = hash_range_of(subtask, len(self.subtasks), KEY_GROUPS)
        return [name for name, hashed in self.hash.items() if hashed in owned]

    def found(self, subtask, name):
        """What is said when somebody asks for a key."""
        columns = {c: pa.array([v], SCHEMA.field(c).type) for c, v in zip(self.model.key, name, strict=True)}
        asked = pa.RecordBatch.from_pydict(columns)
        table = self.subtasks[subtask][0]._table
        return table.look_up(key_columns(asked, self.model.key), hash_columns(asked, self.model.key), 10)

    def question(self):
        for subtask in range(len(self.subtasks)):
            for name in self.keys_of(subtask):
                assert self.found(subtask, name).num_rows == self.model.alive(name, self.held[subtask])

    def open(self, subtask, parallelism, snapshots):
        owned = hash_range_of(subtask, parallelism, KEY_GROUPS)
        store = open_keyed_state(
            KeyedStateRequest(
                uid="op",
                snapshots=tuple(c for s in snapshots if (c := clip_keyed(s, owned)) is not None),
                hash_range=owned,
                settings=self.settings,
                read=self.read,
                directory=self.folder / f"{self.attempt}-{subtask}",
                writer=f"run/v/{subtask}/{self.attempt}",
                # with a cold side less than one page: every batch evicts
                budget=MemoryBudget(64 << 20 if self.backend == "hashmap" else 50_000),
                limits=sizes(),
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
                limits=sizes(),
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
        self.clock.now += milliseconds

    def batch(self, seed, count):
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
        self.give(rows)

    def give(self, rows):
        for s, (operator, _) in enumerate(self.subtasks):
            keys = self.keys_of(s)
            mine = [r for r in rows if self.model.name_of(r) in keys]
            if not mine:
                continue
            self.model.now = self.held[s] = max(self.held[s], self.clock.now_ms())
            self.latest = max(self.latest, self.held[s])
            self.model.looked_at(keys)
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

    def save(self):
        """A checkpoint of its own."""
        self.frozen = []
        self.freeze()
        self.finish("done")

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


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 60)),
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 4)),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("tick"), st.sampled_from([1, 2_500, 9_999, 10_000, -2_500, -30_000])),
        st.tuples(st.just("question")),
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
