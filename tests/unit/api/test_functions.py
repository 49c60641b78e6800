"""Python functions: types from annotations, code that travels, and what is refused at build time."""

import dataclasses
import pickle
import sys
import sysconfig
import threading
import types
import typing
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.schema import schema_from_text
from penstock.snapshots.access.declared import with_states


class Total(ps.Schema):
    user_id: int
    total: float


class Pair(NamedTuple):
    user_id: int
    amount: int


@dataclasses.dataclass
class Wide:
    user_id: int
    nothing: int


class Typed(typing.TypedDict):
    user_id: int


class Amount(ps.Schema):
    amount: int


def to_total(row) -> Total:
    return Total(user_id=row.user_id, total=row.amount / 2)


def many(row) -> Iterator[Total]:
    yield to_total(row)


def payload(env, stream, sink):
    stream.sink_to(sink(), uid="out")
    operator = env.job_graph("j").vertices[0].operators[1]
    return operator, pickle.loads(operator.payload)


def refused(call, *words):
    with pytest.raises(ps.GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(("method", "function"), [("map", to_total), ("flat_map", many)])
def test_the_output_is_the_return_annotation(env, orders, sink, order, method, function):
    stream = getattr(orders, method)(function)
    assert stream.schema == Total.arrow_schema()
    operator, (sent, row_type, output_type) = payload(env, stream, sink)
    assert (operator.kind, operator.python, operator.name) == (method, True, f"{method}({function.__name__})")
    assert (sent.__name__, row_type, output_type) == (function.__name__, order, Total)


@pytest.mark.parametrize(
    ("returns", "columns"),
    [
        (Total, ["user_id", "total"]),
        (Pair, ["user_id", "amount"]),
        (Wide, ["user_id", "nothing"]),
        (Typed, ["user_id"]),
        (pa.schema([("x", pa.int64())]), ["x"]),
    ],
)
def test_returns_stands_in_for_an_annotation(orders, returns, columns):
    stream = orders.map(lambda row: row, returns=returns)
    assert stream.columns == columns


def test_the_row_type_follows_from_function_to_function(env, orders, sink):
    stream = orders.map(to_total).filter(lambda row: row.total > 1).filter(pl.col("total") > 1).map(to_total)
    stream.sink_to(sink(), uid="out")
    operators = env.job_graph("j").vertices[0].operators
    assert [pickle.loads(o.payload)[1] for o in operators if o.python][1:] == [Total, Total]


def test_rows_without_a_type_of_their_own_are_none(env, orders, sink):
    orders.select("user_id").filter(lambda row: row.user_id > 1).sink_to(sink(), uid="out")
    (function,) = [o for v in env.job_graph("j").vertices for o in v.operators if o.python]
    assert pickle.loads(function.payload)[1] is None


def test_a_function_may_ask_for_a_row_type(env, orders, sink):
    def double(row: Amount) -> Amount:
        return row

    _, (_, row_type, _) = payload(env, orders.map(double), sink)
    assert row_type.__name__ == "Amount"


def test_a_row_type_that_does_not_fit_is_refused(orders):
    def wide(row: Wide) -> Wide:
        return row

    def pair(row: Pair) -> Pair:
        return row

    refused(lambda: orders.map(wide), "unknown column 'nothing'")
    refused(lambda: orders.map(pair), "Pair has user_id, amount", ".select('user_id', 'amount')")
    assert orders.select("user_id", "amount").map(pair).columns == ["user_id", "amount"]


@pytest.mark.parametrize(
    ("method", "function"),
    [("map", lambda row: (row, 1)), ("flat_map", lambda row: row), ("map_batches", lambda row: row)],
)
def test_an_unknown_output_type_is_refused(orders, method, function):
    refused(lambda: getattr(orders, method)(function), "its output type is not known", "returns=")


def test_a_lambda_that_returns_its_row_has_the_type_of_the_rows(env, orders, sink):
    stream = orders.map(lambda row: row)
    assert stream.schema.equals(orders.schema)
    _, (_, given, returned) = payload(env, stream, sink)
    assert given is returned


def test_flat_map_returns_several_rows(orders):
    refused(lambda: orders.flat_map(to_total), "several rows", "Iterator[Row]")


def test_an_output_without_arrow_type_is_refused(orders):
    def number(row) -> int:
        return 1

    refused(lambda: orders.map(number), "map(number)", "ps.Schema")


def test_reserved_names_are_refused(orders):
    schema = pa.schema([("__ts", pa.int64())])
    refused(lambda: orders.map(lambda row: row, returns=schema), "'__ts'")


def test_an_annotation_that_cannot_be_read_is_refused(orders):
    def unknown(row) -> "Nowhere":  # noqa: F821
        return row

    refused(lambda: orders.map(unknown), "annotations cannot be read", "returns=")
    assert orders.map(unknown, returns=Total).columns == ["user_id", "total"]


def test_what_is_no_function_is_refused(orders):
    refused(lambda: orders.map("f"), "'f' is not a function")


def test_a_function_that_cannot_travel_is_refused(orders):
    lock = threading.Lock()
    refused(lambda: orders.filter(lambda row: lock.locked()), "cannot be sent to workers", "locks")


@pytest.mark.parametrize("mode", ["r", "a", "rb"])
def test_a_function_that_holds_an_open_file_is_refused(orders, tmp_path, mode):
    (tmp_path / "rates").touch()
    with (tmp_path / "rates").open(mode) as rates:
        refused(
            lambda: orders.filter(lambda row: rates.closed),
            f"filter(<lambda>): the function cannot be sent to workers: it holds the open file '{tmp_path}/rates'",
            "open it inside the function",
        )


def test_a_function_may_write_to_the_standard_output(orders, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)  # that of pytest is a file
    out = sys.stdout
    orders.filter(lambda row: out.isatty())


def test_batches_have_their_columns_said(env, orders, sink):
    def half(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select("user_id")

    refused(lambda: orders.map_batches(half), "not known", "returns=")
    operator, (_, row_type, _) = payload(env, orders.map_batches(half, returns=Typed), sink)
    assert (operator.kind, row_type) == ("map_batches", None)


def test_event_time_follows_a_function(env, orders, sink):
    orders.map(to_total).key_by("user_id").sink_to(sink(), uid="out")
    (edge,) = env.job_graph("j").edges
    assert schema_from_text(edge.schema).names == ["user_id", "total", "__ts"]


def test_a_callable_object_works(orders):
    class Scale:
        def __call__(self, row) -> Total:
            return row

    assert orders.map(Scale()).columns == ["user_id", "total"]


def test_jobs_with_functions_take_along_the_job_files_folder_and_those_of_the_import_path(
    env, orders, sink, monkeypatch, tmp_path
):
    main = types.ModuleType("__main__")
    jobs, beside = tmp_path / "jobs", tmp_path / "beside"
    jobs.mkdir()
    beside.mkdir()
    main.__file__ = str(jobs / "job.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "path", [str(beside), str(tmp_path / "absent"), sysconfig.get_path("stdlib")])
    stream = orders.filter(pl.col("amount") > 1)
    stream.sink_to(sink(), uid="out")
    assert env.job_graph("j").settings.python_path == ()
    stream.map(to_total).sink_to(sink(), uid="out2")
    assert env.job_graph("j").settings.python_path == (str(jobs), str(beside))


class Answer(ps.Schema):
    n: int


class Ask:
    async def open(self):
        raise AssertionError("nobody is to be asked while a job is only looked at")

    async def __call__(self, row) -> Answer:
        return Answer(n=1)


def test_an_asynchronous_function_has_no_state_by_key_and_is_not_opened_by_a_check(orders, sink):
    orders.map_async(Ask(), capacity=7, timeout="2s", ordered=False).uid("ask").sink_to(sink(), uid="out")
    graph = orders.environment.job_graph("job")
    (spec,) = [o for vertex in graph.vertices for o in vertex.operators if o.kind == "map_async"]
    assert spec.config == {"capacity": 7, "timeout_ms": 2000, "ordered": False}
    assert spec.stateful
    assert not spec.keyed
    assert with_states(graph).vertices[0].operators[0].states == {}


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"timeout": "0s"}])
def test_an_asynchronous_function_needs_room_and_time(orders, wrong):
    with pytest.raises(ps.GraphError, match="capacity and timeout must be positive"):
        orders.map_async(Ask(), **wrong)
