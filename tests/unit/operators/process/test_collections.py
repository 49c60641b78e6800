"""Lists and maps of process functions by example: types, what is saved, how it is read, what is refused."""

import dataclasses
import datetime as dt
import io
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.sizes import given

import penstock as ps
from penstock.core.errors import PenstockError, StateMismatchError, UsageError

FORMAT = Path(__file__).parents[4] / "docs/reference/snapshot-format.md"


class Out(NamedTuple):
    k: int
    what: str
    n: int | None


class Pair(NamedTuple):
    a: int
    b: str | None


class Money(ps.Schema):
    amount: Annotated[Decimal, ps.Precision(30, 2)]
    note: str | None


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float | None


TIME = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
#: What is put, and what is found when it has been columns.
LISTS = {
    "numbers": [1, -(1 << 62), 0],
    "gaps": [None, 1.5, -0.0, 3.0],
    "flags": [True, False],
    "texts": ["", "ä" * 9],
    "raws": [b"", b"\0"],
    "times": [TIME, TIME + dt.timedelta(microseconds=1)],
    "days": [dt.date(1969, 1, 2)],
    "monies": [Decimal("-12.34"), None],
    "pairs": [Pair(3, None), Pair(4, "b")],
    "models": [Money(amount=Decimal("123456789012345678901234.56"), note=None)],
    "points": [Point(0.5, None)],
    "plain": [(-1, None), (2, "x")],
}
MAPS = {
    "by_number": {1: "a", 0: None, -5: ""},
    "by_text": {"": 0.5, "ä": 1.0},
    "by_raw": {b"": True},
    "by_flag": {True: 1, False: 2},
    "by_time": {TIME: TIME},
    "by_day": {dt.date(1969, 1, 2): Pair(1, "x")},
    "by_money": {Decimal("-12.34"): Money(amount=Decimal(1), note="n")},
    "by_pair": {(1, "x"): (0.5, None), (1, "y"): (0.25, "z")},
    "by_key": {(1, TIME): 7},
}


class Key(NamedTuple):
    number: int
    time: dt.datetime


class Everything(ps.KeyedProcessFunction):
    numbers: ps.ListState[int] = ps.list_state()
    gaps: ps.ListState[float | None] = ps.list_state()
    flags: ps.ListState[bool] = ps.list_state()
    texts: ps.ListState[str] = ps.list_state()
    raws: ps.ListState[bytes] = ps.list_state()
    times: ps.ListState[dt.datetime] = ps.list_state()
    days: ps.ListState[dt.date] = ps.list_state()
    monies: ps.ListState[Annotated[Decimal | None, ps.Precision(10, 2)]] = ps.list_state()
    pairs: ps.ListState[Pair] = ps.list_state()
    models: ps.ListState[Money] = ps.list_state()
    points: ps.ListState[Point] = ps.list_state()
    plain: ps.ListState[tuple[int, str | None]] = ps.list_state()
    by_number: ps.MapState[int, str | None] = ps.map_state()
    by_text: ps.MapState[str, float] = ps.map_state()
    by_raw: ps.MapState[bytes, bool] = ps.map_state()
    by_flag: ps.MapState[bool, int] = ps.map_state()
    by_time: ps.MapState[dt.datetime, dt.datetime] = ps.map_state()
    by_day: ps.MapState[dt.date, Pair] = ps.map_state()
    by_money: ps.MapState[Annotated[Decimal, ps.Precision(10, 2)], Money] = ps.map_state()
    by_pair: ps.MapState[tuple[int, str], tuple[float, str | None]] = ps.map_state()
    by_key: ps.MapState[Key, int] = ps.map_state()

    def process(self, row, ctx) -> Iterator[Out]:
        for name, elements in LISTS.items():
            state = getattr(self, name)
            if row.v == 0:
                state.extend(elements)
            elif list(state) != elements or state.get() != elements or elements[0] not in state:
                yield Out(row.k, f"{name}: {state.get()!r}", len(state))
        for name, entries in MAPS.items():
            state = getattr(self, name)
            if row.v == 0:
                state.update(entries)
            elif dict(state.items()) != entries or any(state[key] != entries[key] for key in entries):
                yield Out(row.k, f"{name}: {dict(state.items())!r}", len(state))


