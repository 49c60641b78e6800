"""Keyed process functions by example: rows, values, side outputs, errors, what is saved and found again."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.sizes import given
from tests.unit.operators.process.counting import Counting, Out

import penstock as ps
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN
from penstock.core.errors import PenstockError, StateMismatchError, UsageError
from penstock.kernels.keys.hashing import hash_columns
from penstock.operators.rows.user_functions import UserFunctionError

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64()), pa.field(TS_COLUMN, pa.int64())]
)
NAMES = pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64()), pa.field(TS_COLUMN, pa.int64())])


def test_values_and_timers_belong_to_their_key(world):
    op = world.open(Counting())
    assert op.rows((1, 0, 1), (2, 1, 2), (1, 1, 3), (1, 1, 4)) == [(2, "row", 1, 2), (1, "row", 2, 3), (1, "row", 3, 4)]
    assert op.watermark(8) == []
    assert op.watermark(9) == [(1, "event@9", 3, 9), (2, "event@9", 1, 9)]
    assert op.watermark(30) == []
    assert op.rows((1, 1, 31)) == [(1, "row", 1, 31)]


class Money(ps.Schema):
    amount: Annotated[Decimal, ps.Precision(30, 2)]
    note: str | None


class Pair(NamedTuple):
    a: int
    b: str | None


class Everything(ps.KeyedProcessFunction):
    number: ps.ValueState[int] = ps.value_state()
    real: ps.ValueState[float] = ps.value_state()
    flag: ps.ValueState[bool] = ps.value_state()
    text: ps.ValueState[str | None] = ps.value_state()
    raw: ps.ValueState[bytes] = ps.value_state()
    time: ps.ValueState[dt.datetime] = ps.value_state()
    day: ps.ValueState[dt.date] = ps.value_state()
    money: ps.ValueState[Annotated[Decimal, ps.Precision(10, 2)]] = ps.value_state()
    pair: ps.ValueState[Pair] = ps.value_state()
    model: ps.ValueState[Money] = ps.value_state()
    plain: ps.ValueState[tuple[int, str | None]] = ps.value_state()
    single: ps.ValueState[tuple[float]] = ps.value_state()

    def open(self, ctx):
        self.states = [getattr(self, name) for name in ALL]

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v == 0:
            for state, value in zip(self.states, ALL.values(), strict=True):
                state.update(value)
        elif row.v == 1:
            for name, state in zip(ALL, self.states, strict=True):
                found = state.value()
                yield Out(0, name if found == ALL[name] else f"{name}: {found!r}", None)
        elif row.v == 2:
            for state in self.states:
                state.clear()
        else:
            yield Out(0, "gone" if all(state.value() is None for state in self.states) else "there", None)


ALL = {
    "number": -(1 << 62),
    "real": -0.5,
    "flag": False,
    "text": "ä" * 9,
    "raw": b"",
    "time": dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC),
    "day": dt.date(1969, 1, 2),
    "money": Decimal("-12.34"),
    "pair": Pair(3, None),
    "model": Money(amount=Decimal("123456789012345678901234.56"), note=None),
    "plain": (-1, None),
    "single": (0.25,),
}


class Last(ps.KeyedProcessFunction):
    """Says the value a key had before."""

    last: ps.ValueState[tuple[int, str]] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        before = self.last.value()
        yield Out(row.k, "none" if before is None else before[1], None if before is None else before[0])
        self.last.update((row.v, f"v{row.v}"))


@pytest.mark.parametrize("known", [{2}, {1, 2, 4, 5}, {1, 2, 3, 4, 5}, set()])
def test_values_are_found_whether_few_or_most_keys_of_a_batch_have_one(world, known):
    op = world.open(Last())
    op.rows(*((k, 10 * k, 0) for k in sorted(known)))
    assert op.rows(*((k, 0, 1) for k in range(1, 6))) == [
        (k, f"v{10 * k}", 10 * k, 1) if k in known else (k, "none", None, 1) for k in range(1, 6)
    ]


class WrongTuple(Last):
    def process(self, row, ctx) -> Iterator[Out]:
        self.last.update((row.v,))
        return ()


def test_a_tuple_of_another_length_is_refused(world):
    with pytest.raises(PenstockError, match=r"state 'last': a value has 1 fields.*f0, f1"):
        world.open(WrongTuple()).rows((1, 1, 1))


@pytest.mark.parametrize("value", [{1: 0, 2: 0}, "ab", {1, 2}])
def test_what_is_no_tuple_is_refused_for_one(world, value):
    class NoTuple(Last):
        def process(self, row, ctx) -> Iterator[Out]:
            self.last.update(value)
            return ()

    with pytest.raises(PenstockError, match=r"state 'last': a value is no tuple"):
        world.open(NoTuple()).rows((1, 1, 1))


@pytest.mark.parametrize("schema", [SCHEMA, NAMES])
def test_values_of_every_type_are_saved_and_found_again(world, schema):
    first, second = (1, 2) if schema is SCHEMA else ("one", None)
    op = world.open(Everything(), schema=schema)
    op.rows((first, 0, 1), (second, 3, 1), (second, 0, 2))
    for _ in range(2):
        assert [what for _, what, *_ in op.rows((first, 1, 1), (second, 1, 1))] == [*ALL, *ALL]
        op = op.restored()
    assert [what for _, what, *_ in op.rows((first, 2, 1), (first, 3, 2))] == ["gone"]
    op = op.restored()
    assert [what for _, what, *_ in op.rows((first, 3, 2), (second, 3, 2))] == ["gone", "there"]


def test_a_cleared_value_stays_cleared_and_unchanged_state_is_not_saved_again(world):
    op = world.open(Counting())
    op.rows((1, 0, 1), (2, 0, 1), (3, 0, 11))
    op.snapshot(1)
    op.watermark(9)
    states = {s.state: s for s in op.snapshot(2)}
    assert [s.rows for s in states["count"].segments] == [3, 2]
    assert op.snapshot(3) == list(states.values())
    assert op.restored().watermark(19) == [(3, "event@19", 1, 19)]


def test_a_restore_in_the_middle_of_a_window_loses_no_timer_and_fires_none_again(world):
    op = world.open(Counting())
    op.rows((1, 0, 1), (2, 0, 11))
    op.snapshot(1)
    op.rows((1, 0, 2), (3, 0, 3))
    assert len(op.watermark(9)) == 2
    op.rows((4, 0, 12))
    op = op.restored()
    assert op.watermark(10) == []
    assert sorted(op.watermark(19)) == [(2, "event@19", 1, 19), (4, "event@19", 1, 19)]


def test_a_change_of_parallelism_hands_keys_over(world):
    op = world.open(Counting())
    op.rows(*((k, 0, k % 30) for k in range(300)))
    fired = op.watermark(9)
    one, two = (op.restored(None, 2, i) for i in range(2))
    fired += one.watermark(15)
    saved = one.snapshot(5)
    three = [two.restored(None, 3, i, *saved) for i in range(3)]
    for part in three:
        fired += part.watermark(MAX_TIMESTAMP)
    assert sorted(k for k, *_ in fired) == list(range(300))
    assert {n for _, _, n, _ in fired} == {1}


def test_dead_keys_are_dropped_and_living_ones_keep_what_they_have(world, monkeypatch):
    given(monkeypatch, dead_keys=100)
    op = world.open(Counting())
    for first in range(0, 5000, 50):
        op.rows(*((k, 0, k // 10) for k in range(first, first + 50)), (-7, 0, 10_000))
        op.snapshot(first)
        op.watermark(first // 10)
    assert op.operator._state.index.count < 1000
    assert op.rows((-7, 1, 10_001)) == [(-7, "row", 101, 10_001)]
    op = op.restored()
    fired = op.watermark(20_000)
    assert (-7, "event@10009", 101, 10_009) in fired


class Wrong(ps.KeyedProcessFunction):
    count: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v == 1:
            raise KeyError("nothing")
        if row.v == 2:
            self.count.update("two")
        if row.v == 3:
            ctx.timers.event("soon")
        if row.v == 4:
            ctx.timers.event(1 << 70)
        if row.v == 5:
            ctx.side("odd", row)
        if row.v == 6:
            yield Out(1, None, 2)

    def on_timer(self, timestamp, ctx):
        """No timer of this function gets so far."""


class WithoutOnTimer(ps.KeyedProcessFunction):
    def process(self, row, ctx) -> Iterator[Out]:
        if row.v == 1:
            ctx.timers.event(row.v)
        if row.v == 2:
            ctx.timers.processing(row.v)
        ctx.timers.delete(7)
        yield Out(row.k, "row", row.v)


@pytest.mark.parametrize("v", [1, 2])
def test_a_timer_that_nothing_handles_is_refused(world, v):
    op = world.open(WithoutOnTimer())
    assert [out[:3] for out in op.rows((1, 0, 1))] == [(1, "row", 0)]
    with pytest.raises(UserFunctionError, match=r"the function has no on_timer at .* \(define on_timer"):
        op.rows((1, v, 1))


def test_errors_name_the_line_of_the_function(world):
    with pytest.raises(
        UserFunctionError, match=r"process 'fn': KeyError: 'nothing' at .*test_process_operator.py:\d+ in"
    ):
        world.open(Wrong()).rows((1, 0, 1), (1, 1, 1))
    with pytest.raises(
        UserFunctionError, match=r"neither microseconds nor a datetime.* at .*test_process_operator.py:\d+ in"
    ):
        world.open(Wrong()).rows((1, 3, 1))
    with pytest.raises(UserFunctionError, match="no side output 'odd'"):
        world.open(Wrong()).rows((1, 5, 1))


@pytest.mark.parametrize(
    ("v", "text"),
    [
        (2, "state 'count': field 'value' does not fit int64"),
        (4, "beyond 64 bits"),
        (6, "'what' was None in 1 of 1 rows"),
    ],
)
def test_values_that_do_not_fit_are_an_error(world, v, text):
    with pytest.raises(PenstockError, match=text):
        world.open(Wrong()).rows((1, v, 1))


class Renamed(ps.KeyedProcessFunction):
    counted: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        yield Out(1, "", self.counted.value())


class Retyped(Counting):
    count: ps.ValueState[float] = ps.value_state()


class Wider(Counting):
    more: ps.ValueState[float] = ps.value_state()


def test_state_that_does_not_fit_is_refused_and_a_new_state_begins_empty(world):
    op = world.open(Counting())
    op.rows((1, 0, 1))
    with pytest.raises(StateMismatchError, match="has the state 'count', the job declares counted"):
        op.restored(Renamed())
    with pytest.raises(StateMismatchError, match="value was int64 and is double, which cannot hold all its values"):
        op.restored(Retyped())
    assert op.restored(Wider()).watermark(9) == [(1, "event@9", 1, 9)]


class EagerList(Counting):
    visits: ps.ListState[int] = ps.list_state()

    def open(self, ctx):
        self.visits.append(1)


def test_an_early_use_names_the_state_as_declared(world):
    with pytest.raises(UserFunctionError, match=r"\(use self\.visits in process and on_timer"):
        world.open(EagerList())


class Eager(Counting):
    def open(self, ctx):
        assert (ctx.job_name, ctx.subtask, ctx.parallelism) == ("orders", 1, 2)
        self.count.update(1)


def test_state_outside_of_a_row_is_an_error(world):
    new_key = (
        r"state belongs to a key, and there is none here: .*"
        r" \(use self\.count in process and on_timer; a new key has nothing in it\)"
    )
    with pytest.raises(UserFunctionError, match=new_key):
        world.open(Eager())
    with pytest.raises(
        UsageError, match=r"state belongs to a key.* while a job runs \(test the function in .*JobHarness"
    ):
        Counting().count.value()


def test_state_beyond_its_memory_is_an_error(world):
    op = world.open(Counting(), memory=500_000)
    with pytest.raises(PenstockError, match="the state of fn needs"):
        op.rows(*((k, 0, 1) for k in range(20_000)))


class Sides(ps.KeyedProcessFunction):
    def process(self, row, ctx) -> Iterator[Out]:
        ctx.side("even" if row.v % 2 == 0 else "odd", Pair(row.v, ctx.key[1]))
        return ()

    def close(self):
        CLOSED.append(1)


CLOSED = []


def test_side_outputs_and_keys_of_several_columns(world):
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("s", pa.string()), *list(SCHEMA)[1:]])
    op = world.open(Sides(), schema=schema, key=("k", "s"), sides={"even": Pair, "odd": Pair})
    assert op.rows((1, "x", 4, 1), (1, None, 5, 2)) == []
    assert {tag: [r for b in found for r in b.to_pylist()] for tag, found in op.out.sides.items()} == {
        "even": [{"a": 4, "b": "x", TS_COLUMN: 1}],
        "odd": [{"a": 5, "b": None, TS_COLUMN: 2}],
    }
    op.operator.close()
    op.operator.close()
    assert CLOSED == [1]


def test_snapshots_are_sorted_by_the_hash_every_key_has(world):
    op = world.open(Counting())
    op.rows(*((k, 0, 1) for k in range(100)))
    (count, timers, _) = op.snapshot(1)
    assert [count.state, timers.state] == ["count", "__timers_event"]
    for state in (count, timers):
        table = pq.read_table(pa.BufferReader(op.world.files[state.segments[0].file.path]))
        assert table.column("__key_hash").to_pylist() == sorted(hash_columns(table.to_batches()[0], ("k",)).tolist())
    assert MIN_TIMESTAMP < timers.segments[0].namespace_min == 9
