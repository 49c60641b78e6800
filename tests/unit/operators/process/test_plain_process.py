"""Functions without keys: rows out with their times, side outputs, and operator state that comes back."""

import datetime as dt
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, NamedTuple

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.building.flow import Flow
from penstock.api.functions.process_functions import compile_plain_process, compile_process
from penstock.api.streams import DataStream, KeyedStream
from penstock.core.elements import TS_COLUMN, Barrier, BarrierKind, Batch, Watermark
from penstock.core.errors import GraphError, StateMismatchError
from penstock.core.schema import schema_to_text
from penstock.graph.state_redistribution import redistribute
from penstock.operators.registry import create_operator
from penstock.operators.rows.user_functions import UserFunctionError

SCHEMA = pa.schema([pa.field("v", pa.int64(), nullable=False), pa.field(TS_COLUMN, pa.int64())])


class Out(NamedTuple):
    v: int


class Seen(NamedTuple):
    n: int
    name: str = "none"


class Odd(ps.ProcessFunction):
    """Yields a row twice when odd, puts it aside when it is 0, and remembers all."""

    seen: ps.OperatorListState[Seen] = ps.operator_list_state()
    offsets: ps.UnionState[tuple[str, int]] = ps.union_state()

    def open(self, ctx: ps.OpenContext) -> None:
        self.subtask = ctx.subtask
        self.known = dict(self.offsets.restored)
        self.count = self.known.get(str(ctx.subtask), 0)

    def process(self, row, ctx: ps.RowContext) -> Iterator[Out]:
        self.count += 1
        self.seen.add(Seen(row.v))
        if row.v == 0:
            ctx.side("zero", Out(v=ctx.watermark))
        return [Out(row.v)] * (2 * (row.v % 2))

    def snapshot_state(self) -> None:
        self.offsets.set([(str(self.subtask), self.count)])


def opened(bench, function, restored=(), *, subtask=0, sides=None):
    stream = DataStream(None, Flow(upstreams=(), schema=SCHEMA))
    made = compile_plain_process(function, None, {"zero": Out} if sides is None else sides, stream=stream)
    operator = create_operator(made.spec.kind)
    spec = SimpleNamespace(
        uid="fn",
        name="fn",
        payload=made.spec.payload,
        config=made.spec.config,
        output_schema=schema_to_text(made.schema),
    )
    operator.open(bench.context(spec, SCHEMA, restored=tuple(restored), subtask=subtask, parallelism=2))
    return operator


def push(operator, out, *values):
    rows = pa.record_batch({"v": pa.array(values), TS_COLUMN: pa.array([10 * v for v in values])}, schema=SCHEMA)
    operator.process_batch(Batch(rows), 0, out)
    found = [(row["v"], row[TS_COLUMN]) for row in out.rows]
    out.elements.clear()
    return found


def snapshot(operator, out):
    return operator.snapshot(Barrier(1, BarrierKind.CHECKPOINT), out).operator


def test_rows_come_out_with_the_time_of_theirs_and_others_aside(bench, out):
    operator = opened(bench, Odd())
    assert push(operator, out, 2) == []
    operator.process_watermark(Watermark(7), out)
    out.elements.clear()
    assert push(operator, out, 3, 0, 4, 5) == [(3, 30), (3, 30), (5, 50), (5, 50)]
    assert out.sides["zero"][0].to_pylist() == [{"v": 7, TS_COLUMN: 0}]


def test_state_comes_back_as_it_was_at_the_same_parallelism(bench, out):
    operator = opened(bench, Odd())
    push(operator, out, 1, 2)
    saved = json.loads(json.dumps([[s.name, s.mode, s.items] for s in snapshot(operator, out)]))
    assert saved == [["seen", "list", [[1, "none"], [2, "none"]]], ["offsets", "union", [["0", 2]]]]
    again = opened(bench, Odd(), snapshot(operator, out))
    assert again._function.seen.get() == [Seen(1), Seen(2)]
    assert again._function.count == 2
    assert again._function.offsets.get() == [], "its own part begins empty"


class Forgetful(Odd):
    def open(self, ctx: ps.OpenContext) -> None:
        self.subtask, self.count = ctx.subtask, len(self.offsets.get())


def test_a_union_that_nobody_takes_over_is_not_lost_unseen(bench, out):
    operator = opened(bench, Forgetful())
    push(operator, out, 1)
    with pytest.raises(UserFunctionError, match="state 'offsets' was restored, but `open` has not read") as raised:
        opened(bench, Forgetful(), snapshot(operator, out))
    assert "declare ps.operator_list_state()" in raised.value.hint


def test_a_rescale_deals_lists_out_and_shows_a_union_to_all(bench, out):
    taken = []
    for subtask in range(2):
        operator = opened(bench, Odd(), subtask=subtask)
        push(operator, out, *range(10 * subtask, 10 * subtask + 3))
        taken += [(subtask, state) for state in snapshot(operator, out)]
    three = [opened(bench, Odd(), part, subtask=s)._function for s, part in enumerate(redistribute(taken, 2, 3))]
    assert [[e.n for e in f.seen] for f in three] == [[0, 10], [1, 11], [2, 12]]
    assert [f.known for f in three] == [{"0": 3, "1": 3}] * 3
    (one,) = redistribute(taken, 2, 1)
    assert [e.n for e in opened(bench, Odd(), one)._function.seen] == [0, 1, 2, 10, 11, 12]


def test_a_list_can_be_changed_in_every_way(bench, out):
    state = opened(bench, Odd())._function.seen
    state.extend([Seen(1), Seen(2)])
    kept = state.get()
    state.set([Seen(3)])
    assert (kept, list(state), len(state)) == ([Seen(1), Seen(2)], [Seen(3)], 1)
    state.clear()
    assert state.get() == []


NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 7, tzinfo=dt.UTC)
Money = Annotated[Decimal, ps.Precision(12, 2)]


class Every(NamedTuple):
    i: int
    f: float | None
    b: bool
    s: str
    x: bytes | None
    t: dt.datetime
    d: dt.date
    m: Money


class Keeps(ps.ProcessFunction):
    all: ps.OperatorListState[Every] = ps.operator_list_state()
    plain: ps.OperatorListState[dt.date] = ps.operator_list_state()

    def process(self, row, ctx) -> Iterator[Out]:
        return iter(())


def test_every_type_goes_through_json(bench, out):
    operator = opened(bench, Keeps(), sides={})
    rows = [
        Every(-(1 << 62), 0.5, True, "", b"\x00", NOON, NOON.date(), Decimal("-1.50")),
        Every(1, None, False, "tü", None, NOON, NOON.date(), Decimal("0.00")),
        Every(1, math.inf, False, "nan", b"", NOON, NOON.date(), Decimal("0.10")),
    ]
    operator._function.all.extend(rows)
    operator._function.plain.add(NOON.date())
    saved = snapshot(operator, out)
    items = {s.name: json.loads(json.dumps(s.items, allow_nan=False)) for s in saved}
    restored = [type(s)(**{f: getattr(s, f) for f in s.__struct_fields__} | {"items": items[s.name]}) for s in saved]
    again = opened(bench, Keeps(), restored, sides={})._function
    assert again.all.get() == rows
    assert again.plain.get() == [NOON.date()]


class Wider(NamedTuple):
    n: int
    label: str = "unnamed"
    more: int = 7


class Evolved(Odd):
    seen: ps.OperatorListState[Wider] = ps.operator_list_state(renamed={"label": "name"})

    def process(self, row, ctx: ps.RowContext) -> Iterator[Out]:
        self.seen.add(Wider(row.v, "new"))
        return iter(())


def test_elements_evolve_by_field_id_from_one_version_to_the_next(bench, out):
    operator = opened(bench, Odd())
    push(operator, out, 1)
    second = opened(bench, Evolved(), snapshot(operator, out))
    assert second._function.seen.get() == [Wider(1, "none", 7)]
    push(second, out, 2)
    third = opened(bench, Evolved(), snapshot(second, out))
    assert third._function.seen.get() == [Wider(1, "none", 7), Wider(2, "new", 7)]


class Shrunk(Odd):
    seen: ps.OperatorListState[tuple[str, str]] = ps.operator_list_state()


class Forgets(ps.ProcessFunction):
    sean: ps.OperatorListState[int] = ps.operator_list_state()

    def process(self, row, ctx) -> Iterator[Out]:
        return iter(())


class Swapped(Odd):
    seen: ps.UnionState[Seen] = ps.union_state()


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (Shrunk(), "state 'seen': f0 .* was added without a default"),
        (Forgets(), r"holds operator state 'seen', which the function does not declare \(declare it .*seen|sean"),
        (Swapped(), "state 'seen': it was handed out as 'list', and is now 'union'"),
    ],
)
def test_state_that_does_not_fit_is_refused(bench, out, function, error):
    operator = opened(bench, Odd())
    push(operator, out, 1)
    with pytest.raises(StateMismatchError, match=error):
        opened(bench, function, snapshot(operator, out))


class ByKey(ps.KeyedProcessFunction):
    seen: ps.OperatorListState[int] = ps.operator_list_state()

    def process(self, row, ctx) -> Iterator[Out]:
        return iter(())


class Plain(ps.ProcessFunction):
    seen: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        return iter(())


def test_states_belong_to_functions_of_their_kind():
    stream = KeyedStream(None, Flow(upstreams=(), schema=SCHEMA), ("v",))
    with pytest.raises(GraphError, match="state 'seen' is of a subtask, and the function has keys"):
        compile_process(ByKey(), None, {}, stream=stream)
    with pytest.raises(GraphError, match="state 'seen' is by key, and the stream has no keys"):
        compile_plain_process(Plain(), None, {}, stream=stream)
    with pytest.raises(GraphError, match=r"it is for keyed streams.*\.key_by\(\.\.\.\)\.process\(ByKey\(\)\)"):
        compile_plain_process(ByKey(), None, {}, stream=stream)
    with pytest.raises(GraphError, match=r"derive a class from ps\.ProcessFunction"):
        compile_plain_process(print, None, {}, stream=stream)


class Fails(ps.ProcessFunction):
    seen: ps.OperatorListState[int] = ps.operator_list_state()

    def process(self, row, ctx) -> Iterator[Out]:
        raise ValueError("no")

    def snapshot_state(self) -> None:
        raise ValueError("not now")


def test_errors_of_the_function_name_its_line(bench, out):
    operator = opened(bench, Fails(), sides={})
    with pytest.raises(UserFunctionError, match=r"process 'fn': ValueError: no at .*test_plain_process.py"):
        push(operator, out, 1)
    with pytest.raises(UserFunctionError, match="ValueError: not now"):
        snapshot(operator, out)


def test_without_state_it_needs_no_uid():
    class Stateless(ps.ProcessFunction):
        def process(self, row, ctx) -> Iterator[Out]:
            return iter(())

    stream = DataStream(None, Flow(upstreams=(), schema=SCHEMA))
    assert not compile_plain_process(Stateless(), None, {}, stream=stream).spec.stateful
    spec = compile_plain_process(Odd(), None, {"zero": Out}, stream=stream).spec
    assert (spec.stateful, spec.keyed, sorted(spec.operator_states)) == (True, False, ["offsets", "seen"])