def test_elements_of_every_type_are_kept_saved_and_found_again(world):
    op = world.open(Everything())
    op.rows((1, 0, 1), (2, 0, 1), (1, 1, 1))
    for _ in range(2):
        assert op.rows((1, 1, 1), (2, 1, 1)) == []
        assert len(op.rows((3, 1, 1))) == len(LISTS) + len(MAPS)
        op = op.restored()


class ByName(ps.KeyedProcessFunction):
    """Runs what a test gives it."""

    numbers: ps.ListState[int] = ps.list_state()
    counts: ps.MapState[str, int] = ps.map_state()
    at: ps.MapState[dt.datetime, float] = ps.map_state()
    steps = []

    def process(self, row, ctx) -> Iterator[Out]:
        found = self.steps[row.v](self)
        yield Out(row.k, repr(found), None)


def run(op, *steps):
    ByName.steps = list(steps)
    return [what for _, what, *_ in op.rows(*((1, number, 1) for number in range(len(steps))))]


def test_a_list_is_read_in_place(world):
    op = world.open(ByName())
    assert run(op, lambda s: s.numbers.get(), lambda s: s.numbers.extend(range(3))) == ["[]", "None"]
    assert run(op, lambda s: s.numbers[-1], lambda s: s.numbers[1:], lambda s: len(s.numbers)) == ["2", "[1, 2]", "3"]
    assert run(op, lambda s: (2 in s.numbers, 3 in s.numbers, bool(s.numbers))) == ["(True, False, True)"]
    assert run(op, lambda s: s.numbers.set(n * 2 for n in s.numbers), lambda s: s.numbers.get()) == [
        "None",
        "[0, 2, 4]",
    ]
    assert run(op, lambda s: s.numbers.get()._list is s.numbers.get()._list) == ["True"]
    assert run(op.restored(), lambda s: s.numbers.get(), lambda s: s.numbers.clear()) == ["[0, 2, 4]", "None"]


def test_a_map_has_the_manners_of_a_dict(world):
    op = world.open(ByName())
    assert run(op, lambda s: s.counts.update({"a": 1, "b": 2}), lambda s: list(s.counts)) == ["None", "['a', 'b']"]
    assert run(op, lambda s: (s.counts.pop("a"), s.counts.pop("a", 7), s.counts.remove("a"))) == ["(1, 7, None)"]
    assert run(op, lambda s: (list(s.counts.keys()), list(s.counts.values()), len(s.counts))) == ["(['b'], [2], 1)"]
    for step in (lambda s: s.counts["a"], lambda s: s.counts.pop("a"), lambda s: s.counts.__delitem__("a")):
        with pytest.raises(PenstockError, match="KeyError: 'a'"):
            run(op, step)


def test_times_without_a_zone_are_of_utc(world):
    op = world.open(ByName())
    naive = TIME.replace(tzinfo=None)
    assert run(op, lambda s: s.at.put(naive, 1), lambda s: (s.at[TIME], s.at[naive])) == ["None", "(1, 1)"]
    assert run(op, lambda s: (s.at[TIME], s.at[naive], list(s.at) == [TIME])) == ["(1.0, 1.0, True)"]


def test_only_what_has_changed_is_saved(world):
    op = world.open(ByName())
    run(op, lambda s: s.numbers.extend(range(10)), lambda s: s.counts.update({"a": 1, "b": 2}), lambda s: s.at.items())
    first = {s.state: s for s in op.snapshot(1)}
    assert {name: [g.rows for g in s.segments] for name, s in first.items() if s.segments} == {
        "numbers": [10],
        "counts": [2],
    }
    run(op, lambda s: s.numbers.append(10), lambda s: s.counts.put("a", 3), lambda s: s.counts.get("b"))
    second = {s.state: s for s in op.snapshot(2)}
    assert [g.rows for g in second["numbers"].segments] == [10, 1]
    assert [g.rows for g in second["counts"].segments] == [2, 1]
    assert op.snapshot(3) == list(second.values())


