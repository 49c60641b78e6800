"""Process functions when a job is built: types from annotations, what is refused."""

import dataclasses
import functools
import pickle
import types
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.schema import schema_from_text


class Total(ps.Schema):
    user_id: int
    total: float


class Pair(NamedTuple):
    number: int
    text: str | None


class Fine(ps.KeyedProcessFunction):
    plain: ps.ValueState[int] = ps.value_state()
    nullable: ps.ValueState[float | None] = ps.value_state()
    pair: ps.ValueState[Pair] = ps.value_state()
    two: ps.ValueState[tuple[int, str | None]] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Total]:
        yield Total(user_id=row.user_id, total=1.0)


class NoReturn(ps.KeyedProcessFunction):
    def process(self, row, ctx):
        return ()


class OneRow(ps.KeyedProcessFunction):
    def process(self, row, ctx) -> Total:
        return Total(user_id=1, total=2.0)


class ListValue(Fine):
    many: ps.ValueState[list[int]] = ps.value_state()


class AnyLength(Fine):
    many: ps.ValueState[tuple[int, ...]] = ps.value_state()


class Strange(Fine):
    strange: ps.ValueState[object] = ps.value_state()


@dataclasses.dataclass
class Changing:
    number: int


class ListOfChanging(Fine):
    some: ps.ListState[Changing] = ps.list_state()


class MapOfLists(Fine):
    some: ps.MapState[str, list[int]] = ps.map_state()


class ByFloat(Fine):
    some: ps.MapState[tuple[int, float], int] = ps.map_state()


class ByNone(Fine):
    some: ps.MapState[str | None, int] = ps.map_state()


class ByModel(Fine):
    some: ps.MapState[Total, int] = ps.map_state()


class Bare(Fine):
    some = ps.map_state()


class NoType:
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


class UnknownAccumulator(Fine):
    some: ps.AggregatingState[int, int] = ps.aggregating_state(NoType())


class NoAggregator(Fine):
    some: ps.AggregatingState[int, int] = ps.aggregating_state(max)


class ClassOfAggregator(Fine):
    some: ps.AggregatingState[int, int] = ps.aggregating_state(NoType)


class NoFunction(Fine):
    some: ps.ReducingState[int] = ps.reducing_state(7)


class NoMethod(ps.KeyedProcessFunction):
    pass


def test_the_operator_has_the_states_and_the_schema(env, orders, sink):
    made = orders.key_by("user_id").process(Fine(), side_outputs={"odd": Pair}).uid("fn")
    assert made.columns == ["user_id", "total"]
    assert made.side_output("odd").columns == ["number", "text"]
    made.sink_to(sink(), uid="out")
    made.side_output("odd").sink_to(sink(), uid="odd")
    (operator,) = [o for v in env.job_graph("j").vertices for o in v.operators if o.kind == "process"]
    assert operator.stateful
    assert operator.python
    assert operator.config["key"] == ["user_id"]
    states = {name: schema_from_text(text) for name, text in operator.config["states"].items()}
    assert states == {
        "plain": pa.schema([pa.field("value", pa.int64(), nullable=False)]),
        "nullable": pa.schema([pa.field("value", pa.float64(), nullable=False)]),
        "pair": pa.schema([pa.field("number", pa.int64(), nullable=False), pa.field("text", pa.string())]),
        "two": pa.schema([pa.field("f0", pa.int64(), nullable=False), pa.field("f1", pa.string())]),
    }
    function, _, types = pickle.loads(operator.payload)
    assert isinstance(function, Fine)
    assert types == {"plain": None, "nullable": None, "pair": Pair, "two": tuple}


def test_lists_and_maps_say_their_kind(env, orders, sink):
    class Some(Fine):
        numbers: ps.ListState[int | None] = ps.list_state()
        by_pair: ps.MapState[tuple[int, str], Pair] = ps.map_state()

    orders.key_by("user_id").process(Some()).uid("fn").sink_to(sink(), uid="out")
    (operator,) = [o for v in env.job_graph("j").vertices for o in v.operators if o.kind == "process"]
    assert list(operator.config["states"])[-2:] == ["numbers", "by_pair"]
    assert operator.config["kinds"]["numbers"] == {"kind": "list"}
    assert schema_from_text(operator.config["kinds"]["by_pair"]["keys"]).names == ["f0", "f1"]
    assert schema_from_text(operator.config["states"]["numbers"]).field("value").nullable


