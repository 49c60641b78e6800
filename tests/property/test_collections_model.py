"""Lists, maps and folding states of process functions against Python's own lists and dicts.

Any order of rows, freezes, failed uploads, compactions, crashes and rescales gives the elements that a plain list and a
plain dict have, and folding states what they make of all that was added.
"""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, REMOTE, Backend, leaving, leaving_for_rocksdb, on
from tests.property.harness.functions import function_job
from tests.property.harness.histories import SEEDS, operations, play, step

import penstock as ps
from penstock.state.log.segments import last_entries

KEYS = [None, "", *[f"key-{i}" * (i % 4 + 1) for i in range(10)]]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("what", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)
DAY = dt.date(2024, 2, 28)


class Note(NamedTuple):
    n: int
    text: str | None


class Place(NamedTuple):
    day: dt.date
    number: int


class Out(NamedTuple):
    k: str | None
    seen: str


class Mean(ps.Aggregator[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[1] / accumulator[0]

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        return left[0] + right[0], left[1] + right[1]


def longest(left: Note, right: Note) -> Note:
    return max(left, right, key=lambda note: note.n % 50)


class Collections(ps.KeyedProcessFunction):
    """Does what its rows say."""

    numbers: ps.ListState[int | None] = ps.list_state()
    notes: ps.ListState[Note] = ps.list_state()
    counts: ps.MapState[str, int] = ps.map_state()
    places: ps.MapState[Place, Annotated[Decimal, ps.Precision(12, 2)] | None] = ps.map_state()
    mean: ps.AggregatingState[int, float] = ps.aggregating_state(Mean())
    most: ps.ReducingState[Note] = ps.reducing_state(longest)

    def process(self, row, ctx) -> Iterator[Out]:
        act(self, row.what, row.n)
        if row.n % 3 == 0:
            yield Out(ctx.key, seen(self))


class PlainList(list):
    def set(self, values):
        self[:] = list(values)


class PlainMean(list):
    def add(self, value):
        self.append(value)

    def get(self):
        return sum(self) / len(self) if self else None


class PlainMost(list):
    def add(self, value):
        self.append(value)

    def get(self):
        return max(self, key=lambda note: note.n % 50) if self else None


class Model:
    """What the function sees of one key."""

    def __init__(self):
        self.numbers, self.notes, self.counts, self.places = PlainList(), PlainList(), {}, {}
        self.mean, self.most = PlainMean(), PlainMost()


def act(state, what, n):
    """Change lists and maps, plain or kept."""
    name = f"name-{n % 7}"
    place = Place(DAY + dt.timedelta(days=n % 3), n % 2)
    if what == "append":
        state.numbers.append(None if n % 11 == 0 else n)
        state.notes.append(Note(n, None if n % 4 == 0 else f"{n}"))
    elif what == "extend":
        state.numbers.extend(range(n % 5))
    elif what == "set":
        state.notes.set([Note(-n, "set"), *state.notes] if n % 2 else [])
    elif what == "clear":
        (state.numbers, state.notes, state.counts, state.places, state.mean, state.most)[n % 6].clear()
    elif what == "add":
        state.mean.add(n)
        state.most.add(Note(n, None if n % 4 == 0 else f"{n}"))
    elif what == "count":
        state.counts[name] = state.counts.get(name, 0) + 1
    elif what == "place":
        state.places.update({place: None if n % 5 == 0 else Decimal(n) / 4, Place(DAY, n): Decimal(1)})
    elif what == "remove":
        state.counts.pop(name, None)
        if place in state.places:
            del state.places[place]
    else:
        for key in list(state.counts):
            state.counts[key] = len(state.numbers) if key > name else state.counts[key] - 1
        if len(state.counts) > 5:
            state.counts.clear()
            state.counts[name] = n


def seen(state):
    parts = [list(state.numbers), [tuple(note) for note in state.notes[-3:]], len(state.notes)]
    maps = [sorted(state.counts.items()), sorted(state.places.keys()), sorted(map(str, state.places.values()))]
    return repr([*parts, *maps, None in state.numbers, state.counts.get("name-1"), state.mean.get(), state.most.get()])


WHAT = ["append", "append", "extend", "set", "clear", "count", "count", "place", "place", "remove", "all", "add", "add"]


class Steps:
    """Rows that are drawn, and a look at all keys."""

    def __init__(self, job):
        self.job = job

    def batch(self, seed, count):
        random = Random(seed)
        rows = [(random.choice(KEYS), random.choice(WHAT), random.randrange(200)) for _ in range(count)]
        for subtask, mine in self.job.parts(rows):
            expected = []
            for key, what, n in mine:
                act(self.job.model[key], what, n)
                if n % 3 == 0:
                    expected.append({"k": key, "seen": normal(seen(self.job.model[key]))})
            got = [row | {"seen": normal(row["seen"])} for row in self.job.push(subtask, mine).rows]
            assert got == expected

    def look(self):
        """Every key has what its model has."""
        for subtask, mine in self.job.parts([(key, "extend", 0) for key in KEYS]):
            got = {row["k"]: normal(row["seen"]) for row in self.job.push(subtask, mine).rows}
            assert got == {key: normal(seen(self.job.model[key])) for key, *_ in mine}


def normal(text):
    """Decimals of a batch have not been columns yet."""
    return text.replace(".50'", ".5'").replace(".00'", "'").replace(".0'", "'")


OPERATIONS = operations(step("batch", SEEDS, st.integers(1, 60), times=3), step("checkpoint"), least=8, most=50)
#: Some state is restored before anything else.
RESTORED = [("batch", 1, 60), ("checkpoint",), ("batch", 2, 60), ("checkpoint",), ("start", 2)]


def run(backend, history):
    with job_on(backend) as job:
        steps = Steps(job)
        play([*(RESTORED if backend.state == "remote" else []), *history], steps, job)
        steps.look()
        job.checkpoint()
        job.start(3)
        steps.look()


def job_on(backend):
    return function_job(Collections(), SCHEMA, {key: Model() for key in KEYS}, backend)


@on((MEMORY, 40), (leaving(2), 10), (REMOTE, 10))
def test_any_history_gives_pythons_lists_and_dicts(backend):
    backend.check(run, history=OPERATIONS)


@on(leaving_for_rocksdb(3), *(Backend(f"remote-{size}", "remote", 3, size) for size in (1, 500)))
def test_rocksdb_keeps_them_as_well(backend):
    with job_on(backend) as job:
        steps = Steps(job)
        for seed in range(12):
            steps.batch(seed, 60)
            if seed % 4 == 3:
                job.freeze()
                job.finish("done" if seed % 8 == 3 else "half")
                job.start(1 + seed % 3)
        steps.batch(99, 60)
        assert list(job.folder.rglob("cold-rows"))


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 3), st.sampled_from("xy")), max_size=60))
def test_the_rows_that_count_are_those_a_dict_would_keep(rows):
    plain = {}
    for place, (owner, number, text) in enumerate(rows):
        if number is None:
            plain = {known: at for known, at in plain.items() if known[0] != owner}
        plain[owner, number, text if number is not None else None] = place
    entries = [
        pa.array([number for _, number, _ in rows], pa.int64()),
        pa.array([None if number is None else text for _, number, text in rows], pa.string()),
    ]
    found = last_entries(np.array([owner for owner, *_ in rows], np.int32), entries)
    assert found.tolist() == sorted(plain.values())
