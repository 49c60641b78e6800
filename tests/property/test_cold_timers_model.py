"""Timers whose keys leave memory all the time, or are fetched, against a set of (time, key).

Few keys and few times, so that a timer is registered again and deleted while it lies in the cold store, and due in
pieces of one time and of several; freezes, failed uploads, compactions, crashes and rescales between.
"""

import pyarrow as pa
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, REMOTE, leaving, leaving_for_rocksdb, on
from tests.property.harness.histories import operations, play, step
from tests.property.harness.job import Input, Job, spec_of

from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.operator import NO_CAPABILITIES, Operator, OperatorSnapshot

KEYS = pa.schema([pa.field("k", pa.string())])
SCHEMA = pa.schema([*KEYS, pa.field("time", pa.int64()), pa.field("deleted", pa.bool_())])
NAMES = "abcd"
#: Several fall into one bucket.
UNIT = 400_000


class Timers(Operator):
    """Registers and deletes timers as its rows say."""

    def open(self, context):
        self.store = context.keyed_state
        self.rows = self.store.row_state(KEYS, evictable=True)
        self.table = self.rows.timers("event")
        return NO_CAPABILITIES

    def process_batch(self, batch, input_index, out):
        done = 0
        while done < batch.num_rows:
            data = batch.data.slice(done, self.rows.most_keys(batch.num_rows - done))
            slots = self.rows.upsert(key_columns(data, ("k",)), hash_columns(data, ("k",))).copy()
            times, deleted = data.column("time").to_numpy(), data.column("deleted").to_numpy(zero_copy_only=False)
            self.table.change(slots, times, deleted)
            self.rows.settle()
            done += data.num_rows

    def fire(self, until, limit):
        """Return the timers that are due, as pairs of time and key; a few are taken at a time."""
        fired = []
        while taken := self.table.take_due(until, self.rows.most_keys(limit)):
            slots, times = taken
            fired += zip(times.tolist(), self.rows.keys(slots)[0].to_pylist(), strict=True)
            self.rows.settle()
        return fired

    def snapshot(self, barrier, out):
        return OperatorSnapshot(keyed=self.store.freeze(barrier.checkpoint_id))


class Steps:
    """Timers around now are registered, deleted and fired; between two starts time does not go back."""

    def __init__(self, job):
        self.job, self.now = job, 0

    def start(self, parallelism):
        self.job.start(parallelism)
        self.now -= 3

    def rescale(self, parallelism):
        self.job.checkpoint()
        self.start(parallelism)

    def change(self, changes):
        rows = [(key, (self.now + unit) * UNIT, deleted) for key, unit, deleted in changes]
        for subtask, mine in self.job.parts(rows):
            self.job.push(subtask, mine)
        for key, time, deleted in rows:
            (self.job.model.discard if deleted else self.job.model.add)((time, key))

    def fire(self, further, limit):
        self.now += further
        until = self.now * UNIT
        for subtask, operator in enumerate(self.job.operators):
            owned = self.job.owned(subtask)
            mine = {timer for timer in self.job.model if timer[1] in owned}
            least = operator.table.next_time()
            assert least is not None or not mine
            assert all(least <= time for time, _ in mine)
            due = sorted(timer for timer in mine if timer[0] <= until)
            fired = operator.fire(until, limit)
            assert [time for time, _ in fired] == [time for time, _ in due]
            assert sorted(fired) == due
            self.job.model -= set(due)


CHANGES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-1, 5), st.booleans()), min_size=1, max_size=8)
OPERATIONS = operations(
    step("change", CHANGES, times=8),
    step("fire", st.integers(0, 2), st.integers(1, 5), times=2),
    step("checkpoint", times=2),
    step("rescale", st.integers(1, 3), times=2),
    least=5,
    most=40,
)
#: Some timers are restored, and deleted before they are fetched; time is three units back behind a start.
RESTORED = [
    ("change", [(name, unit, False) for unit in (1, 3, 5) for name in NAMES]),
    *(("rescale", 1), ("change", [("a", 6, True), ("b", 8, True)]), ("fire", 4, 2), ("fire", 3, 5)),
]


@on((MEMORY, 30), (leaving(1), 150), (leaving_for_rocksdb(1), 10), (REMOTE, 80))
def test_timers_fire_once_and_in_order_wherever_they_lie(backend):
    backend.check(run, history=OPERATIONS)


def job_on(backend):
    return Job(spec_of("timers", {}), (Input(SCHEMA, ("k",)),), NAMES, set(), backend, create=lambda _: Timers())


def run(backend, history):
    with job_on(backend) as job:
        steps = Steps(job)
        play([*(RESTORED if backend.state == "remote" else []), *history], steps, job)
        steps.rescale(2)
        steps.fire(500, 3)  # each start took time back
        assert not job.model


@on(MEMORY, leaving(2), REMOTE[0])
def test_of_more_timers_of_one_time_than_are_taken_together_one_registered_again_fires_once(backend):
    with job_on(backend) as job:
        steps = Steps(job)
        for key in NAMES:
            steps.change([(name, 5, False) for name in NAMES])
            steps.change([(key, 5, False)])
            steps.fire(10, 2)
