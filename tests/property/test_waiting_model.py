"""Rows that wait for state that is fetched or loaded: barriers take them along, and restarts process them first.

Any history gives the output of the model: each key's rows are processed once, in their order, also after a rescale
that gives the waiting rows to other subtasks.
"""

from collections import deque
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from tests.property.harness.backends import FILES_IN_PARTS, MEMORY_IN_PARTS, REMOTE, REMOTE_FILES, on
from tests.property.harness.collect import same_rows
from tests.property.harness.histories import SEEDS, operations, play, step
from tests.property.running_models import KEYS, VALUES, Kept, Running, Steps, job_of

from penstock.network.in_flight import OvertakenRows, QueuedRows, decode_rows, encode_rows
from penstock.task.drive.waiting_rows import WaitingRows

MODELS = {"running": Running, "last": lambda key: Kept(key, "last", None), "first": lambda key: Kept(key, "first", "v")}
EVERY = MODELS | {"values": lambda key: Running(key, VALUES)}


def without_rows(model):
    """Let a model have no row that was not processed, and its checkpoint no rows in flight."""
    model.unprocessed, model.in_flight = {}, []


def rows_of(data):
    """Return the rows of a file of rows in flight."""
    return [row for batch in decode_rows(data, combined=False) for row in batch.data.to_pylist()]


class Complete:
    """State of which everything was there when its operator began."""

    complete, only_rows, changes = True, False, 0

    def unfetched(self, hashes):
        return np.zeros(len(hashes), np.bool_)

    def wait_for(self, hashes):
        raise AssertionError("nothing has to wait")


class WaitingSteps(Steps):
    """Batches whose rows may wait; the model has, by key, the rows that were not processed yet."""

    def __init__(self, job):
        super().__init__(job)
        without_rows(job.model)
        job.amend(without_rows)
        self.begin()

    def begin(self):
        job = self.job
        self.waiting = [WaitingRows(job.fetched[id(o)] or Complete(), [job.model.key], 1 << 20) for o in job.operators]

    def start(self, parallelism):
        super().start(parallelism)
        self.begin()
        again = self.job.model.in_flight
        without_rows(self.job.model)
        for data in again:
            self.rows(rows_of(data))

    def rows(self, rows):
        for subtask, mine in self.job.parts(rows):
            for row in mine:
                self.job.model.unprocessed.setdefault(self.job.model.name_of(row), deque()).append(row)
            passed = self.waiting[subtask].split(self.job.batch(mine), 0)
            if passed is not None:
                self.process(subtask, passed)

    def process(self, subtask, batch):
        model, expected = self.job.model, []
        for row in batch.data.to_pylist():
            assert model.unprocessed[model.name_of(row)].popleft() == row
            expected += model.add(row)
        same_rows(self.job.process(subtask, batch).rows, expected)

    def take(self):
        for subtask, waiting in enumerate(self.waiting):
            while (taken := waiting.take()) is not None:
                self.process(subtask, taken[1])

    def load(self):
        for store in self.job.stores:
            if store.restore is not None and not store.restore.complete:
                store.restore.load_next()

    def release(self):
        for waiting, store in zip(self.waiting, self.job.stores, strict=True):
            if store.restore is not None:
                store.restore.load_rest()
            else:
                waiting.release()
        self.take()

    def freeze(self):
        found = []
        for waiting in self.waiting:
            collected = OvertakenRows(1)
            collected.received = [QueuedRows("edge", None, rows, None) for _, rows in waiting.batches]
            found += [encode_rows(rows) for _, rows in collected.groups(0)]
        rows = [row for data in found for row in rows_of(data)]
        model = self.job.model
        for name, left in model.unprocessed.items():
            assert [row for row in rows if model.name_of(row) == name] == list(left)
        model.in_flight = found
        self.job.freeze()

    def checkpoint(self):
        while self.job.frozen:
            self.job.finish("done")
        self.freeze()
        self.job.finish("done")


def run(backend, name, kind, history):
    key, keys = KEYS[kind]
    with job_of(EVERY[name](key), keys, backend) as job:
        steps = WaitingSteps(job)
        play([("batch", 1, 40), ("checkpoint",), ("start", 2), *history], steps, job)
        play([("checkpoint",), ("start", 3), ("batch", 2, 40), ("release",)], steps, job)
        assert not any(job.model.unprocessed.values())


#: Ranges are fetched in the background alone, or by the operator too.
HISTORY = operations(
    step("batch", SEEDS, st.integers(1, 20), times=4),
    step("take", times=2),
    step("begin_fetch", times=2),
    step("end_fetch", times=2),
    step("checkpoint", times=2),
    step("release"),
    most=50,
)


@on((REMOTE_FILES, 60))
def test_each_row_is_processed_once_in_the_order_of_its_key(backend):
    backend.check(run, name=st.sampled_from(sorted(MODELS)), kind=st.sampled_from(sorted(KEYS)), history=HISTORY)


#: Parts are loaded in their order, and everything else happens between two of them.
IN_PARTS = operations(
    step("batch", SEEDS, st.integers(1, 20), times=4),
    step("take", times=2),
    step("load", times=6),
    step("compact"),
    step("checkpoint", times=2),
    step("start", st.integers(1, 3), times=2),
    step("release"),
    most=50,
)


@on((MEMORY_IN_PARTS, 60), (FILES_IN_PARTS, 60))
def test_rows_are_processed_while_the_state_of_others_is_loaded(backend):
    names = st.sampled_from(sorted(EVERY))
    backend.check(run, name=names, kind=st.sampled_from(sorted(KEYS)), history=IN_PARTS)


@on((REMOTE, 40))
def test_each_row_is_processed_once_over_values_of_any_length(backend):
    backend.check(run, name=st.just("values"), kind=st.sampled_from(sorted(KEYS)), history=HISTORY)


@on(REMOTE_FILES[-1])
def test_rows_wait_until_their_state_has_come(backend):
    with job_of(Running(("a",)), list(range(15)), backend) as job:
        steps = WaitingSteps(job)
        play([("batch", 1, 40), ("checkpoint",), ("start", 1), ("batch", 2, 40)], steps, job)
        assert steps.waiting[0]
        for _ in range(20):
            play([("begin_fetch",), ("end_fetch",), ("take",)], steps, job)
        assert not steps.waiting[0]
        assert not any(job.model.unprocessed.values())


@on(MEMORY_IN_PARTS, FILES_IN_PARTS)
def test_a_checkpoint_during_a_restore_keeps_the_state_that_is_not_loaded(backend):
    for number in range(10):
        with job_of(Running(("a",)), list(range(15)), backend) as job:
            steps = WaitingSteps(job)
            play([("batch", 1, 40), ("checkpoint",), ("start", 1), *[("load",)] * 3], steps, job)
            assert not job.stores[0].restore.complete
            play([("batch", number, 5), ("checkpoint",), ("start", 1), ("release",), ("batch", 2, 60)], steps, job)


@on(MEMORY_IN_PARTS, replace(FILES_IN_PARTS, budget=8_000_000))
def test_newer_segments_of_any_size_are_loaded_after_older_ones(backend):
    for number in range(10):
        with job_of(Running(("a",)), list(range(15)), backend) as job:
            steps = WaitingSteps(job)
            play([("batch", number, 2), ("checkpoint",), ("batch", 1, 40), ("checkpoint",), ("start", 1)], steps, job)
            play([("load",), ("batch", 2, 20), ("release",), ("batch", 3, 40)], steps, job)
