"""Rows that wait for remote state, over real state: barriers take them along, and restarts process them first.

Any history gives the output of the model: each key's rows are processed once, in their order, also after a rescale
that gives the waiting rows to other subtasks.
"""

from collections import deque

from hypothesis import strategies as st
from tests.property.harness.backends import REMOTE, REMOTE_FILES, on
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


class WaitingSteps(Steps):
    """Batches whose rows may wait; the model has, by key, the rows that were not processed yet."""

    def __init__(self, job):
        super().__init__(job)
        without_rows(job.model)
        job.amend(without_rows)
        self.begin()

    def begin(self):
        job = self.job
        self.waiting = [WaitingRows(job.fetched[id(o)], [job.model.key], 1 << 20) for o in job.operators]

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

    def release(self):
        for waiting in self.waiting:
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
