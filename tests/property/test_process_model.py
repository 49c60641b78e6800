"""Keyed process functions over their state against a plain Python model.

Any order of rows, watermarks, ticks of the clock, freezes, failed uploads, compactions, crashes and rescales gives the
model's rows: per key in the same order, timers each once and in order of time.
"""

import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.process_job import (
    REMOTE,
    ProcessJob,
    Sink,
    keys_are_remote,
    keys_leave,
    keys_leave_for_rocksdb,
    settings_are_remote,
)
from tests.support import sizes as state_sizes
from tests.support.depth import examples

import penstock as ps
from penstock.core.elements import TS_COLUMN, Watermark
from penstock.kernels.rows import number_slots, number_slots_plain

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

    def copy(self):
        other = Model()
        other.n, other.both = self.n, self.both
        other.event, other.processing = set(self.event), set(self.processing)
        return other

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


class Job(ProcessJob):
    def __init__(self, folder):
        super().__init__(folder, Programmed(), SCHEMA, {key: Model() for key in KEYS})

    def compare(self, sink, keys, expected):
        got = {key: [] for key in keys}
        for row in sink.rows:
            got[row.pop("k")].append((row["what"], row["time"], row["n"], row["text"]))
        assert got == expected

    def batch(self, seed, count, around):
        random = np.random.default_rng(seed)
        rows = []
        for _ in range(count):
            key, what = KEYS[random.integers(len(KEYS))], WORDS[random.integers(len(WORDS))]
            rows.append((key, what, int(max(0, around + random.integers(-20, 20))), int(random.integers(1000))))
        self.rows(rows)

    def rows(self, rows):
        for subtask, (operator, _) in enumerate(self.subtasks):
            keys = self.keys_of(subtask)
            mine = [row for row in rows if row[0] in keys]
            expected = {key: [] for key in keys}
            for key, what, n, time in mine:
                expected[key] += self.models[key].row(what, n, time)
            if mine:
                self.compare(self.push(operator, mine), keys, expected)

    def watermark(self, subtask, unit):
        subtask %= len(self.subtasks)
        time = unit * UNIT
        keys, sink = self.keys_of(subtask), Sink()
        expected = {key: [] for key in keys}
        if time > self.marks[subtask]:
            self.marks[subtask] = time
            expected = {key: self.models[key].fire("event", time) for key in keys}
        self.subtasks[subtask][0].process_watermark(Watermark(time), sink)
        self.compare(sink, keys, expected)

    def tick(self, units):
        self.clock.advance(units * UNIT / 1000)
        now = self.clock.now_ms() * 1000
        for subtask, (operator, _) in enumerate(self.subtasks):
            keys, sink = self.keys_of(subtask), Sink()
            pending = [time for key in keys for time in self.models[key].processing]
            due = operator.next_timer_ms
            assert (due is None or due <= now // 1000) or all(time > now for time in pending)
            operator.process_time(self.clock.now_ms(), sink)
            self.compare(sink, keys, {key: self.models[key].fire("processing", now) for key in keys})


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 60), st.integers(0, 150)),
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 60), st.integers(0, 150)),
        st.tuples(st.just("watermark"), st.integers(0, 3), st.integers(0, 200)),
        st.tuples(st.just("tick"), st.integers(0, 20)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("finish"), st.sampled_from(["done", "done", "done", "failed", "aborted"])),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("begin_fetch")),
        st.tuples(st.just("end_fetch")),
        st.tuples(st.just("restart"), st.integers(1, 4)),
    ),
    min_size=10,
    max_size=60,
)


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Everything that happens at large sizes happens here too."""
    state_sizes.given(
        monkeypatch, fired_timers=5, first_rows=8, first_bytes=4, dead_keys=1, many_changes=20, segments_per_tier=3
    )


@pytest.fixture
def leaving(monkeypatch):
    """Hardly any key stays in memory."""
    with keys_leave(monkeypatch, 2):
        yield


@pytest.fixture(params=REMOTE)
def remote(request, monkeypatch):
    """Keys are fetched when they are touched, timers when they are near."""
    with keys_are_remote(monkeypatch, *request.param):
        yield


def run(operations):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        for name, *arguments in operations:
            getattr(job, "start" if name == "restart" else name)(*arguments)
        job.checkpoint()
        job.start(3)
        for subtask in range(3):
            job.watermark(subtask, 1000)


@examples(40)
@given(operations=OPERATIONS)
def test_any_history_gives_the_models_rows(operations):
    run(operations)


@examples(12)
@given(operations=OPERATIONS)
def test_any_history_gives_the_models_rows_where_keys_leave_memory(leaving, operations):
    run(operations)


#: Some state is restored before anything else.
RESTORED = [("batch", 1, 60, 80), ("checkpoint",), ("batch", 2, 60, 40), ("checkpoint",), ("restart", 2)]


@examples(12)
@given(operations=OPERATIONS)
def test_any_history_gives_the_models_rows_where_state_is_remote(remote, operations):
    run([*RESTORED, *operations])


def test_what_was_changed_before_it_was_fetched_is_changed(remote, tmp_path):
    """Timers and values of keys that come, go, and are fetched again, with segments that wait for their upload."""
    job = Job(tmp_path)
    job.rows([(key, "event", 10 * n, 0) for n, key in enumerate(KEYS, 2)])
    job.rows([(key, "add", n, 0) for n, key in enumerate(KEYS)])
    job.checkpoint()
    job.start(2)
    job.rows([(key, "forget", 10 * n, 0) for n, key in enumerate(KEYS, 2) if n % 3 == 0])
    job.rows([(key, "clear", n, 0) for n, key in enumerate(KEYS) if n % 4 == 0])
    for subtask in range(2):
        job.watermark(subtask, 35)
    job.freeze()
    job.rows([(key, "forget", 10 * n, 0) for n, key in enumerate(KEYS, 2) if n % 3 == 1])
    job.rows([(key, "event", 10 * n, 0) for n, key in enumerate(KEYS, 2) if n % 6 == 0])
    for key in [*KEYS, *reversed(KEYS)]:
        job.rows([(key, "add", 4, 0)])
    job.finish("failed")
    for time in (70, 71, 120, 1000):
        for subtask in range(2):
            job.watermark(subtask, time)
    job.checkpoint()
    job.start(3)
    for subtask in range(3):
        job.watermark(subtask, 2000)


def test_what_a_key_had_does_not_come_back_when_its_piece_is_fetched_again(remote, tmp_path):
    """Keys are cleared one by one by their timers, while pieces beside them are dropped and fetched."""
    job = Job(tmp_path)
    job.rows([(key, "add", 4 + n, 0) for n, key in enumerate(KEYS)])
    job.rows([(key, "event", 11 * (n + 1), 0) for n, key in enumerate(KEYS)])
    job.checkpoint()
    job.start(1)
    for n in range(len(KEYS)):
        job.watermark(0, 11 * (n + 1))
    job.checkpoint()
    for key in KEYS:
        job.rows([(key, "add", 4, 0)])


def test_a_timer_that_has_fired_does_not_come_from_the_log(remote, tmp_path):
    job = Job(tmp_path)
    job.rows([(key, "event", 50 + n, 0) for n, key in enumerate(KEYS)])
    job.checkpoint()
    job.start(1)
    job.watermark(0, 1)
    job.rows([(KEYS[2], "event", 10, 0)])
    job.watermark(0, 20)
    job.rows([(KEYS[3], "event", 8, 0)])
    for key in KEYS[4:]:
        job.rows([(key, "add", 4, 0)])
    for time in (25, 53, 60, 200):
        job.watermark(0, time)


@pytest.mark.parametrize("local_bytes", [None, 1, 500])
def test_rocksdb_keeps_them_as_well(monkeypatch, tmp_path, local_bytes):
    keys_leave_for_rocksdb(monkeypatch, 3)
    if local_bytes is not None:
        settings_are_remote(monkeypatch, local_bytes)
    job = Job(tmp_path)
    for seed in range(12):
        job.batch(seed, 60, 12 * seed)
        job.watermark(seed, 11 * seed)
        job.tick(9)
        if seed % 4 == 3:
            job.freeze()
            job.finish("done" if seed % 8 == 3 else "failed")
            job.start(1 + seed % 3)
    job.batch(99, 60, 60)
    assert list(tmp_path.rglob("cold-rows"))


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
