"""Time-to-live of every kind of state against a plain model, with a clock that steps in both directions.

Any order of rows, steps of the clock, freezes, failed uploads, compactions, crashes and rescales gives what the model
has: nothing that has expired, everything that has not.
"""

import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.process_job import REMOTE, ProcessJob, keys_are_remote, keys_leave
from tests.property.stepping_clock import SteppingClock
from tests.support import sizes as state_sizes
from tests.support.depth import examples

import penstock as ps
from penstock.kernels.columns import key_columns
from penstock.kernels.hashing import hash_columns

KEYS = [None, "", "key", "another key"]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("what", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)
TTL_MS = 10_000
ON_READ = ps.StateTtlConfig("10s", update="on_read_and_write")
WHAT = ["update", "update", "append", "append", "put", "put", "set", "remove", "clear", "value", "items", "get", "all"]


class Out(NamedTuple):
    k: str | None
    seen: str


class Living(ps.KeyedProcessFunction):
    """Does what its rows say; the states of odd numbers live on when they are read."""

    value_0: ps.ValueState[int] = ps.value_state(ttl="10s")
    value_1: ps.ValueState[int] = ps.value_state(ttl=ON_READ)
    items_0: ps.ListState[int] = ps.list_state(ttl=10)
    items_1: ps.ListState[int] = ps.list_state(ttl=ON_READ)
    counts_0: ps.MapState[str, int] = ps.map_state(ttl="10s")
    counts_1: ps.MapState[str, int] = ps.map_state(ttl=ON_READ)
    most_0: ps.ReducingState[int] = ps.reducing_state(max, ttl="10s")
    most_1: ps.ReducingState[int] = ps.reducing_state(max, ttl=ON_READ)

    def process(self, row, ctx) -> Iterator[Out]:
        yield Out(ctx.key, repr(act(self, row.what, row.n)))


