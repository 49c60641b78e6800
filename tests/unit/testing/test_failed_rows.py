"""The row at which a user's code failed, for each kind of function: found after the failure, in the job's error."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as ps
from penstock.testing import JobHarness
from penstock_connectors.files import FileSource

ROWS = [
    {"user": user, "amount": amount, "ts": datetime(2026, 1, 1, 0, 0, second)}
    for second, (user, amount) in enumerate([("a", 4), ("b", 0), ("c", 2)])
]
FAILED = "row 2 of a batch of 3: user='b', amount=0, ts=2026-01-01 00:00:01+00:00"
WINDOW = "window 2026-01-01 00:00:00 to 2026-01-01 00:01:00"
MINUTE = ps.Tumbling("1m")


class Paid(ps.Schema):
    user: str
    amount: int
    ts: datetime


class Share(ps.Schema):
    share: int


def share(row: Paid) -> Share:
    return Share(share=8 // row.amount)


def shares(row: Paid) -> Iterator[Share]:
    yield share(row)


def frame_shares(rows: pl.DataFrame) -> pl.DataFrame:
    raise ArithmeticError(f"{len(rows)} rows")


def part(row: Paid) -> tuple[str, int]:
    return row.user, 8 // row.amount


class Keyed(ps.KeyedProcessFunction):
    seen: ps.ValueState[int] = ps.value_state()

    def process(self, row: Paid, ctx: ps.ProcessContext) -> Iterator[Share]:
        self.seen.update(8 // row.amount)
        yield Share(share=1)


class Plain(ps.ProcessFunction):
    def process(self, row: Paid, ctx: ps.RowContext) -> Iterator[Share]:
        yield share(row)


class Latest(ps.ProcessFunction):
    """Gives a text to a list of integers."""

    users: ps.OperatorListState[int] = ps.operator_list_state()

    def process(self, row: Paid, ctx: ps.RowContext) -> Iterator[Share]:
        self.users.set([row.user])  # type: ignore[list-item]
        return iter(())


class Alarm(ps.KeyedProcessFunction):
    def process(self, row: Paid, ctx: ps.ProcessContext) -> Iterator[Share]:
        ctx.timers.event(ctx.timestamp + 1)
        return iter(())

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Share]:
        raise ArithmeticError("alarm")


class Texts(ps.KeyedProcessFunction):
    """Gives a text to a state of integers, by the way that `way` names."""

    value: ps.ValueState[int] = ps.value_state()
    pair: ps.ValueState[tuple[int, int]] = ps.value_state()
    elements: ps.ListState[int] = ps.list_state()
    entries: ps.MapState[str, int] = ps.map_state()
    least: ps.ReducingState[int] = ps.reducing_state(min)

    def __init__(self, way: str) -> None:
        self.way = way

    def process(self, row: Paid, ctx: ps.ProcessContext) -> Iterator[Share]:
        given: Any = row.amount or row.user
        if self.way == "value":
            self.value.update(given)
        elif self.way == "pair":
            self.pair.update(given if row.amount == 0 else (given, 1))
        elif self.way == "list":
            self.elements.append(1)
            self.elements.append(given)
        elif self.way == "map":
            self.entries["x"] = given
        elif self.way == "reducing":
            self.least.add(given)
        else:
            ctx.timers.event(ctx.timestamp + 1)
        return iter(())

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Share]:
        self.value.update(ctx.key)
        return iter(())


class Sums(ps.KeyedProcessFunction):
    """Calculates with what a state has before its first update, or with times, by the way that `way` names."""

    total: ps.ValueState[int] = ps.value_state()
    newest: ps.MapState[str, int] = ps.map_state()

    def __init__(self, way: str) -> None:
        self.way = way

    def process(self, row: Paid, ctx: ps.ProcessContext) -> Iterator[Share]:
        if self.way == "value":
            self.total.update(self.total.value() + row.amount)
        elif self.way == "later":
            total: Any = self.total.value()
            total += row.amount
        elif self.way == "compared":
            yield Share(share=int(self.total.value() > 5))
        elif self.way == "method":
            yield Share(share=self.total.value().bit_length())
        elif self.way == "map":
            self.newest.put("x", self.newest.get("x") + 1)
        elif self.way == "none of a row":
            yield Share(share=dict.fromkeys("a").get("a") + 1)
        elif self.way == "timedelta":
            ctx.timers.event(ctx.timestamp + timedelta(seconds=1))
        else:
            yield Share(share=(row.ts - datetime(2026, 1, 1)).seconds)


class Shares(ps.Aggregator[Paid, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Paid, accumulator: int) -> int:
        return accumulator + 8 // value.amount

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class NoStart(Shares):
    def create_accumulator(self) -> int:
        raise ArithmeticError


class NoEnd(Shares):
    def add(self, value: Paid, accumulator: int) -> int:
        return accumulator

    def get_result(self, accumulator: int) -> int:
        raise ArithmeticError


class Whole(ps.ProcessWindowFunction):
    def process(self, key: str, ctx: ps.WindowContext, rows: list[Paid]) -> Iterator[Share]:
        yield from map(share, rows)


def smaller(one: Paid, other: Paid) -> Paid:
    return one if 8 // one.amount > 8 // other.amount else other


def first_rows(row: Paid) -> Share | None:
    return Share(share=1) if row.amount else None


def nothing(row: Paid) -> bool:
    return True if row.amount else row.user  # type: ignore[return-value]


def wrong(row: Paid) -> dict[str, object]:
    return {"share": row.amount or "none"}


def texts(way):
    return lambda paid: paid.key_by("user").process(Texts(way)).uid("texts")


def windows(stream):
    return stream.select("user", "amount").key_by(lambda row: 1, returns=int).window(MINUTE)


#: The kind of code -> the job, and the last line of its error.
JOBS = {
    "map": (lambda paid: paid.map(share), FAILED),
    "flat_map": (lambda paid: paid.flat_map(shares), FAILED),
    "filter": (lambda paid: paid.filter(lambda row: 8 // row.amount > 1), FAILED),
    "key selector": (lambda paid: paid.key_by(part).aggregate(n=ps.count()).uid("n"), FAILED),
    "process": (lambda paid: paid.key_by("user").process(Keyed()).uid("keyed"), FAILED),
    "process without keys": (lambda paid: paid.process(Plain()).uid("plain"), FAILED),
    "map_batches": (
        lambda paid: paid.map_batches(frame_shares, returns=Share),
        "first row of a batch of 3: user='a', amount=4, ts=2026-01-01 00:00:00+00:00",
    ),
    "Polars expression": (
        lambda paid: paid.with_columns(number=pl.col("user").replace({"a": "1", "c": "2"}).cast(pl.Int64)),
        FAILED,
    ),
    "a result of None": (lambda paid: paid.map(first_rows, returns=Share), FAILED),
    "an answer that is no bool": (lambda paid: paid.filter(nothing), f"returned: 'b'\n{FAILED}"),
    "a result of another type": (
        lambda paid: paid.map(wrong, returns=Share),
        "returned: {'share': 'none'} (Could not convert 'none' with type str: tried to convert to int64)\n" + FAILED,
    ),
    "timer": (
        lambda paid: paid.key_by("user").process(Alarm()).uid("alarm"),
        "timer at 2026-01-01 00:00:00.000001, key 'a'",
    ),
    "reduce": (
        lambda paid: windows(paid).reduce(smaller).uid("least"),
        f"row 2 of 3, Row(user='b', amount=0), of {WINDOW}",
    ),
    "aggregator": (
        lambda paid: windows(paid).aggregate(total=ps.aggregating(Shares())).uid("shares"),
        "add of row 2 of 3, Row(user='b', amount=0), of a window",
    ),
    "aggregator without a first value": (
        lambda paid: windows(paid).aggregate(total=ps.aggregating(NoStart())).uid("shares"),
        "ArithmeticError\ncreate_accumulator of a window of 3 rows",
    ),
    "aggregator without a result": (
        lambda paid: windows(paid).aggregate(total=ps.aggregating(NoEnd())).uid("shares"),
        "ArithmeticError\nget_result of a window of 3 rows",
    ),
    "window function": (
        lambda paid: windows(paid).process(Whole()).uid("whole"),
        f"{WINDOW} of key 1, rows: 3, the first row: Row(user='a', amount=4)",
    ),
}


_WHY = "(Could not convert 'b' with type str: tried to convert to int64)"
#: The way of `Texts` -> its error, the lines of `Texts.process` that change the state, the last lines of the error.
STATES = {
    "value": (
        "state 'value': field 'value' does not fit int64: it got a value of type str",
        ("self.value.update(given)", "self.value.update(ctx.key)"),
        f"value: {{'value': 'b'}} {_WHY}\nkey 'b', {FAILED}",
    ),
    "pair": ("state 'pair': a value is no tuple", ("self.pair.update(",), f"value: 'b'\nkey 'b', {FAILED}"),
    "list": (
        "state 'elements': field 'value' does not fit int64",
        ("self.elements.append(1)", "self.elements.append(given)"),
        f"key 'b', {FAILED}",
    ),
    "map": ("state 'entries': field 'value' does not fit int64", ('self.entries["x"]',), f"key 'b', {FAILED}"),
    "reducing": ("state 'least': field 'value' does not fit int64", ("self.least.add(",), f"key 'b', {FAILED}"),
    "timer": (
        "state 'value': field 'value' does not fit int64",
        ("self.value.update(given)", "self.value.update(ctx.key)"),
        f"value: {{'value': 'a'}} {_WHY.replace(repr('b'), repr('a'))}\nkey 'a'",
    ),
}


def run(job):
    job.push("paid", ROWS)
    job.checkpoint()
    job.end()


def failed(make, **settings):
    """Run a job whose second row fails; return its error."""
    env = ps.Environment(1, **settings)
    times = ps.WatermarkStrategy.monotonic(timestamp="ts")
    paid = env.from_source(FileSource("paid.jsonl", Paid), watermarks=times, uid="paid")
    with JobHarness(make(paid)) as job, pytest.raises(ps.JobFailedError) as raised:
        run(job)
    return raised.value


@pytest.mark.parametrize("kind", JOBS)
def test_a_failure_in_the_users_code_shows_the_row(kind):
    make, row = JOBS[kind]
    (note,) = failed(make).__notes__
    assert note.endswith(row)


@pytest.mark.parametrize("way", STATES)
def test_a_value_that_does_not_fit_its_state_is_told_with_its_key_and_the_lines_that_change_the_state(way):
    text, changes, row = STATES[way]
    error = failed(texts(way))
    lines = Path(__file__).read_text().splitlines()
    begin = lines.index("class Texts(ps.KeyedProcessFunction):")
    numbers = [next(i for i, line in enumerate(lines[begin:], begin + 1) if change in line) for change in changes]
    methods = ["process" if change != "self.value.update(ctx.key)" else "on_timer" for change in changes]
    places = " or ".join(f"{__file__}:{n} in {method}" for n, method in zip(numbers, methods, strict=True))
    assert f"process 'texts': {text}" in str(error)
    assert f"; set at {places} (" in str(error)
    assert error.__notes__[0].endswith(row)


NONE = "value() of a state is None before its first update"
#: The way of `Sums` -> the end of its error.
HINTS = {
    "value": f"'NoneType' and 'int' at {__file__}:LINE in process ({NONE}: write self.total.value() or 0)",
    "later": f"in process ({NONE}: write self.total.value() or 0)",
    "compared": f"in process ({NONE}: write self.total.value() or 0)",
    "method": f"in process ({NONE}: write self.total.value() or 0)",
    "map": "in process (get(key) of a state is None for a key that it has not: write self.newest.get(key, 0))",
    "none of a row": "in process",
    "timedelta": "in process (ctx.timestamp and the times of timers are microseconds: add 10_000_000 for 10 s)",
    "naive": "in process (datetimes of rows are in UTC: write datetime(..., tzinfo=UTC), and datetime.now(UTC))",
}


@pytest.mark.parametrize("way", HINTS)
def test_a_calculation_with_a_missing_value_or_another_time_has_a_hint(way):
    error = failed(lambda paid: paid.key_by("user").process(Sums(way)).uid("sums"))
    line = next(
        n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "self.total.value() + row" in text
    )
    assert str(error).endswith(HINTS[way].replace("LINE", str(line)))


def test_a_stream_without_event_time_has_no_timestamp():
    paid = ps.Environment(1).from_source(FileSource("paid.jsonl", Paid), uid="paid")
    with (
        JobHarness(paid.key_by("user").process(Alarm()).uid("alarm")) as job,
        pytest.raises(ps.JobFailedError) as raised,
    ):
        job.push("paid", ROWS)
    assert str(raised.value).endswith(
        "in process (ctx.timestamp is None: the stream has no event time, give its source watermarks=...)"
    )


def test_a_field_that_the_row_type_has_not_is_named():
    error = failed(lambda paid: paid.map(lambda row: {"share": 1, "shre": 2}, returns=Share).uid("shares"))
    said = "map 'shares': a row has the unknown field 'shre'; operator 'shares' at test_failed_rows.py:"
    assert said in str(error)
    assert str(error).endswith("(did you mean 'share'? there are: share)")
    assert error.__notes__[0].startswith("returned: {'share': 1, 'shre': 2}\nrow 1 of a batch of 3")


def test_a_missing_field_and_an_unknown_one_are_named_together():
    error = failed(lambda paid: paid.map(lambda row: {"shre": 2}, returns=Share).uid("shares"))
    assert "a row has no field 'share', and has the unknown field 'shre'" in str(error)
    assert str(error).endswith("(rows must have: share)")


def test_an_element_that_does_not_fit_the_list_of_a_subtask_is_told_with_the_lines_that_change_it():
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "self.users.set(" in text)
    error = failed(lambda paid: paid.process(Latest()).uid("latest"))
    text = "state 'users': field 'value' does not fit int64: it got a value of type str"
    assert f"{text}; set at {__file__}:{line} in process" in str(error)


def test_a_setting_hides_rows_and_values():
    for kind in ("map", "a result of another type", "an answer that is no bool"):
        error = failed(JOBS[kind][0], show_values_in_errors=False)
        text = "".join([str(error), *getattr(error, "__notes__", [])])
        assert "'b'" not in text
        assert "none" not in text
        assert "row 2" not in text
