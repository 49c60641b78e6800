"""Keyed process functions over their state against a plain Python model.

Any order of rows, watermarks, ticks of the clock, freezes, failed uploads, compactions, crashes and rescales gives the
model's rows: per key in the same order, timers each once and in order of time.
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, REMOTE, Backend, leaving, leaving_for_rocksdb, on
from tests.property.harness.functions import function_job
from tests.property.harness.histories import SEEDS, operations, play, step

import penstock as ps
from penstock.core.elements import TS_COLUMN
from penstock.kernels.rows.row_order import number_slots, number_slots_plain

KEYS = [None, "", *[f"key-{i}" * (i % 4 + 1) for i in range(14)]]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("what", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
#: A unit of time in microseconds: several fall into one bucket of timers, and many buckets are used.
UNIT = 170_000
WORDS = ["add", "add", "clear", "clear", "event", "event", "forget", "forget", "processing", "unprocess"]


class Out(NamedTuple):
    k: str | None
    what: str
    time: int
    n: int | None
    text: str | None


class Both(NamedTuple):
    n: int
    text: str | None


class Programmed(ps.KeyedProcessFunction):
    """Does what its rows say."""

    n: ps.ValueState[int] = ps.value_state()
    both: ps.ValueState[Both] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        n = row.n * UNIT
        if row.what == "add":
            self.n.update((self.n.value() or 0) + row.n)
            old = self.both.value()
            if old is None or row.n % 3:
                self.both.update(Both(row.n, f"{row.n}" if row.n % 2 else None))
            elif row.n % 9 == 0:
                self.both.clear()
        elif row.what == "clear":
            self.n.clear()
        elif row.what == "event":
            ctx.timers.event(n)
        elif row.what == "forget":
            ctx.timers.delete(n)
        elif row.what == "processing":
            ctx.timers.processing(n)
        else:
            ctx.timers.delete(n, processing=True)
        if row.n % 4 == 0:
            yield self.row(ctx, row.what, ctx.timestamp)

    def on_timer(self, timestamp, ctx):
        unit = timestamp // UNIT
        if unit % 3 == 0:
            self.n.update((self.n.value() or 0) + 1)
        if unit % 7 == 0:
            ctx.timers.event(timestamp + 5 * UNIT)
            ctx.timers.event(timestamp - 2 * UNIT + 1)
        if unit % 5 == 0:
            ctx.timers.delete(timestamp + 2 * UNIT)
        if unit % 11 == 0:
            self.n.clear()
            self.both.clear()
        yield self.row(ctx, ctx.time_domain, timestamp)

    def row(self, ctx, what, time):
        both = self.both.value()
        return Out(ctx.key, what, time, self.n.value(), None if both is None else f"{both.n}/{both.text}")


class Model:
    """The same function over dicts, for one key."""

    def __init__(self):
        self.n = self.both = None
        self.event, self.processing = set(), set()

    def value(self):
        return self.n, None if self.both is None else "{}/{}".format(*self.both)

    def row(self, what, n, time):
        if what == "add":
            self.n = (self.n or 0) + n
            if self.both is None or n % 3:
                self.both = (n, f"{n}" if n % 2 else None)
            elif n % 9 == 0:
                self.both = None
        elif what == "clear":
            self.n = None
        elif what in ("event", "processing"):
            (self.event if what == "event" else self.processing).add(n * UNIT)
        else:
            (self.event if what == "forget" else self.processing).discard(n * UNIT)
        return [(what, time, *self.value())] if n % 4 == 0 else []

    def fire(self, domain, until):
        timers = self.event if domain == "event" else self.processing
        fired = []
        while timers and (time := min(timers)) <= until:
            timers.remove(time)
            unit = time // UNIT
            if unit % 3 == 0:
                self.n = (self.n or 0) + 1
            if unit % 7 == 0:
                self.event |= {time + 5 * UNIT, time - 2 * UNIT + 1}
            if unit % 5 == 0:
                self.event.discard(time + 2 * UNIT)
            if unit % 11 == 0:
                self.n = self.both = None
            fired.append((domain, time, *self.value()))
        return fired


class Steps:
    """Rows that are drawn, watermarks and ticks of the clock."""

    def __init__(self, job):
        self.job = job

    def compare(self, out, keys, expected):
        got = {key: [] for key in keys}
        for row in out.rows:
            got[row["k"]].append((row["what"], row["time"], row["n"], row["text"]))
        assert got == expected

    def batch(self, seed, count, around):
        random = Random(seed)
        self.rows(
            [
                (random.choice(KEYS), random.choice(WORDS), max(0, around + random.randrange(-20, 20)), time)
                for time in [random.randrange(1000) for _ in range(count)]
            ]
        )

    def rows(self, rows):
        for subtask, mine in self.job.parts(rows):
            expected = {key: [] for key in self.job.owned(subtask)}
            for key, what, n, time in mine:
                expected[key] += self.job.model[key].row(what, n, time)
            self.compare(self.job.push(subtask, mine), expected, expected)

    def fired(self, subtask, domain, until):
        return {key: self.job.model[key].fire(domain, until) for key in self.job.owned(subtask)}

    def watermark(self, subtask, unit):
        subtask %= len(self.job.subtasks)
        time = unit * UNIT
        expected = {key: [] for key in self.job.owned(subtask)}
        if time > self.job.marks[subtask]:
            expected = self.fired(subtask, "event", time)
        self.compare(self.job.watermark(subtask, time), expected, expected)

    def tick(self, units):
        self.job.clock.advance(units * UNIT / 1000)
        now = self.job.clock.now_ms() * 1000
        for subtask, operator in enumerate(self.job.operators):
            pending = [time for key in self.job.owned(subtask) for time in self.job.model[key].processing]
            due = operator.next_timer_ms
            assert (due is None or due <= now // 1000) or all(time > now for time in pending)
            expected = self.fired(subtask, "processing", now)
            self.compare(self.job.time(subtask), expected, expected)


OPERATIONS = operations(
    step("batch", SEEDS, st.integers(1, 60), st.integers(0, 150), times=3),
    step("watermark", st.integers(0, 3), st.integers(0, 200)),
    step("tick", st.integers(0, 20)),
    step("checkpoint", times=2),
    least=10,
)
#: Some state is restored before anything else.
RESTORED = [("batch", 1, 60, 80), ("checkpoint",), ("batch", 2, 60, 40), ("checkpoint",), ("start", 2)]


def job_on(backend):
    return function_job(Programmed(), SCHEMA, {key: Model() for key in KEYS}, backend)


def run(backend, history):
    with job_on(backend) as job:
        steps = Steps(job)
        play([*(RESTORED if backend.state == "remote" else []), *history], steps, job)
        job.checkpoint()
        job.start(3)
        for subtask in range(3):
            steps.watermark(subtask, 1000)


@on((MEMORY, 40), (leaving(2), 12), (REMOTE, 12))
def test_any_history_gives_the_models_rows(backend):
    backend.check(run, history=OPERATIONS)


@on(*REMOTE)
def test_what_was_changed_before_it_was_fetched_is_changed(backend):
    """Timers and values of keys that come, go, and are fetched again, with segments that wait for their upload."""
    with job_on(backend) as job:
        steps = Steps(job)
        steps.rows([(key, "event", 10 * n, 0) for n, key in enumerate(KEYS, 2)])
        steps.rows([(key, "add", n, 0) for n, key in enumerate(KEYS)])
        job.checkpoint()
        job.start(2)
        steps.rows([(key, "forget", 10 * n, 0) for n, key in enumerate(KEYS, 2) if n % 3 == 0])
        steps.rows([(key, "clear", n, 0) for n, key in enumerate(KEYS) if n % 4 == 0])
        for subtask in range(2):
            steps.watermark(subtask, 35)
        job.freeze()
        steps.rows([(key, "forget", 10 * n, 0) for n, key in enumerate(KEYS, 2) if n % 3 == 1])
        steps.rows([(key, "event", 10 * n, 0) for n, key in enumerate(KEYS, 2) if n % 6 == 0])
        for key in [*KEYS, *reversed(KEYS)]:
            steps.rows([(key, "add", 4, 0)])
        job.finish("failed")
        for time in (70, 71, 120, 1000):
            for subtask in range(2):
                steps.watermark(subtask, time)
        job.checkpoint()
        job.start(3)
        for subtask in range(3):
            steps.watermark(subtask, 2000)


@on(*REMOTE)
def test_what_a_key_had_does_not_come_back_when_its_piece_is_fetched_again(backend):
    """Keys are cleared one by one by their timers, while pieces beside them are dropped and fetched."""
    with job_on(backend) as job:
        steps = Steps(job)
        steps.rows([(key, "add", 4 + n, 0) for n, key in enumerate(KEYS)])
        steps.rows([(key, "event", 11 * (n + 1), 0) for n, key in enumerate(KEYS)])
        job.checkpoint()
        job.start(1)
        for n in range(len(KEYS)):
            steps.watermark(0, 11 * (n + 1))
        job.checkpoint()
        for key in KEYS:
            steps.rows([(key, "add", 4, 0)])


@on(*REMOTE)
def test_a_timer_that_has_fired_does_not_come_from_the_log(backend):
    with job_on(backend) as job:
        steps = Steps(job)
        steps.rows([(key, "event", 50 + n, 0) for n, key in enumerate(KEYS)])
        job.checkpoint()
        job.start(1)
        steps.watermark(0, 1)
        steps.rows([(KEYS[2], "event", 10, 0)])
        steps.watermark(0, 20)
        steps.rows([(KEYS[3], "event", 8, 0)])
        for key in KEYS[4:]:
            steps.rows([(key, "add", 4, 0)])
        for time in (25, 53, 60, 200):
            steps.watermark(0, time)


@on(leaving_for_rocksdb(3), *(Backend(f"remote-{size}", "remote", 3, size) for size in (1, 500)))
def test_rocksdb_keeps_them_as_well(backend):
    with job_on(backend) as job:
        steps = Steps(job)
        for seed in range(12):
            steps.batch(seed, 60, 12 * seed)
            steps.watermark(seed, 11 * seed)
            steps.tick(9)
            if seed % 4 == 3:
                job.freeze()
                job.finish("done" if seed % 8 == 3 else "half")
                job.start(1 + seed % 3)
        steps.batch(99, 60, 60)
        assert list(job.folder.rglob("cold-rows"))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200))
def test_the_kernel_numbers_slots_as_plain_numpy_does(slots):
    given_slots = np.array(slots, np.int32)
    local, distinct = np.empty(len(slots), np.int32), np.empty(len(slots), np.int32)
    numbers = np.zeros(60, np.int32)
    count = number_slots(given_slots, numbers, local, distinct)
    plain_local, plain_distinct = number_slots_plain(given_slots)
    assert local.tolist() == plain_local.tolist()
    assert distinct[:count].tolist() == plain_distinct.tolist()
    assert not numbers.any()
