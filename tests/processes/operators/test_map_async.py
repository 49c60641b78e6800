"""Asynchronous functions by row: order, watermarks, capacity, time-outs, errors, and what a checkpoint holds."""

import asyncio
import dataclasses
import re
import threading
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from tests.support.waiting import wait_until

from penstock.api.functions.row_functions import compile_function
from penstock.core.elements import TS_COLUMN, Barrier, Batch, Watermark, WatermarkStatus
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.functions.async_retry import AsyncRetryStrategy, Retrying
from penstock.operators.rows.map_async import MapAsyncOperator
from penstock.operators.rows.user_functions import UserFunctionError

SCHEMA = pa.schema([pa.field("v", pa.int64()), pa.field(TS_COLUMN, pa.int64(), nullable=False)])
LIMIT_S = 120


@dataclasses.dataclass
class Row:
    v: int
    twice: int


class Gate:
    """Holds every call until it is let through; made in the test's thread, called in the loop's."""

    def __init__(self):
        self.waiting: dict[int, asyncio.Event] = {}
        self.begun, self.hooks = [], []

    async def open(self):
        self.hooks.append("open")

    async def close(self):
        self.hooks.append("close")

    async def __call__(self, row) -> Row:
        self.begun.append(row.v)
        event = self.waiting[row.v] = asyncio.Event()
        await event.wait()
        return Row(row.v, 2 * row.v)


@pytest.fixture
def gate(bench):
    made = Gate()
    made.operators = []
    yield made
    for operator in made.operators:
        operator.close()


def opened(bench, gate, function=None, restored=(), schema=SCHEMA, operator=None, **config):
    compiled = compile_function("map_async", Gate(), None, schema=schema, row_type=None)
    settings = {"capacity": 3, "timeout_ms": 60_000, "ordered": True} | config
    spec = msgspec.structs.replace(
        compiled.spec, uid="ask", config=settings, output_schema=schema_to_text(compiled.schema), payload=b""
    )
    operator = operator or MapAsyncOperator()
    gate.operators.append(operator)
    with pytest.MonkeyPatch.context() as patch:  # the gate itself, not a copy of it
        loaded = SimpleNamespace(load=lambda: (function or gate, None, Row))
        patch.setattr("penstock.operators.rows.user_functions._Unpickler", lambda _: loaded)
        operator.open(bench.context(spec, schema, restored=restored))
    return operator


def batch(*values):
    return Batch(pa.record_batch([pa.array(values), pa.array([v * 10 for v in values])], schema=SCHEMA))


def let(operator, gate, out, *values):
    """Let calls through, one after the other, and the operator emit what that makes ready."""
    for value in values:
        wait_until(lambda value=value: value in gate.waiting, f"the call of {value}", step=0.002)
        operator._runner._loop.call_soon_threadsafe(gate.waiting[value].set)
        wait_until(lambda: operator._runner.ready, "a result", step=0.002)
        assert operator.emit_ready(out)


def shape(out):
    return [
        element.timestamp
        if isinstance(element, Watermark)
        else element.idle
        if isinstance(element, WatermarkStatus)
        else element.data["v"].to_pylist()
        for element in out.elements
    ]


def test_rows_come_out_in_order_with_their_times(bench, gate, out):
    operator = opened(bench, gate)
    operator.process_batch(batch(1, 2, 3), 0, out)
    let(operator, gate, out, 2, 3)
    assert out.elements == []
    let(operator, gate, out, 1)
    assert out.rows == [{"v": v, "twice": 2 * v, TS_COLUMN: 10 * v} for v in (1, 2, 3)]
    assert not operator.emit_ready(out)


def test_unordered_rows_come_out_as_they_are_done_but_not_past_a_watermark(bench, gate, out):
    operator = opened(bench, gate, ordered=False, capacity=5)
    operator.process_batch(batch(1, 2), 0, out)
    operator.process_watermark(Watermark(15), out)
    operator.process_status(WatermarkStatus(idle=True), out)
    operator.process_batch(batch(3), 0, out)
    let(operator, gate, out, 3, 2)
    assert shape(out) == [[2]]
    let(operator, gate, out, 1)
    assert shape(out) == [[2], [1], 15, True, [3]]