def act(states, what, n):
    """Change or read one state, kept or plain; return what was read."""
    value, items = getattr(states, f"value_{n % 2}"), getattr(states, f"items_{n % 2}")
    counts, most = getattr(states, f"counts_{n % 2}"), getattr(states, f"most_{n % 2}")
    name = f"name-{n % 5}"
    if what == "update":
        value.update(n)
        most.add(n)
    elif what == "append":
        items.extend(range(n % 4))
    elif what == "put":
        counts[name] = n
    elif what == "set":
        items.set([n])
    elif what == "remove":
        return counts.pop(name, None)
    elif what == "clear":
        (value, items, counts, most)[n // 2 % 4].clear()
    elif what == "value":
        return value.value(), most.get()
    elif what == "items":
        return list(items)
    elif what == "get":
        return counts.get(name), name in counts
    elif what == "all":
        return sorted(counts.items())
    return None


class Aging:
    """Values by name with the time of their last access."""

    def __init__(self, model, on_read):
        self.model, self.on_read, self.held = model, on_read, {}

    def put(self, name, value):
        self.held[name] = (value, self.model.now)

    def read(self, name):
        found = self.held.get(name)
        if found is not None and self.on_read:
            self.put(name, found[0])
        return None if found is None else found[0]

    def prune(self):
        self.held = {name: (v, time) for name, (v, time) in self.held.items() if time + TTL_MS > self.model.now}


class PlainValue(Aging):
    def update(self, value):
        self.put("", value)

    def add(self, value):
        held = self.read("")
        self.put("", value if held is None else max(held, value))

    def value(self):
        return self.read("")

    get = value

    def clear(self):
        self.held.clear()


class PlainList(Aging):
    next = 0

    def extend(self, values):
        for value in values:
            self.next += 1
            self.put(self.next, value)

    def set(self, values):
        self.held.clear()
        self.extend(values)

    def clear(self):
        self.held.clear()

    def __iter__(self):
        return iter([self.read(place) for place in list(self.held)])


class PlainMap(Aging):
    __setitem__ = Aging.put

    def get(self, name):
        return self.read(name)

    def __contains__(self, name):
        return self.read(name) is not None

    def pop(self, name, default):
        return self.held.pop(name, (default, 0))[0]

    def items(self):
        return [(name, self.read(name)) for name in list(self.held)]

    def clear(self):
        self.held.clear()


class Model:
    def __init__(self):
        self.now = 0
        for number in (0, 1):
            for name, kind in (("value", PlainValue), ("items", PlainList), ("counts", PlainMap), ("most", PlainValue)):
                setattr(self, f"{name}_{number}", kind(self, number == 1))

    def states(self):
        return {name: state for name, state in vars(self).items() if isinstance(state, Aging)}

    def copy(self):
        other = Model()
        other.now = self.now
        for name, state in self.states().items():
            getattr(other, name).held = dict(state.held)
            if isinstance(state, PlainList):
                getattr(other, name).next = state.next
        return other

    def at(self, now):
        self.now = now
        for state in self.states().values():
            state.prune()


class Job(ProcessJob):
    def __init__(self, folder):
        self.latest = 0
        super().__init__(folder, Living(), SCHEMA, {key: Model() for key in KEYS}, SteppingClock())

    def start(self, parallelism):
        super().start(parallelism)
        # time goes on from what was restored, and from the clock
        self.held = [operator._ttl_clock.now // 1000 for operator, _ in self.subtasks]
        assert all(self.clock.now <= held <= max(self.latest, self.clock.now) for held in self.held)

    def step(self, ms):
        self.clock.now += ms

    def batch(self, seed, count):
        random = np.random.default_rng(seed)
        rows = [
            (KEYS[random.integers(len(KEYS))], WHAT[random.integers(len(WHAT))], int(random.integers(100)))
            for _ in range(count)
        ]
        self.give(rows)

    def give(self, rows):
        for subtask, (operator, _) in enumerate(self.subtasks):
            keys = self.keys_of(subtask)
            mine = [row for row in rows if row[0] in keys]
            if not mine:
                continue
            now = self.held[subtask] = max(self.held[subtask], self.clock.now)
            self.latest = max(self.latest, now)
            for key in keys:
                self.models[key].at(now)
            expected = [{"k": key, "seen": repr(act(self.models[key], what, n))} for key, what, n in mine]
            assert self.push(operator, mine).rows == expected

    def freeze(self):
        for subtask in range(len(self.subtasks)):
            self.held[subtask] = max(self.held[subtask], self.clock.now)
        super().freeze()

    def question(self):
        """What is asked from outside is what has not expired, and nothing comes to memory for it."""
        for subtask, (_, store) in enumerate(self.subtasks):
            known = store._rows.index.count
            for key in self.keys_of(subtask):
                model = self.models[key].copy()
                model.at(self.held[subtask])
                batch = pa.record_batch({"k": pa.array([key], pa.string())})
                asked = key_columns(batch, ("k",)), hash_columns(batch, ("k",))
                for name, state in model.states().items():
                    found = store.tables[name].look_up(*asked, 100).to_pylist()
                    if isinstance(state, PlainMap):
                        expected = {entry: value for entry, (value, _) in state.held.items()}
                        assert {row["__entry"]: row["value"] for row in found} == expected
                    else:
                        assert [row["value"] for row in found] == [value for value, _ in state.held.values()]
            assert store._rows.index.count == known

    def look(self):
        self.give([(key, what, n) for key in KEYS for what in ("value", "items", "all") for n in (0, 1)])


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 40)),
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 40)),
        st.tuples(st.just("step"), st.integers(-8_000, 9_000)),
        st.tuples(st.just("step"), st.integers(0, 6_000)),
        st.tuples(st.just("look")),
        st.tuples(st.just("question")),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("finish"), st.sampled_from(["done", "done", "done", "failed", "aborted"])),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("begin_fetch")),
        st.tuples(st.just("end_fetch")),
        st.tuples(st.just("start"), st.integers(1, 4)),
    ),
    min_size=20,
    max_size=60,
)


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Everything that happens at large sizes happens here too."""
    state_sizes.given(
        monkeypatch,
        cold_sweep_part=2,
        first_rows=8,
        first_slots=2,
        many_changes=20,
        dead_keys=1,
        sweep_keys=2,
        segments_per_tier=3,
    )


@pytest.fixture
def leaving(monkeypatch):
    """Hardly any key stays in memory."""
    with keys_leave(monkeypatch, 1):
        yield


def run(operations):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        for name, *arguments in operations:
            getattr(job, name)(*arguments)
        job.question()
        job.look()
        job.checkpoint()
        job.start(3)
        job.look()
        job.step(1_000_000)
        job.look()
        assert all(not model.items_1.held and not model.counts_0.held for model in job.models.values())


@examples(20)
@given(operations=OPERATIONS)
def test_any_history_gives_what_has_not_expired(operations):
    run(operations)


@examples(10)
@given(operations=OPERATIONS)
def test_any_history_gives_what_has_not_expired_where_keys_leave_memory(leaving, operations):
    run(operations)


@pytest.fixture(params=REMOTE)
def remote(request, monkeypatch):
    """Keys are fetched when they are touched."""
    with keys_are_remote(monkeypatch, *request.param):
        yield


@examples(6)
@given(operations=OPERATIONS)
def test_any_history_gives_what_has_not_expired_where_state_is_remote(remote, operations):
    run([("batch", 1, 40), ("step", 3000), ("batch", 2, 40), ("checkpoint",), ("start", 2), *operations])


def test_a_list_that_expired_outside_memory_begins_anew(leaving, tmp_path):
    job = Job(tmp_path)
    job.give([("key", "append", 2), ("key", "append", 2)])
    job.give([("another key", "append", 2)])
    job.checkpoint()
    job.step(2 * TTL_MS)
    for _ in range(4):  # each looks through a part of what left memory
        job.give([("", "value", 0)])
        job.give([("another key", "value", 0)])
    job.give([("key", "append", 2)])
    job.step(TTL_MS // 2)
    job.question()
    job.checkpoint()
    job.start(1)
    job.look()
    job.step(TTL_MS // 2)
    job.look()


def test_a_list_whose_key_was_forgotten_is_counted_from_its_own_beginning_after_a_restart(tmp_path):
    job = Job(tmp_path)
    job.give([("key", "append", 3)])
    job.checkpoint()
    job.give([("key", "clear", 3)])
    job.checkpoint()
    job.give([("", "value", 0)])
    job.give([("key", "append", 1)])
    for _ in range(2):  # reading saves elements anew, under the indices they have
        job.checkpoint()
        job.start(1)
        job.look()
