"""Subtasks of an operator over their state, a store of files, and the newest complete checkpoint, beside a model.

Steps of a history are methods: freezes, uploads that fail, aborts, compactions, fetches in the background, crashes and
restarts with another parallelism. A crash takes the model back with the job: models are saved with pickle.
"""

import json
import pickle
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import pyarrow as pa
from tests.property.harness.backends import MEMORY
from tests.property.harness.collect import Collector
from tests.property.harness.files import Files
from tests.support.memory import folder_in_memory

from penstock.core.clock import ManualClock
from penstock.core.elements import MIN_TIMESTAMP, Barrier, Batch, Watermark
from penstock.core.keygroup import hash_range_of
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.graph.restore_plan import clip_keyed
from penstock.graph.state_check import restorable_states
from penstock.graph.state_redistribution import redistribute
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.log.segments import read_state
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

KEY_GROUPS = 64


class Input(NamedTuple):
    """Rows of a schema by some of its columns; without a key every subtask has all of them."""

    schema: pa.Schema
    key: tuple


class Complete(NamedTuple):
    """The newest complete checkpoint, and the model as it was then."""

    keyed: tuple
    #: Pairs of a subtask and a state that it left.
    operator: tuple
    model: bytes
    parallelism: int = 1
    #: What the clock showed.
    clock: dict = {}


def spec_of(kind, config, **more):
    """Return what a job graph says of an operator."""
    return SimpleNamespace(**{"uid": "op", "name": "op", "kind": kind, "config": config, "operator_states": {}, **more})