def test_no_more_than_its_capacity_is_under_way(bench, gate, out):
    operator = opened(bench, gate, capacity=2)
    assert operator.available
    operator.process_batch(batch(1, 2, 3, 4), 0, out)
    assert not operator.available
    wait_until(lambda: len(gate.begun) == 2, "two calls")
    let(operator, gate, out, 1, 2, 3)
    wait_until(lambda: len(gate.begun) == 4, "four calls")
    assert operator.available
    assert bench.wakes, "the task is woken by what is done"


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_that_are_done_but_must_wait_for_a_slow_one_count_too(bench, gate, out, ordered):
    operator = opened(bench, gate, capacity=2, ordered=ordered)
    operator.process_batch(batch(1), 0, out)
    operator.process_watermark(Watermark(15), out)
    operator.process_batch(batch(2), 0, out)
    let(operator, gate, out, 2)
    assert out.elements == []
    assert not operator.available, "else they would become ever more until the slow one ends"
    let(operator, gate, out, 1)
    assert shape(out) == [[1], 15, [2]]
    assert operator.available


def test_watermarks_pass_at_once_where_nothing_is_under_way(bench, gate, out):
    operator = opened(bench, gate)
    operator.process_watermark(Watermark(5), out)
    operator.process_status(WatermarkStatus(idle=True), out)
    assert shape(out) == [5, True]


def test_rows_under_way_are_saved_and_asked_again_before_what_comes_later(bench, gate, out):
    operator = opened(bench, gate)
    operator.process_batch(batch(*range(1, 21)), 0, out)
    let(operator, gate, out, 2, 1)
    assert shape(out) == [[1, 2]]
    let(operator, gate, out, 4)
    (state,) = operator.snapshot(Barrier(1), out).operator
    assert (state.mode, len(state.items)) == ("list", 6)
    gate.waiting.clear()
    parts = [msgspec.structs.replace(state, items=items) for items in (state.items[:4], state.items[4:])]
    again, elsewhere = (opened(bench, gate, capacity=50, restored=(part,)) for part in parts)
    out.elements.clear()
    again.process_watermark(Watermark(500), out)
    again.process_batch(batch(99), 0, out)
    assert out.elements == [], "the watermark waits for the rows it had not overtaken"
    rest = [*range(3, 15)]
    let(again, gate, out, *rest, 99)
    assert [row["v"] for row in out.rows] == [*rest, 99]
    assert [e for e in shape(out) if e == 500] == [500]
    assert shape(out)[-2] == 500
    let(elsewhere, gate, out, *range(15, 21))
    assert [row["v"] for row in out.rows[-6:]] == [*range(15, 21)]


def test_nothing_under_way_is_no_state(bench, gate, out):
    assert opened(bench, gate).snapshot(Barrier(1), out).operator == ()


def test_at_the_end_all_are_waited_for(bench, gate, out):
    async def quick(row) -> Row:
        await asyncio.sleep(0)
        return Row(row.v, 0)

    operator = opened(bench, gate, quick, capacity=2)
    operator.process_batch(batch(1, 2, 3, 4, 5), 0, out)
    operator.process_watermark(Watermark(70), out)
    until_nothing_is_held(operator, out)
    assert [row["v"] for row in out.rows] == [1, 2, 3, 4, 5]
    assert out.watermarks == [70]


def until_nothing_is_held(operator, out):
    wait_until(lambda: operator.emit_ready(out) or not operator.has_pending_output, "a result", step=0.002)
    if operator.has_pending_output:
        until_nothing_is_held(operator, out)


def ask_and_wait(operator, out):
    operator.process_batch(batch(1), 0, out)
    until_nothing_is_held(operator, out)


async def broken(row) -> Row:
    raise ValueError("no such customer")


async def cancelled(row) -> Row:
    raise asyncio.CancelledError


async def endless(row) -> Row:
    await asyncio.sleep(3600)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (broken, r"map_async 'ask': ValueError: no such customer at .*test_map_async.py:\d+ in broken"),
        (cancelled, "CancelledError"),
        (endless, r"no result within 0.05 s \(raise timeout="),
    ],
)
def test_what_a_call_raises_ends_the_job_and_names_the_place(bench, gate, out, function, message):
    operator = opened(bench, gate, function, timeout_ms=50 if function is endless else 60_000)
    with pytest.raises(UserFunctionError, match=message) as raised:
        ask_and_wait(operator, out)
    assert re.fullmatch(r"row 1 of a batch of \d: v=1", raised.value.values)


class Slow:
    """Never answers, but knows what to say instead."""

    def __init__(self, instead):
        self.timeout = instead

    async def __call__(self, row) -> Row:
        await asyncio.sleep(3600)


def plain_answer(row):
    return Row(row.v, -1)


async def asked_answer(row):
    await asyncio.sleep(0)
    return Row(row.v, -2)


async def no_answer(row):
    raise KeyError(row.v)


