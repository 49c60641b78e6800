"""Lists, maps and folding states of process functions against Python's own lists and dicts.

Any order of rows, freezes, failed uploads, compactions, crashes and rescales gives the elements that a plain list and a
plain dict have, and folding states what they make of all that was added.
"""

import datetime as dt
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.process_job import (
    REMOTE,
    ProcessJob,
    keys_are_remote,
    keys_leave,
    keys_leave_for_rocksdb,
    settings_are_remote,
)
from tests.support import sizes as state_sizes
from tests.support.depth import examples

import penstock as ps
from penstock.state.entry_order import last_entries

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

    def copy(self):
        other = Model()
        other.numbers, other.notes = PlainList(self.numbers), PlainList(self.notes)
        other.counts, other.places = dict(self.counts), dict(self.places)
        other.mean, other.most = PlainMean(self.mean), PlainMost(self.most)
        return other


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


class Job(ProcessJob):
    def __init__(self, folder):
        super().__init__(folder, Collections(), SCHEMA, {key: Model() for key in KEYS})

    def batch(self, seed, count):
        random = np.random.default_rng(seed)
        rows = [
            (KEYS[random.integers(len(KEYS))], WHAT[random.integers(len(WHAT))], int(random.integers(200)))
            for _ in range(count)
        ]
        for subtask, (operator, _) in enumerate(self.subtasks):
            keys = self.keys_of(subtask)
            mine = [row for row in rows if row[0] in keys]
            expected = []
            for key, what, n in mine:
                act(self.models[key], what, n)
                if n % 3 == 0:
                    expected.append({"k": key, "seen": normal(seen(self.models[key]))})
            if mine:
                got = [row | {"seen": normal(row["seen"])} for row in self.push(operator, mine).rows]
                assert got == expected

    def look(self):
        """Every key has what its model has."""
        for subtask, (operator, _) in enumerate(self.subtasks):
            keys = self.keys_of(subtask)
            rows = self.push(operator, [(key, "extend", 0) for key in keys]).rows if keys else []
            got = {row["k"]: normal(row["seen"]) for row in rows}
            assert got == {key: normal(seen(self.models[key])) for key in keys}


def normal(text):
    """Decimals of a batch have not been columns yet."""
    return text.replace(".50'", ".5'").replace(".00'", "'").replace(".0'", "'")


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 60)),
        st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 60)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("finish"), st.sampled_from(["done", "done", "done", "failed", "aborted"])),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("begin_fetch")),
        st.tuples(st.just("end_fetch")),
        st.tuples(st.just("start"), st.integers(1, 4)),
    ),
    min_size=8,
    max_size=50,
)


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Everything that happens at large sizes happens here too."""
    state_sizes.given(
        monkeypatch,
        first_slots=2,
        measured_bytes=100,
        many_changes=20,
        large_changes_bytes=300,
        dead_keys=1,
        segments_per_tier=3,
    )


@pytest.fixture
def leaving(monkeypatch):
    """Hardly any key stays in memory."""
    with keys_leave(monkeypatch, 2):
        yield


def run(operations):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        for name, *arguments in operations:
            getattr(job, name)(*arguments)
        job.look()
        job.checkpoint()
        job.start(3)
        job.look()


@examples(40)
@given(operations=OPERATIONS)
def test_any_history_gives_pythons_lists_and_dicts(operations):
    run(operations)


@examples(10)
@given(operations=OPERATIONS)
def test_any_history_gives_pythons_lists_and_dicts_where_keys_leave_memory(leaving, operations):
    run(operations)


@pytest.fixture(params=REMOTE)
def remote(request, monkeypatch):
    """Keys are fetched when they are touched."""
    with keys_are_remote(monkeypatch, *request.param):
        yield


#: Some state is restored before anything else.
RESTORED = [("batch", 1, 60), ("checkpoint",), ("batch", 2, 60), ("checkpoint",), ("start", 2)]


@examples(10)
@given(operations=OPERATIONS)
def test_any_history_gives_pythons_lists_and_dicts_where_state_is_remote(remote, operations):
    run([*RESTORED, *operations])


@pytest.mark.parametrize("local_bytes", [None, 1, 500])
def test_rocksdb_keeps_them_as_well(monkeypatch, tmp_path, local_bytes):
    keys_leave_for_rocksdb(monkeypatch, 3)
    if local_bytes is not None:
        settings_are_remote(monkeypatch, local_bytes)
    job = Job(tmp_path)
    for seed in range(12):
        job.batch(seed, 60)
        if seed % 4 == 3:
            job.freeze()
            job.finish("done" if seed % 8 == 3 else "failed")
            job.start(1 + seed % 3)
    job.batch(99, 60)
    assert list(tmp_path.rglob("cold-rows"))


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
