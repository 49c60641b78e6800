"""Subtasks of a process function over their state, a store of files, and the newest complete checkpoint.

For tests that compare a function with a plain model: freezes, failed uploads, aborts, compactions and restarts with
another parallelism take the models along.
"""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
from tests.property.small_pieces import Fetching, part, small_pieces
from tests.support.depth import depth
from tests.support.sizes import given, sizes

from penstock.api.data_stream import Flow
from penstock.api.keyed_stream import KeyedStream
from penstock.api.process import compile_process
from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import MIN_TIMESTAMP, Barrier, Batch
from penstock.core.keygroup import hash_range_of
from penstock.core.permits import CommitPermit
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef
from penstock.graph.restore_plan import clip_keyed
from penstock.kernels.hashing import hash_columns
from penstock.operators.process import KeyedProcessOperator
from penstock.state.budget import MemoryBudget
from penstock.state.store import KeyedStateRequest, open_keyed_state

KEY_GROUPS = 64
SETTINGS = JobSettings()


class PlainStore:
    """A cold store: a dict."""

    #: Keys written by all of them.
    written = 0

    def __init__(self):
        self.held = {}

    def put(self, keys, values):
        PlainStore.written += len(keys)
        self.held.update(zip(keys, values, strict=True))

    def get(self, keys):
        assert keys == sorted(keys)
        return [self.held.get(key) for key in keys]

    def delete(self, keys):
        for key in keys:
            self.held.pop(key, None)

    def delete_range(self, low, high):
        for key in [key for key in self.held if low <= key < high]:
            del self.held[key]

    def scan(self, low, high, piece=3):
        found = sorted(key for key in self.held if low <= key < high)
        for first in range(0, len(found), piece):
            keys = found[first : first + piece]
            yield keys, [self.held[key] for key in keys]

    def close(self):
        self.held.clear()


@contextmanager
def keys_leave(monkeypatch, keys):
    """Have no more than so many keys in memory, those of one batch aside; some do leave."""
    before = PlainStore.written
    monkeypatch.setattr("penstock.state.cold_places.ColdPlaces._open_store", lambda store, name: PlainStore())
    keys_leave_for_rocksdb(monkeypatch, keys)
    yield
    assert PlainStore.written > before or depth() == "fast", "few examples may keep all keys"


@contextmanager
def keys_are_remote(monkeypatch, keys, local_bytes):
    """Have no more than so many keys in memory, and fetch the others from segments of a few rows a row group."""
    with keys_leave(monkeypatch, keys), small_pieces():
        settings_are_remote(monkeypatch, local_bytes)
        yield


def settings_are_remote(monkeypatch, local_bytes):
    """Keep so many bytes of what was fetched."""
    monkeypatch.setattr("tests.property.process_job.SETTINGS", JobSettings(state_backend="remote"))
    monkeypatch.setattr("penstock.state.cold_places.ColdPlaces._local_bytes", local_bytes)


#: Keys in memory (a few, all), and fetched bytes beyond which some are dropped (at once, after some records, never).
REMOTE = ((3, 1), (100, 1), (100, 500), (3, 1 << 50))


def keys_leave_for_rocksdb(monkeypatch, keys):
    """Have no more than so many keys in memory."""
    monkeypatch.setattr("tests.property.process_job.SETTINGS", JobSettings(state_backend="rocksdb"))
    given(monkeypatch, hot_keys=keys, evicted_keys=2)


class Sink:
    def __init__(self):
        self.rows = []

    def batch(self, batch):
        batch.data.validate(full=True)
        self.rows += batch.data.to_pylist()

    def watermark(self, watermark):
        pass