@pytest.mark.parametrize(("instead", "twice"), [(plain_answer, -1), (asked_answer, -2)])
def test_a_function_may_say_what_a_call_that_took_too_long_has_for_a_result(bench, gate, out, instead, twice):
    operator = opened(bench, gate, Slow(instead), timeout_ms=20)
    ask_and_wait(operator, out)
    assert out.rows == [{"v": 1, "twice": twice, TS_COLUMN: 10}]


def test_a_timeout_that_is_a_number_is_nothing_to_call(bench, gate, out):
    with pytest.raises(UserFunctionError, match=r"no result within 0.02 s"):
        ask_and_wait(opened(bench, gate, Slow(30), timeout_ms=20), out)


def test_what_it_raises_then_ends_the_job(bench, gate, out):
    with pytest.raises(UserFunctionError, match="KeyError: 1"):
        ask_and_wait(opened(bench, gate, Slow(no_answer), timeout_ms=20), out)


class Flaky(Gate):
    """Fails so many times a row, then answers with how often it was asked."""

    def __init__(self, failures):
        super().__init__()
        self.failures, self.asked = failures, {}

    async def __call__(self, row) -> Row:
        self.asked[row.v] = self.asked.get(row.v, 0) + 1
        if self.asked[row.v] <= self.failures:
            raise ConnectionError(row.v)
        return Row(row.v, self.asked[row.v])


def test_calls_that_fail_are_made_again(bench, gate, out):
    flaky = Flaky(2)
    operator = opened(bench, gate, Retrying(flaky, AsyncRetryStrategy.fixed_delay(2, 0.001)), capacity=2)
    operator.process_batch(batch(1, 2, 3, 4, 5), 0, out)
    until_nothing_is_held(operator, out)
    operator.close()
    assert [(row["v"], row["twice"]) for row in out.rows] == [(v, 3) for v in range(1, 6)]
    assert flaky.hooks == ["open", "close"]


def test_the_last_error_ends_the_job(bench, gate, out):
    operator = opened(bench, gate, Retrying(Flaky(3), AsyncRetryStrategy.fixed_delay(2, 0.001)))
    with pytest.raises(UserFunctionError, match="ConnectionError: 1"):
        ask_and_wait(operator, out)


def test_the_time_out_is_for_all_attempts_together(bench, gate, out):
    operator = opened(bench, gate, Retrying(Flaky(9), AsyncRetryStrategy.fixed_delay(9, "1h")), timeout_ms=30)
    with pytest.raises(UserFunctionError, match=r"no result within 0.03 s"):
        ask_and_wait(operator, out)


def test_a_row_between_two_attempts_is_saved_and_asked_again_from_the_first(bench, gate, out):
    flaky = Flaky(1)
    operator = opened(bench, gate, Retrying(flaky, AsyncRetryStrategy.fixed_delay(1, "1h")))
    operator.process_batch(batch(1), 0, out)
    wait_until(lambda: flaky.asked, "the first attempt")
    saved = operator.snapshot(Barrier(1), out).operator
    again = opened(bench, gate, Retrying(flaky, AsyncRetryStrategy.fixed_delay(1, "1h")), restored=saved)
    until_nothing_is_held(again, out)
    assert [(row["v"], row["twice"]) for row in out.rows] == [(1, 2)]


def test_hooks_of_the_function_are_called_once_and_close_is_idempotent(bench, gate, out):
    operator = opened(bench, gate)
    operator.process_batch(batch(1), 0, out)
    operator.close()
    operator.close()
    assert gate.hooks == ["open", "close"]
    assert not operator.emit_ready(out)


def loops():
    return [thread for thread in threading.enumerate() if thread.name == "map-async"]


def test_no_thread_is_left_where_the_function_cannot_be_opened(bench, gate):
    class Unreachable(Gate):
        async def open(self):
            raise ConnectionError("nobody listens")

    before = loops()
    with pytest.raises(UserFunctionError, match="nobody listens"):
        opened(bench, gate, Unreachable())
    assert loops() == before


def test_a_close_that_never_returns_is_given_up(bench, gate):
    class Stuck(Gate):
        async def close(self):
            await asyncio.sleep(3600)

    before = loops()
    operator = opened(bench, gate, Stuck(), operator=MapAsyncOperator(close_seconds=0.5))
    assert len(loops()) == len(before) + 1
    raised = []

    def close():
        try:
            operator.close()
        except TimeoutError as error:
            raised.append(error)

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(LIMIT_S)
    assert len(raised) == 1
    assert loops() == before


def test_a_plain_function_is_refused_when_the_job_is_built():
    def plain(row) -> Row:
        return Row(row.v, 0)

    with pytest.raises(GraphError, match="not a coroutine function"):
        compile_function("map_async", plain, None, schema=SCHEMA, row_type=None)
