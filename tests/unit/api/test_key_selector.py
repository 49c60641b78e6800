"""`.key_by(function)`: the graph it becomes, what is keyed by it, its rows, and what is refused."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from types import SimpleNamespace
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.elements import Batch
from penstock.core.schema import schema_from_text
from penstock.graph.job_graph import KeyGroup
from penstock.operators.registry import create_operator
from penstock.operators.rows.columns import ColumnError
from penstock.operators.rows.user_functions import UserFunctionError


class Place(NamedTuple):
    city: str
    zone: int | None


class Seen(NamedTuple):
    key: int
    names: str


def bucket(row) -> int:
    return row.user_id % 3


def by_day(row) -> tuple[int, date | None]:
    return row.user_id, row.ts.date()


def place(row) -> Place:
    return Place("x", None)


def refused(call, *words):
    with pytest.raises(ps.GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint


def operator_of(env, stream):
    return env.builder.node(stream.flow.upstreams[0].node).operator


def test_the_key_is_computed_before_the_shuffle_and_leads_what_is_aggregated(env, orders, sink):
    keyed = orders.key_by(bucket)
    assert keyed.keys == ("key",)
    assert keyed.flow.rows.equals(orders.flow.schema)
    totals = keyed.window(ps.Tumbling("10s")).aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")
    assert totals.columns == ["key", "window_start", "window_end", "n", "total"]
    assert totals.schema.field("key") == pa.field("key", pa.int64(), nullable=False)
    totals.sink_to(sink(), uid="out")
    read, window = env.job_graph("job").vertices
    assert [o.kind for o in read.operators] == ["source", "key_selector"]
    (edge,) = env.job_graph("job").edges
    assert edge.partitioner == KeyGroup(("key",))
    assert schema_from_text(edge.schema).names == ["amount", "key", "__ts"]
    assert edge.combine, "rows are combined before they are sent, as of any key"
    assert window.operators[0].config["key"] == ["key"]


def test_tuples_and_row_types_are_keys_of_several_columns(orders):
    counted = orders.key_by(by_day).aggregate(n=ps.count())
    assert counted.schema.field("key_1") == pa.field("key_1", pa.date32())
    assert counted.columns == ["key_0", "key_1", "n"]
    assert orders.key_by(by_day, name="day").keys == ("day_0", "day_1")
    assert orders.key_by(place).aggregate(n=ps.count()).columns == ["city", "zone", "n"]
    assert orders.key_by(lambda row: row.product, returns=str | None, name="what").aggregate(ps.count()).columns == [
        "what",
        "count",
    ]


def test_a_callable_object_is_a_function(orders):
    class Modulo:
        def __init__(self, by):
            self.by = by

        def __call__(self, row) -> int:
            return row.user_id % self.by

    assert orders.key_by(Modulo(7)).keys == ("key",)


def test_whole_rows_come_out_without_the_key(env, orders, source, watermarks):
    keyed = orders.key_by(bucket)
    assert keyed.deduplicate().columns == orders.columns
    assert keyed.reduce(lambda a, b: b).columns == orders.columns
    windows = keyed.window(ps.Tumbling("1s")).late_to("late")
    assert windows.reduce(lambda a, b: b).columns == orders.columns
    assert windows.aggregate(n=ps.count()).side_output("late").columns == orders.columns
    other = env.from_source(source(bounded=True), watermarks=watermarks, uid="other").select("product", buyer="user_id")
    joined = keyed.interval_join(other.key_by(lambda row: row.buyer, returns=int), 0, "1s", late_to={"left": "l"})
    assert joined.columns == [*orders.columns, "product_right", "buyer"]
    assert joined.side_output("l").columns == orders.columns
    by_window = orders.join(other).where(bucket).equal_to(lambda row: row.buyer, returns=int)
    assert by_window.window(ps.Tumbling("1s")).columns == [
        *(*orders.columns, "product_right", "buyer"),
        *("window_start", "window_end"),
    ]
    assert keyed.temporal_join(other.key_by("buyer")).columns == [*orders.columns, "product_right"]


def test_what_is_said_behind_it_is_said_of_the_operator(env, orders, sink):
    kept = orders.key_by(bucket).deduplicate().uid("kept").name("Kept").set_parallelism(3)
    kept.sink_to(sink(), uid="out").set_parallelism(3)
    graph = env.job_graph("job")
    assert [[o.kind for o in v.operators] for v in graph.vertices] == [
        ["source", "key_selector"],
        ["deduplicate", "project", "sink"],
    ]
    assert [v.parallelism for v in graph.vertices] == [2, 3]
    assert graph.vertices[1].operators[0].uid == "kept"


def test_keyed_anew_the_key_before_is_gone(env, orders):
    again = orders.key_by(bucket).key_by(by_day)
    assert again.keys == ("key_0", "key_1")
    assert again.flow.rows.equals(orders.flow.schema)
    assert orders.key_by("user_id").key_by(bucket).aggregate(n=ps.count()).columns == ["key", "n"]
    (edge,) = [e for e in env.builder._edges if e.target == again.flow.upstreams[0].node]
    assert edge.partitioner is None, "rows are sent to their new key alone"


def test_a_lambda_that_picks_columns_needs_no_type(orders):
    value = orders.key_by(lambda row: row.user_id).aggregate(n=ps.count())
    assert value.schema.field("key") == pa.field("key", orders.schema.field("user_id").type, nullable=False)
    pair = orders.key_by(lambda row: (row.user_id, row.product), name="of").aggregate(n=ps.count())
    assert pair.columns == ["of_0", "of_1", "n"]
    assert pair.schema.field("of_1").type == orders.schema.field("product").type


@pytest.mark.parametrize(
    "function", [lambda row: row.user_id + 1, lambda row: row.usr, lambda row: row, lambda *rows: rows[0].user_id]
)
def test_a_lambda_that_does_more_needs_one(orders, function):
    refused(lambda: orders.key_by(function), "the type of the key is not known", "returns=int")


def test_conditions_go_with_it(env, orders):
    windows = orders.key_by(bucket).window(ps.Tumbling("1s"))
    stream = windows.aggregate(ps.count().where(pl.col("amount") > 1), all=ps.count())
    assert stream.columns == ["key", "window_start", "window_end", "count", "all"]


def opened(env, keyed, given):
    """The selector behind `orders`, as a function from rows to the columns that it adds."""
    spec = operator_of(env, keyed)
    operator = create_operator(spec.kind)
    operator.open(SimpleNamespace(spec=spec, input_schemas=(given.flow.schema,)))

    def keys(*rows):
        found = []
        data = [{"user_id": u, "amount": a, "product": None, "ts": a, "__ts": a} for u, a in rows]
        batch = pa.RecordBatch.from_pylist(data, schema=given.flow.schema)
        operator.process_batch(Batch(batch), 0, SimpleNamespace(batch=found.append))
        (made,) = found
        made.data.validate(full=True)
        assert made.data.drop_columns(list(keyed.keys)).equals(batch)
        return [tuple(row[name] for name in keyed.keys) for row in made.data.to_pylist()]

    return keys


def test_keys_are_what_the_function_returns(env, orders):
    day = 86_400_000_000
    assert opened(env, orders.key_by(bucket), orders)((7, 0), (6, 1)) == [(1,), (0,)]
    assert opened(env, orders.key_by(by_day), orders)((7, 0), (6, day)) == [
        (7, date(1970, 1, 1)),
        (6, date(1970, 1, 2)),
    ]
    assert opened(env, orders.key_by(place), orders)((7, 0)) == [("x", None)]


def test_what_a_function_returns_must_be_of_its_type(env, orders):
    with pytest.raises(ColumnError, match="'key' was None in 1 of 2 rows"):
        opened(env, orders.key_by(lambda row: row.user_id or None, returns=int), orders)((0, 0), (1, 0))
    with pytest.raises(ColumnError, match="a key is a tuple of 1, and its type says a tuple of 2"):
        opened(env, orders.key_by(lambda row: (row.user_id,), returns=tuple[int, int]), orders)((7, 0))
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        opened(env, orders.key_by(lambda row: 1 // row.user_id, returns=int), orders)((0, 0))


def test_functions_behind_it_are_given_rows_of_their_type(env, orders):
    @dataclass(frozen=True)
    class Event:
        user_id: int
        ts: datetime

    class Names(ps.KeyedProcessFunction):
        def process(self, row: Event, ctx) -> Iterator[Seen]:
            yield Seen(ctx.key, " ".join(vars(row)))

    keyed = orders.map(lambda row: Event(row.user_id, row.ts), returns=Event).key_by(bucket)
    process = operator_of(env, keyed.process(Names()))
    assert process.config["computed"] == ["key"]
    assert keyed.map(lambda row: row, returns=Event).columns == ["user_id", "ts"]
    assert operator_of(env, keyed.connect(keyed).process(_Both())).config["second_computed"] == ["key"]


class _Both(ps.KeyedCoProcessFunction):
    def process1(self, row: Any, ctx: Any) -> Iterator[Seen]:
        yield Seen(ctx.key, " ".join(row._fields))

    def process2(self, row: Any, ctx: Any) -> Iterator[Seen]:
        yield Seen(ctx.key, " ".join(row._fields))


def test_what_cannot_be_a_key_is_refused(orders):
    def untyped(row):
        return row.user_id % 3

    def listed(row) -> list[int]:
        return [row.user_id]

    def many(row) -> tuple[int, ...]:
        return (row.user_id,)

    async def asked(row) -> int:
        return row.user_id

    refused(lambda: orders.key_by(untyped), "key_by(untyped): the type of the key is not known", "returns=int")
    refused(lambda: orders.key_by(listed), "cannot be a key", "int8-int64")
    refused(lambda: orders.key_by(many), "key_by(many): its key", "no Arrow type")
    refused(lambda: orders.key_by(asked), "coroutine", "map_async")
    refused(lambda: orders.key_by(bucket, "user_id"), "a function stands alone", "tuple")
    refused(lambda: orders.key_by("user_id", name="k"), "returns= and name= are for functions")
    refused(lambda: orders.key_by(bucket, name="amount"), "a column 'amount' already", "name='...'")
    refused(lambda: orders.key_by(bucket, name="__k"), "are reserved")
    refused(lambda: orders.key_by(7), "7 is not a column's name", "with_columns")
    refused(lambda: orders.key_by(lambda row: row, returns=type("Order", (), {})), "no Arrow type")