class Job:
    """Subtasks of one operator.

    A key is a tuple of its columns, or the value where it has one column. `opened` is called with each operator that
    was opened; `create` makes one of a kind.
    """

    #: How often a later checkpoint was added to prepared state, by kind of operator.
    advanced = Counter()

    def __init__(self, spec, inputs, keys, model, backend=MEMORY, *, clock=None, opened=None, create=create_operator):
        self.spec, self.inputs, self.model, self.backend = spec, inputs, model, backend
        self.opened, self.create = opened, create
        self.settings = backend.settings
        self._folder = folder_in_memory()
        self.folder = Path(self._folder.name)
        self.files = Files()
        self.clock = clock or ManualClock(start_ms=0)
        self.hash = _hashes(inputs[0], keys)
        self.complete = Complete((), (), pickle.dumps(model))
        #: The two checkpoints before it, the older one first.
        self.earlier = (self.complete, self.complete)
        self.checkpoint_id = self.attempt = 0
        #: How many of these the next start prepares, one after the other.
        self.prepares = 0
        #: The latest time that the clock showed when state was last prepared.
        self.prepared_at = 0
        self.subtasks = []
        #: Pending output by operator, and the state that its rows wait for.
        self.queues, self.fetched = {}, {}
        self.start(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self._folder.cleanup()

    def close(self):
        """Close the subtasks."""
        for operator, store in self.subtasks:
            operator.close()
            store.close()
        self.subtasks = []

    def start(self, parallelism):
        """Crash, and go on from the newest complete checkpoint."""
        self.close()
        self.attempt += 1
        self.frozen, self.fetching = [], []
        self.model = pickle.loads(self.complete.model)
        self.marks = [MIN_TIMESTAMP] * parallelism
        self.metrics = [OperatorMetrics() for _ in range(parallelism)]
        rounds, self.prepares = self.earlier[2 - self.prepares :], 0
        for subtask in range(parallelism):
            store = self.store((*rounds, self.complete)[0], subtask, parallelism)
            store = self.prepared(store, rounds, subtask, parallelism)
            operator = self.open(subtask, parallelism, store, self.complete)
            store.finish_restore(self.pending[1])
            self.queues[id(operator)], self.fetched[id(operator)] = self.pending
            if self.opened is not None:
                self.opened(operator)
            self.subtasks.append((operator, store))

    def prepared(self, store, rounds, subtask, parallelism):
        """Return the newest state of a subtask whose state was loaded at the first of some earlier checkpoints.

        The clock showed the time of each of these checkpoints, or of the newest one.
        """
        now = dict(vars(self.clock))
        self.prepared_at = 0 if rounds else self.prepared_at
        for loaded, following in zip(rounds, [*rounds, self.complete][1:], strict=True):
            vars(self.clock).update((self.complete if self.attempt % 2 else loaded).clock)
            self.prepared_at = max(self.prepared_at, self.clock.now_ms())
            self.open(subtask, parallelism, store, loaded).close()
            vars(self.clock).update(now)
            if store.advance(self.clipped(following, hash_range_of(subtask, parallelism, KEY_GROUPS))):
                self.advanced[self.spec.kind] += 1
            else:
                store.close()
                store = self.store(following, subtask, parallelism)
        return store

    def clipped(self, complete, owned):
        """Return the keyed state of a checkpoint in a range of hashes."""
        return tuple(c for s in complete.keyed if (c := clip_keyed(s, owned)) is not None)

    def store(self, complete, subtask, parallelism):
        """Return the keyed state of a subtask at a checkpoint."""
        owned = hash_range_of(subtask, parallelism, KEY_GROUPS)
        return open_keyed_state(
            KeyedStateRequest(
                uid=self.spec.uid,
                snapshots=self.clipped(complete, owned),
                hash_range=owned,
                settings=self.settings,
                read=self.files.read,
                directory=self.folder / f"{self.attempt}-{subtask}",
                writer=f"run/v/{subtask}/{self.attempt}",
                budget=MemoryBudget(self.backend.budget),
                limits=self.backend.limits,
                in_parts=self.backend.in_parts and complete is self.complete,
            )
        )

    def open(self, subtask, parallelism, store, complete):
        """Return an operator that was opened with the state of a checkpoint."""
        operator = self.create(self.spec.kind)
        restored = restorable_states(self.spec, complete.operator, ())
        context = SimpleNamespace(
            spec=self.spec,
            job_name="j",
            subtask=subtask,
            parallelism=parallelism,
            clock=self.clock,
            hash_range=hash_range_of(subtask, parallelism, KEY_GROUPS),
            settings=self.settings,
            metrics=self.metrics[subtask],
            input_schemas=tuple(one.schema for one in self.inputs),
            keyed_state=store,
            restored=redistribute(restored, complete.parallelism, parallelism)[subtask],
            limits=self.backend.limits,
        )
        opened = operator.open(context)
        self.pending = opened.pending_output, opened.arriving
        return operator

    @property
    def operators(self):
        """The operators of all subtasks."""
        return [operator for operator, _ in self.subtasks]

    @property
    def stores(self):
        """The keyed state of all subtasks."""
        return [store for _, store in self.subtasks]

    def owned(self, subtask):
        """Return the keys of a subtask."""
        owned = hash_range_of(subtask, len(self.subtasks), KEY_GROUPS)
        return [key for key, hashed in self.hash.items() if hashed in owned]

    def parts(self, rows, side=0):
        """Yield each subtask that has some of these rows, and its rows."""
        columns = self.inputs[side].key
        for subtask in range(len(self.subtasks)):
            keys = set(self.owned(subtask))
            mine = [row for row in rows if not columns or _key_of(row, self.inputs[side]) in keys]
            if mine:
                yield subtask, mine

    def batch(self, rows, side=0):
        """Return rows as one batch."""
        # a slice at an odd offset: validity bits do not begin with a byte
        return Batch(batch_of([rows[0], *rows], self.inputs[side].schema).slice(1))

    def push(self, subtask, rows, side=0):
        """Give rows to a subtask as one batch; return what it emits."""
        return self.process(subtask, self.batch(rows, side), side)

    def push_with_late(self, sent, late, *, routed):
        """Give (subtask, batch) one after another; return the rows that are emitted.

        The late rows have to be put aside as they are, or to be counted where they are not routed.
        """
        found, aside, dropped = [], [], 0
        for subtask, batch in sent:
            before = self.late_of(subtask)
            out = self.process(subtask, batch)
            found += out.rows
            aside += out.late
            assert out.late_schema in (None, self.inputs[0].schema)
            dropped += self.late_of(subtask) - before
        assert dropped == (0 if routed else len(late))
        assert sorted(map(repr, aside)) == sorted(repr(("late", row)) for row in late if routed)
        return found

    def process(self, subtask, batch, side=0):
        """Give a batch to a subtask; return what it emits."""
        out, operator = Collector(), self.subtasks[subtask][0]
        operator.process_batch(batch, side, out)
        return self.emit_ready(operator, out)

    def late_of(self, subtask):
        """Return how many rows a subtask has dropped since it started."""
        return self.metrics[subtask].late_records_dropped

    def watermark(self, subtask, timestamp):
        """Give a watermark to a subtask, which passes it on; return what it emits."""
        out, operator = Collector(), self.subtasks[subtask][0]
        operator.process_watermark(Watermark(timestamp), out)
        self.emit_ready(operator, out)
        self.marks[subtask] = max(self.marks[subtask], timestamp)
        assert out.watermarks == [timestamp]
        return out

    def time(self, subtask):
        """Give the time of the clock to a subtask; return what it emits."""
        out, operator = Collector(), self.subtasks[subtask][0]
        operator.process_time(self.clock.now_ms(), out)
        return self.emit_ready(operator, out)

    def emit_ready(self, operator, out):
        """Take the output that comes in pieces; each of them is small."""
        limits = self.backend.limits
        queue = self.queues[id(operator)]
        while queue is not None and queue.has_pending_output:
            assert not queue.available
            before = len(out.rows)
            queue.emit_ready(out)
            assert len(out.rows) - before < 2 * limits.output_rows + limits.join_pairs
        return out

    def freeze(self):
        """Begin a checkpoint; two may be under way, an older one is aborted."""
        self.checkpoint_id += 1
        taken = [operator.snapshot(Barrier(self.checkpoint_id), Collector()) for operator in self.operators]
        self.frozen = [*self.frozen[-1:], (self.checkpoint_id, taken, pickle.dumps(self.model))]

    def copy(self, pages):
        """Copy some pages of the checkpoints under way."""
        for _, taken, _ in self.frozen:
            for frozen in (state for snapshot in taken for state in snapshot.keyed):
                frozen.copy_pages(pages)

    def finish(self, outcome):
        """End the oldest checkpoint: done, aborted, failed before an upload or with half of the files uploaded."""
        if not self.frozen:
            return
        checkpoint_id, taken, model = self.frozen.pop(0)
        if outcome == "aborted":
            return
        keyed = tuple(one for state in taken for frozen in state.keyed if (one := self._upload(frozen, outcome)))
        if outcome != "done":
            return
        operator = tuple((subtask, _saved(state)) for subtask, one in enumerate(taken) for state in one.operator)
        self.files.keep((*self.earlier[1].keyed, *self.complete.keyed, *keyed), self.earlier[0].keyed)
        self.earlier = (self.earlier[1], self.complete)
        self.complete = Complete(keyed, operator, model, len(taken), dict(vars(self.clock)))
        for operator in self.operators:
            operator.notify_complete(CommitPermit("j", "r", 1, checkpoint_id, checkpoint_id))
        for store in self.stores:
            store.completed(checkpoint_id)

    def _upload(self, frozen, outcome):
        while not frozen.copy_pages(1):
            pass
        encoded = frozen.encode()
        if outcome != "failed":
            frozen.durable({e.position: self.files.write(e) for e in encoded[:: 2 if outcome == "half" else 1]})
        return frozen.snapshot() if outcome == "done" else None

    def checkpoint(self):
        """Complete all checkpoints under way, and one more."""
        while self.frozen:
            self.finish("done")
        self.freeze()
        self.finish("done")

    def rescale(self, parallelism):
        """Go on from here with another number of subtasks."""
        self.checkpoint()
        self.start(parallelism)

    def compact(self, done=True):
        """Merge segments; the upload may fail."""
        for store in self.stores:
            job = store.compaction()
            if job is not None:
                encoded = job.run(self.files.read)
                store.compacted(job, self.files.write(encoded) if done else None)

    def begin_fetch(self):
        """Have the background begin to fetch."""
        self.fetching = [job for store in self.stores if (job := store.prefetch()) is not None]

    def end_fetch(self):
        """Have what the background fetched arrive."""
        for job in self.fetching:
            try:
                job.run()
            except KeyError:  # compacted and removed meanwhile
                continue
            job.install()
        self.fetching = []

    def move(self, backend):
        """Have the state elsewhere from the next start on."""
        self.backend, self.settings = backend, backend.settings

    def amend(self, change):
        """Change the model as the newest complete checkpoint has it."""
        model = pickle.loads(self.complete.model)
        change(model)
        self.complete = self.complete._replace(model=pickle.dumps(model))

    def look(self, subtask, state, key, most=1000):
        """Return the rows that are shown of a key when somebody asks for them from outside."""
        columns = self.inputs[0].key
        batch = batch_of([dict(zip(columns, _tuple(key), strict=True))], _fields(self.inputs[0]))
        return self.stores[subtask].tables[state].look_up(*keys_of(batch, columns), most).to_pylist()

    def rows_of(self, state):
        """Return what the newest complete checkpoint has of a state, as an offline reader sees it."""
        keyed = [one for one in self.complete.keyed if one.state == state]
        return [row for one in keyed for table in read_state(one, self.files.read) for row in table.to_pylist()]


def batch_of(rows, schema):
    """Return rows, which are dicts or tuples, as a batch."""
    named = [row if isinstance(row, dict) else dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(named, schema=schema)


def keys_of(batch, columns):
    """Return the keys of a batch and their hashes, as state takes them."""
    return key_columns(batch, columns), hash_columns(batch, columns)


def _saved(state):
    """Return operator state as it comes out of a manifest."""
    text = json.dumps(msgspec.to_builtins(state), allow_nan=False)
    return msgspec.convert(json.loads(text), OperatorStateSnapshot)


def _tuple(key):
    return key if isinstance(key, tuple) else (key,)


def _key_of(row, one):
    places = one.key if isinstance(row, dict) else [one.schema.get_field_index(c) for c in one.key]
    return row[places[0]] if len(places) == 1 else tuple(row[place] for place in places)


def _fields(one):
    return pa.schema([one.schema.field(c) for c in one.key])


def _hashes(one, keys):
    if not keys:
        return {}
    rows = [dict(zip(one.key, _tuple(key), strict=True)) for key in keys]
    return dict(zip(keys, hash_columns(batch_of(rows, _fields(one)), one.key).tolist(), strict=True))
