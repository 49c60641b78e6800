"""Every window with every terminal operation gives the same results whichever way its key is written.

The windows of a key column are compared with Flink (`test_answers`). Here a key that a function computes must give what
the column of the same values does, and windows over all rows what those of a constant column do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import polars as pl
import pytest
from tests.flink.in_process import answer_of
from tests.flink.question import Question

import penstock as ps


class Found(NamedTuple):
    """A result of one terminal operation, its columns as text."""

    terminal: str
    columns: str


class Listed(NamedTuple):
    """A row that a window function returns."""

    key: str | None
    first: int
    rows: str


class Longest(ps.Aggregator[int, int, int]):
    """The greatest value so far."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return max(value, accumulator)

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return max(a, b)


def greater(a: Any, b: Any) -> Any:
    return a if a.score >= b.score else b


def numbers(rows: Any) -> str:
    return ",".join(str(row.id) for row in rows)


def applied(key: Any, window: Any, rows: list[Any]) -> Iterator[Listed]:
    yield Listed(None if key == 0 else key, len(rows), numbers(rows))


def applied_to_all(window: Any, rows: list[Any]) -> Iterator[Listed]:
    yield Listed(None, len(rows), numbers(rows))


class Processed(ps.ProcessWindowFunction):
    """Lists a window."""

    def process(self, key: Any, ctx: Any, rows: Any) -> Iterator[Listed]:
        yield from applied(key, None, rows)


class ProcessedAll(ps.ProcessAllWindowFunction):
    """Lists a window over all rows."""

    def process(self, ctx: Any, rows: Any) -> Iterator[Listed]:
        yield from applied_to_all(None, rows)


SIMPLE = {
    "n": ps.count(), "values": ps.count("v"), "total": ps.sum("v"), "least": ps.min("score"), "most": ps.max("w"),
    "mean": ps.mean("score"), "var": ps.var("score"), "std": ps.std("score"), "first": ps.first("id"),
    "last": ps.last("side"), "about": ps.approx_count_distinct("score"),
}  # fmt: skip
KEPT = {
    "all": ps.collect("id"),
    "middle": ps.quantile("score", 0.5),
    "sides": ps.count_distinct("side"),
    "n": ps.count(),
}
OWN = {"longest": ps.aggregating(Longest(), "score"), "n": ps.count()}
#: Terminal operation -> what it is called on, and whether the window is over all rows.
TERMINALS: dict[str, Callable[[Any, bool], Any]] = {
    "simple": lambda windows, of_all: windows.aggregate(**SIMPLE),
    "kept": lambda windows, of_all: windows.aggregate(**KEPT),
    "own": lambda windows, of_all: windows.aggregate(**OWN),
    "reduce": lambda windows, of_all: windows.reduce(greater),
    "apply": lambda windows, of_all: windows.apply(applied_to_all if of_all else applied, returns=Listed),
    "process": lambda windows, of_all: windows.process(ProcessedAll() if of_all else Processed(), returns=Listed),
}


def over(window: Any, **options: Any) -> Callable[[Any, bool], Any]:
    """Return what makes windows of a stream, keyed or over all rows; `options` are methods with their argument."""

    def made(stream: Any, of_all: bool) -> Any:
        windows = stream.window_all(window) if of_all else stream.window(window)
        for name, argument in options.items():
            windows = getattr(windows, name)(argument)
        return windows

    return made


def counted(*sizes: int) -> Callable[[Any, bool], Any]:
    return lambda stream, of_all: stream.count_window_all(*sizes) if of_all else stream.count_window(*sizes)


WINDOWS: dict[str, Callable[[Any, bool], Any]] = {
    "tumbling": over(ps.Tumbling("10s")),
    "sliding": over(ps.Sliding("10s", "4s")),
    "cumulative": over(ps.Cumulative("4s", "12s")),
    "session": over(ps.Session("3s")),
    "lateness": over(ps.Tumbling("10s"), allowed_lateness="5s"),
    "trigger": over(ps.Tumbling("20s"), trigger=ps.trigger.count(3)),
    "evictor": over(ps.Sliding("10s", "5s"), evictor=ps.evictor.count(2)),
    "global": over(ps.Global(), trigger=ps.trigger.count(5)),
    "count": counted(3),
    "count and slide": counted(4, 2),
}
PAIRS = {"computed": ("column", "computed"), "all": ("constant", "all")}


def keyed(stream: Any, way: str) -> tuple[Any, bool]:
    """Return the stream with its key in one of the ways, and whether its windows are over all rows."""
    if way == "column":
        return stream.key_by("k"), False
    if way == "computed":
        return stream.key_by(lambda row: row.k, returns=str | None, name="computed"), False
    return (stream, True) if way == "all" else (stream.with_columns(one=pl.lit(0)).key_by("one"), False)


def found_of(terminal: str, way: str) -> Callable[[Any], Found]:
    def found(row: Any) -> Found:
        columns = row._asdict()
        columns.pop("one", None)
        return Found(terminal, repr(tuple(columns.values())))

    return found


def results(window: str, way: str, backend: str) -> list[str]:
    """Run all terminal operations over the windows; return what comes out, in order."""

    def job(stream: ps.DataStream) -> ps.DataStream:
        made = []
        for terminal, call in TERMINALS.items():
            rows, of_all = keyed(stream, way)
            out = call(WINDOWS[window](rows, of_all), of_all).uid(terminal)
            made.append(out.map(found_of(terminal, way), returns=Found))
        return made[0].union(*made[1:])

    return answer_of(Question(window, "", job), rows=ROWS, backend=backend)


ROWS = 150
EVERY = list(itertools.product(WINDOWS, PAIRS))
#: In the gate each window has one pair in memory, and the other backends one case each.
GATE = {
    "hashmap": {(window, list(PAIRS)[number % 2]) for number, window in enumerate(WINDOWS)},
    "rocksdb": {("session", "computed")},
    "remote": {("evictor", "all")},
}
CASES = [
    pytest.param(*case, backend, marks=() if case in few else pytest.mark.nightly)
    for backend, few in GATE.items()
    for case in EVERY
]


@pytest.mark.parametrize(("window", "pair", "backend"), CASES)
def test_results_are_those_of_a_key_column(window, pair, backend):
    column, other = (results(window, way, backend) for way in PAIRS[pair])
    assert {line.split('"')[1] for line in column} == set(TERMINALS), "an operation without any result shows nothing"
    assert other == column
