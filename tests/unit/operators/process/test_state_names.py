"""States and contexts show only names of the reference; a wrong name or call gets a hint."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock as ps
from penstock.core.errors import misuse_hint
from penstock.operators.process.state_binding import RenewingListState, RenewingMapState, RenewingValueState
from penstock.operators.rows.user_functions import UserFunctionError
from penstock.task.chain.failure import describe

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "functions-and-state.md").read_text(encoding="utf-8")
VALUE = {"value", "update", "clear"}
LIST = {"append", "extend", "get", "set", "clear"}
MAP = {"get", "put", "update", "remove", "pop", "clear", "keys", "values", "items"}
FOLDING = {"add", "get", "clear"}
SUBTASK_LIST = {"get", "add", "extend", "set", "clear"}
ROW_CONTEXT = {"processing_time", "side", "timestamp", "watermark"}
PUBLIC = {
    ps.ValueState: VALUE,
    RenewingValueState: VALUE,
    ps.ListState: LIST,
    RenewingListState: LIST,
    ps.MapState: MAP,
    RenewingMapState: MAP,
    ps.ReducingState: FOLDING,
    ps.AggregatingState: FOLDING,
    ps.BroadcastState: {"get", "contains", "items", "put", "remove", "clear"},
    ps.OperatorListState: SUBTASK_LIST,
    ps.UnionState: SUBTASK_LIST | {"restored"},
    ps.ProcessContext: ROW_CONTEXT | {"at_end", "key", "time_domain", "timers"},
    ps.RowContext: ROW_CONTEXT,
    ps.BroadcastContext: ROW_CONTEXT,
}


@pytest.mark.parametrize("kind", PUBLIC)
def test_a_user_sees_only_names_of_the_reference(kind):
    assert {name for name in dir(kind) if not name.startswith("_")} == PUBLIC[kind]
    assert not [name for name in PUBLIC[kind] if not re.search(rf"\b{name}\b", PAGE)]


class Out(NamedTuple):
    k: int


class Mistaken(ps.KeyedProcessFunction):
    """Makes one mistake in `process`."""

    seen: ps.ValueState[int] = ps.value_state()
    last: ps.ListState[int] = ps.list_state()
    by_day: ps.MapState[str, int] = ps.map_state()
    read: ps.ValueState[int] = ps.value_state(ttl=ps.StateTtlConfig("1h", update="on_read_and_write"))
    most: ps.ReducingState[int] = ps.reducing_state(max)

    def __init__(self, mistake):
        self.mistake = mistake

    def process(self, row, ctx) -> Iterator[Out]:
        self.mistake(self, ctx, row)
        yield Out(1)


CALL = r"a method is used without its call: put \(\) after its name"
#: The mistake, and what is said: the cause, the way out. Of the function `fn`, its context and a row.
MISTAKES = [
    (lambda fn, ctx, row: fn.seen.get(), "'ValueState' .* no attribute 'get'", "there are: clear, update, value"),
    (lambda fn, ctx, row: fn.seen.vlaue(), "no attribute 'vlaue'", r"did you mean 'value'\? there are: clear, update"),
    (lambda fn, ctx, row: fn.seen.changed, "no attribute 'changed'", "there are: clear, update, value"),
    (lambda fn, ctx, row: fn.read.get(), "no attribute 'get'", "there are: clear, update, value"),
    (lambda fn, ctx, row: fn.last.add(1), "'ListState' .* 'add'", "there are: append, clear, extend, get, set"),
    (lambda fn, ctx, row: fn.by_day.setdefault("a", 1), "'MapState' .* 'setdefault'", "there are: clear, get, items"),
    (lambda fn, ctx, row: fn.most.value(), "'ReducingState' .* 'value'", "there are: add, clear, get"),
    (lambda fn, ctx, row: ctx.timestmap, "'ProcessContext' .* 'timestmap'", r"did you mean 'timestamp'\?"),
    (lambda fn, ctx, row: ctx.timers.add(1), "'Timers' object has no attribute 'add'", "there are: delete, event"),
    (lambda fn, ctx, row: row.kk, "no attribute 'kk'", r"did you mean 'k'\? there are: k, v"),
    (lambda fn, ctx, row: fn.seen.value + 1, r"operand type\(s\) for \+: 'method' and 'int'", CALL),
    (lambda fn, ctx, row: fn.seen.value > 1, "'>' not supported between instances of 'method' and 'int'", CALL),
    (lambda fn, ctx, row: -fn.seen.value, "bad operand type for unary -: 'method'", CALL),
    (lambda fn, ctx, row: "seen: " + fn.seen.value, r'can only concatenate str \(not "method"\) to str', CALL),
    (lambda fn, ctx, row: int(fn.seen.value), "not 'method'", CALL),
    (lambda fn, ctx, row: len(fn.last.get), r"object of type 'method' has no len\(\)", CALL),
    (lambda fn, ctx, row: fn.last.get[0], "'method' object is not subscriptable", CALL),
    (lambda fn, ctx, row: list(fn.by_day.keys), "'method' object is not iterable", CALL),
]


@pytest.mark.parametrize(("mistake", "cause", "way"), MISTAKES)
def test_a_wrong_name_or_a_method_without_its_call_is_told_with_the_way_out(world, mistake, cause, way):
    with pytest.raises(UserFunctionError) as raised:
        world.open(Mistaken(mistake)).rows((1, 0, 1))
    said, _ = describe(raised.value)
    assert re.search(cause, said), said
    assert re.search(rf"\({way}.*\)$", said), said


def gone():
    raise AttributeError("gone")


def one(method):
    return method


def none():
    return None


OTHERS = [
    lambda: None + 1,
    lambda: "text".nope,
    gone,
    lambda: none(method=1),
    lambda: one(),
]


@pytest.mark.parametrize("mistake", OTHERS)
def test_of_other_mistakes_nothing_is_said(mistake):
    with pytest.raises((AttributeError, TypeError)) as raised:
        mistake()
    assert misuse_hint(raised.value) == ""


def test_an_error_that_no_operator_has_wrapped_is_told_in_the_same_way():
    with pytest.raises(AttributeError) as raised:
        ps.value_state().get()
    assert misuse_hint(raised.value) in describe(raised.value)[0]
    assert "there are: clear, update, value" in misuse_hint(raised.value)