def test_a_checkpoint_is_read_by_the_query_of_the_page(world):
    op = world.open(ByName())
    run(op, lambda s: s.numbers.extend([1, 2, 3]), lambda s: s.counts.update({"a": 1, "b": 2, "c": 3}))
    op.snapshot(1)
    run(op, lambda s: s.counts.put("a", 4), lambda s: s.numbers.append(4))
    op.snapshot(2)
    run(op, lambda s: s.numbers.set([5, 6]), lambda s: s.counts.remove("b"))
    queries = re.findall(r"^```sql\n(.*?)^```", FORMAT.read_text(), re.DOTALL | re.MULTILINE)
    (query,) = [query for query in queries if "__cleared" in query]
    found = {}
    for snapshot in op.snapshot(3):
        tables = []
        for segment in snapshot.segments:
            table = pq.read_table(io.BytesIO(world.files[segment.file.path]))
            for name, value in (("__log", 0), ("__position", segment.position)):
                table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
            tables.append(table)
        if tables:
            with duckdb.connect() as database:
                database.register("rows", pa.concat_tables(tables))
                rows = database.sql(query.replace("user_id", "k")).to_arrow_table().to_pylist()
            found[snapshot.state] = sorted((row["__entry"], row["value"]) for row in rows)
    assert found == {"numbers": [(4, 5), (5, 6)], "counts": [("a", 4), ("c", 3)]}


def test_elements_that_do_not_fit_are_refused(world):
    for step, text in (
        (lambda s: s.numbers.append("x"), "state 'numbers': field 'value' does not fit int64"),
        (lambda s: s.numbers.append(None), "state 'numbers': field 'value' was None"),
        (lambda s: s.counts.put(1, 1), "state 'counts': map key: field 'value' does not fit string"),
        (lambda s: s.counts.put(None, 1), "state 'counts': map key: field 'value' was None"),
        (lambda s: s.counts.put("a", None), "state 'counts': field 'value' was None"),
    ):
        with pytest.raises(PenstockError, match=text):
            run(world.open(ByName()), step)


def test_state_outside_of_a_row_is_refused():
    with pytest.raises(UsageError, match="state belongs to a key"):
        ByName.numbers.append(1)
    with pytest.raises(UsageError, match="state belongs to a key"):
        ByName.counts["a"] = 1


def test_another_type_is_refused_at_the_restart(world):
    class Texts(ByName):
        numbers: ps.ListState[str] = ps.list_state()

    op = world.open(ByName())
    run(op, lambda s: s.numbers.append(1))
    with pytest.raises(StateMismatchError, match="state 'numbers' of fn was saved with columns"):
        op.restored(Texts())


class Filling(ps.KeyedProcessFunction):
    """Keeps replacing what it has, or keeps all."""

    texts: ps.MapState[int, str] = ps.map_state()
    all: ps.ListState[str] = ps.list_state()

    def process(self, row, ctx) -> Iterator[Out]:
        self.texts[row.v % 10] = f"{row.v}" * 100
        if row.k == 1:
            self.all.append(f"{row.v}" * 100)
        return ()


def test_state_that_outgrows_the_managed_memory_fails_and_says_so(world, monkeypatch):
    given(monkeypatch, measured_bytes=10_000)
    op = world.open(Filling(), memory=1_500_000)
    for turn in range(200):
        op.rows(*((0, 100 * turn + n, 1) for n in range(100)))
        op.snapshot(turn)
    with pytest.raises(PenstockError, match=r"needs 1,\d+,\d+ bytes.*managed_memory allows.*can exceed memory"):
        fill(op)


def fill(op):
    for turn in range(200):
        op.rows(*((1, 100 * turn + n, 1) for n in range(100)))
        op.snapshot(turn)