def test_returns_stands_in_for_the_annotation(orders):
    assert orders.key_by("user_id").process(NoReturn(), returns=Total).columns == ["user_id", "total"]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (Fine, r"it is a class.*make one: .process\(Fine\(\)\)"),
        (print, "no process function.*ps.KeyedProcessFunction"),
        (NoMethod(), "no process method"),
        (NoReturn(), "output type is not known"),
        (OneRow(), r"must return several rows.*Iterator\[Row\]"),
        (AnyLength(), "state 'many': its value: .* has no Arrow type"),
        (ListValue(), "state 'many': value is a list"),
        (ListOfChanging(), "state 'some': a Changing can be changed in place.*put a new one"),
        (MapOfLists(), "state 'some': value is a list"),
        (ByFloat(), "state 'some': double cannot be .* a map key"),
        (ByNone(), "state 'some': a map key cannot be None"),
        (ByModel(), "state 'some': Total cannot be a map key"),
        (UnknownAccumulator(), "state 'some': the type of its accumulator is not known.*annotate it"),
        (NoAggregator(), "state 'some': .* is no aggregator.*create_accumulator, add"),
        (ClassOfAggregator(), "state 'some': .* is no aggregator"),
        (NoFunction(), "state 'some': 7 is no function"),
        (Bare(), r"state 'some' has no type.*some: ps.MapState\[str, int\] = ps.map_state"),
        (Strange(), "state 'strange': its value: .* has no Arrow type"),
    ],
)
def test_what_is_wrong_is_said_when_the_job_is_built(orders, function, text):
    with pytest.raises(ps.GraphError, match=text):
        orders.key_by("user_id").process(function)


def test_a_state_that_is_only_annotated_is_refused(orders):
    class Forgotten(ps.KeyedProcessFunction):
        total: ps.ValueState[int]

        def process(self, row, ctx) -> Iterator[Total]:
            yield from ()

    with pytest.raises(ps.GraphError, match=r"state 'total' is annotated, but has no value \(give it a value: total"):
        orders.key_by("user_id").process(Forgotten())


def test_a_state_without_a_type_is_refused(orders):
    class Bare(ps.KeyedProcessFunction):
        bare = ps.value_state()

        def process(self, row, ctx) -> Iterator[Total]:
            yield from ()

    with pytest.raises(ps.GraphError, match=r"state 'bare' has no type.*bare: ps.ValueState\[int\]"):
        orders.key_by("user_id").process(Bare())


def test_an_assignment_to_a_state_is_found_in_bases_and_decorated_methods(orders):
    def logged(method):
        @functools.wraps(method)
        def called(*args):
            return method(*args)

        return called

    class Reset:
        @logged
        def reset(self):
            self.last = None

    class Resetting(Reset, Fine):
        last: ps.ValueState[int] = ps.value_state()

    with pytest.raises(
        ps.GraphError, match=r"Reset assigns to its state: self\.last = \.\.\. at test_process\.py:\d+ in reset"
    ):
        orders.key_by("user_id").process(Resetting())


def test_an_attribute_of_another_object_may_have_the_name_of_a_state(orders):
    class Passing(Fine):
        last: ps.ValueState[int] = ps.value_state()

        def open(self, ctx):
            self.other = types.SimpleNamespace()
            self.other.last = 1

    orders.key_by("user_id").process(Passing())


def test_a_time_to_live_is_part_of_the_state(env, orders, sink):
    class Some(Fine):
        plain: ps.ValueState[int] = ps.value_state(ttl="1h")
        most: ps.ReducingState[int] = ps.reducing_state(max, ttl=ps.StateTtlConfig(5, "on_read_and_write"))

    orders.key_by("user_id").process(Some()).uid("fn").sink_to(sink(), uid="out")
    (operator,) = [o for v in env.job_graph("j").vertices for o in v.operators if o.kind == "process"]
    assert operator.config["kinds"] == {
        "plain": {"ttl": {"duration_us": 3_600_000_000, "on_read": False, "return_expired": False}},
        "most": {"kind": "reducing", "ttl": {"duration_us": 5_000_000, "on_read": True, "return_expired": False}},
    }


@pytest.mark.parametrize(
    ("ttl", "text"),
    [
        ("soon", "state 'plain': 'soon' is no time-to-live"),
        ([1], r"state 'plain': \[1\] is no time-to-live"),
        ("0s", "state 'plain': its time-to-live '0s' is not positive"),
        (ps.StateTtlConfig("1h", update="never"), "has no update='never'.*one of: on_create_and_write"),
        (ps.StateTtlConfig("1h", visibility="x"), "has no visibility='x'.*one of: never_return_expired"),
    ],
)
def test_a_time_to_live_that_is_none_is_refused(orders, ttl, text):
    class Some(Fine):
        plain: ps.ValueState[int] = ps.value_state(ttl=ttl)

    with pytest.raises(ps.GraphError, match=text):
        orders.key_by("user_id").process(Some())


def test_side_outputs_must_be_read_by_somebody(env, orders, sink):
    orders.key_by("user_id").process(Fine(), side_outputs={"odd": Pair}).uid("fn").sink_to(sink(), uid="out")
    with pytest.raises(ps.GraphError, match="writes rows to side output 'odd'"):
        env.job_graph("j")