class ProcessJob(Fetching):
    """The function by key `k` (text) of rows of `schema`; every key has a model, which can `copy` itself."""

    def __init__(self, folder, function, schema, models, clock=None):
        self.folder = Path(folder)
        self.schema = schema
        stream = KeyedStream(None, Flow(upstreams=(), schema=schema), ("k",))
        made = compile_process(function, None, {}, stream=stream)
        self.spec = SimpleNamespace(
            uid="fn", payload=made.spec.payload, config=made.spec.config, output_schema=schema_to_text(made.schema)
        )
        hashes = hash_columns(pa.record_batch({"k": pa.array(list(models), pa.string())}), ("k",)).tolist()
        self.hash = dict(zip(models, hashes, strict=True))
        self.clock = clock or ManualClock(start_ms=0)
        self.models = models
        self.files = {}
        self.complete = ([], self.copied())
        self.attempt = self.checkpoint_id = 0
        self.subtasks = []
        self.fetching = []
        self.start(1)

    def copied(self):
        return {key: model.copy() for key, model in self.models.items()}

    def start(self, parallelism):
        for operator, store in self.subtasks:
            operator.close()
            store.close()
        self.attempt += 1
        self.frozen, self.fetching = [], []
        snapshots, models = self.complete
        self.models = {key: model.copy() for key, model in models.items()}
        self.marks = [MIN_TIMESTAMP] * parallelism
        self.subtasks = [self.open(s, parallelism, snapshots) for s in range(parallelism)]

    def open(self, subtask, parallelism, snapshots):
        owned = hash_range_of(subtask, parallelism, KEY_GROUPS)
        store = open_keyed_state(
            KeyedStateRequest(
                uid="fn",
                snapshots=tuple(c for s in snapshots if (c := clip_keyed(s, owned)) is not None),
                hash_range=owned,
                settings=SETTINGS,
                read=self.read,
                directory=self.folder / f"{self.attempt}-{subtask}",
                writer=f"run/v/{subtask}/{self.attempt}",
                budget=MemoryBudget(1 << 30),
                limits=sizes(),
            )
        )
        operator = KeyedProcessOperator()
        operator.open(
            SimpleNamespace(
                spec=self.spec,
                job_name="j",
                subtask=subtask,
                parallelism=parallelism,
                hash_range=owned,
                clock=self.clock,
                input_schemas=(self.schema,),
                keyed_state=store,
                limits=sizes(),
                restored=(),
            )
        )
        return operator, store

    def read(self, file):
        return part(self.files[file.path], file)

    def write(self, encoded):
        name = str(len(self.files))
        self.files[name] = encoded.data
        return FileRef(path=name, length=len(encoded.data))

    def keys_of(self, subtask):
        owned = hash_range_of(subtask, len(self.subtasks), KEY_GROUPS)
        return [key for key, h in self.hash.items() if h in owned]

    def push(self, operator, rows):
        """Give rows to a subtask as one batch, return what it emits."""
        # a slice at an odd offset: validity bits do not begin with a byte
        by_column = zip(*[rows[0], *rows], strict=True)
        columns = [pa.array(list(c), f.type) for c, f in zip(by_column, self.schema, strict=True)]
        sink = Sink()
        operator.process_batch(Batch(pa.RecordBatch.from_arrays(columns, schema=self.schema).slice(1)), 0, sink)
        return sink

    def freeze(self):
        self.checkpoint_id += 1
        taken = [operator.snapshot(Barrier(self.checkpoint_id), Sink()).keyed for operator, _ in self.subtasks]
        self.frozen.append((self.checkpoint_id, taken, self.copied()))
        del self.frozen[:-2]  # two at a time; an older one is aborted

    def finish(self, outcome):
        if not self.frozen:
            return
        checkpoint_id, taken, models = self.frozen.pop(0)
        if outcome == "aborted":
            return
        snapshots = []
        for frozen in (state for states in taken for state in states):
            assert frozen.copy_pages(1)
            encoded = frozen.encode()
            if outcome == "failed":
                frozen.durable({e.position: self.write(e) for e in encoded[::2]})
                frozen.failed()
            else:
                frozen.durable({e.position: self.write(e) for e in encoded})
                snapshots.append(frozen.snapshot())
        if outcome == "done":
            self.complete = (snapshots, models)
            for operator, _ in self.subtasks:
                operator.notify_complete(CommitPermit("j", "r", 1, checkpoint_id, checkpoint_id))

    def checkpoint(self):
        while self.frozen:
            self.finish("done")
        self.freeze()
        self.finish("done")

    def compact(self, done):
        for _, store in self.subtasks:
            job = store.compaction()
            if job is not None:
                encoded = job.run(self.read)
                store.compacted(job, self.write(encoded) if done else None)
