"""Time-to-live of every kind of state against a plain model, with a clock that steps in both directions.

Any order of rows, steps of the clock, freezes, failed uploads, compactions, crashes and rescales gives what the model
has: nothing that has expired, everything that has not.
"""

import pickle
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, REMOTE, leaving, on
from tests.property.harness.clock import SteppingClock
from tests.property.harness.functions import function_job
from tests.property.harness.histories import SEEDS, operations, play, step

import penstock as ps

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

    def at(self, now):
        self.now = now
        for state in self.states().values():
            state.prune()


class Steps:
    """Rows that are drawn, steps of the clock, and what is asked from outside."""

    def __init__(self, job):
        self.job = job
        #: The latest time at which any subtask has worked, and what each of them takes for the time.
        self.latest, self.held = 0, []
        self.go_on()

    def start(self, parallelism):
        self.job.start(parallelism)
        self.go_on()

    def go_on(self):
        """Time goes on from what was restored, and from the clock."""
        now = self.job.clock.now
        self.held = [operator._ttl_clock.now // 1000 for operator in self.job.operators]
        assert all(now <= held <= max(self.latest, now, self.job.prepared_at) for held in self.held)

    def tick(self, ms):
        self.job.clock.now += ms

    def batch(self, seed, count):
        random = Random(seed)
        self.give([(random.choice(KEYS), random.choice(WHAT), random.randrange(100)) for _ in range(count)])

    def give(self, rows):
        for subtask, mine in self.job.parts(rows):
            now = self.held[subtask] = max(self.held[subtask], self.job.clock.now)
            self.latest = max(self.latest, now)
            for key in self.job.owned(subtask):
                self.job.model[key].at(now)
            expected = [{"k": key, "seen": repr(act(self.job.model[key], what, n))} for key, what, n in mine]
            assert self.job.push(subtask, mine).rows == expected

    def freeze(self):
        self.held = [max(held, self.job.clock.now) for held in self.held]
        self.job.freeze()

    def checkpoint(self):
        self.held = [max(held, self.job.clock.now) for held in self.held]
        self.job.checkpoint()

    def question(self):
        """What is asked from outside is what has not expired, and nothing comes to memory for it."""
        for subtask, store in enumerate(self.job.stores):
            known = store._rows.index.count
            for key in self.job.owned(subtask):
                model = pickle.loads(pickle.dumps(self.job.model[key]))
                model.at(self.held[subtask])
                for name, state in model.states().items():
                    found = self.job.look(subtask, name, key)
                    if isinstance(state, PlainMap):
                        expected = {entry: value for entry, (value, _) in state.held.items()}
                        assert {row["__entry"]: row["value"] for row in found} == expected
                    else:
                        assert [row["value"] for row in found] == [value for value, _ in state.held.values()]
            assert store._rows.index.count == known

    def look(self):
        self.give([(key, what, n) for key in KEYS for what in ("value", "items", "all") for n in (0, 1)])


OPERATIONS = operations(
    step("batch", SEEDS, st.integers(1, 40), times=3),
    step("tick", st.integers(-8_000, 9_000)),
    step("tick", st.sampled_from((TTL_MS - 1, TTL_MS, TTL_MS // 2))),
    step("look"),
    step("question"),
    step("checkpoint"),
    least=20,
)
#: Some state is restored before anything else.
RESTORED = [("batch", 1, 40), ("tick", 3000), ("batch", 2, 40), ("checkpoint",), ("start", 2)]


def job_on(backend):
    return function_job(Living(), SCHEMA, {key: Model() for key in KEYS}, backend, clock=SteppingClock())


def run(backend, history):
    with job_on(backend) as job:
        steps = Steps(job)
        play([*(RESTORED if backend.state == "remote" else []), *history], steps, job)
        steps.question()
        steps.look()
        steps.checkpoint()
        steps.start(3)
        steps.look()
        steps.tick(1_000_000)
        steps.look()
        assert all(not model.items_1.held and not model.counts_0.held for model in job.model.values())


@on((MEMORY, 20), (leaving(1), 10), (REMOTE, 6))
def test_any_history_gives_what_has_not_expired(backend):
    backend.check(run, history=OPERATIONS)


@on(leaving(1))
def test_a_list_that_expired_outside_memory_begins_anew(backend):
    with job_on(backend) as job:
        steps = Steps(job)
        steps.give([("key", "append", 2), ("key", "append", 2)])
        steps.give([("another key", "append", 2)])
        steps.checkpoint()
        steps.tick(2 * TTL_MS)
        for _ in range(4):  # each looks through a part of what left memory
            steps.give([("", "value", 0)])
            steps.give([("another key", "value", 0)])
        steps.give([("key", "append", 2)])
        steps.tick(TTL_MS // 2)
        steps.question()
        steps.checkpoint()
        steps.start(1)
        steps.look()
        steps.tick(TTL_MS // 2)
        steps.look()


@on(MEMORY)
def test_a_list_whose_key_was_forgotten_is_counted_from_its_own_beginning_after_a_restart(backend):
    with job_on(backend) as job:
        steps = Steps(job)
        steps.give([("key", "append", 3)])
        steps.checkpoint()
        steps.give([("key", "clear", 3)])
        steps.checkpoint()
        steps.give([("", "value", 0)])
        steps.give([("key", "append", 1)])
        for _ in range(2):  # reading saves elements anew, under the indices they have
            steps.checkpoint()
            steps.start(1)
            steps.look()
