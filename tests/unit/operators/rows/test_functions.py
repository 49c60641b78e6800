"""Row and batch functions, and the rows they see."""

import copy
import datetime as dt
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, TypedDict

import cloudpickle
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from penstock.core.elements import Batch
from penstock.core.schema import Schema, arrow_schema_of, schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.registry import create_operator
from penstock.operators.rows.columns import ColumnError, with_ts
from penstock.operators.rows.row_codec import RowDecoder, RowEncoder
from penstock.operators.rows.user_functions import FunctionLoadError, UserFunctionError


class Order(Schema):
    user_id: int
    amount: int
    ts: dt.datetime

    @property
    def large(self) -> bool:
        return self.amount > 5

    def plus(self, more: int) -> int:
        return self.amount + more


class Total(Schema):
    user_id: int
    total: int | None


ROWS = [(1, 3, 10), (2, 30, 20)]


def orders(values=ROWS) -> Batch:
    schema = with_ts(Order.arrow_schema())
    users, amounts, times = zip(*values, strict=True)
    return Batch(
        pa.record_batch(
            [pa.array(users), pa.array(amounts), pa.array(times, schema.field("ts").type), pa.array(times)],
            schema=schema,
        )
    )


def opened(bench, kind, function, row_type=Order, output=None):
    schema = with_ts(Order.arrow_schema())
    declared = "" if output is None else schema_to_text(with_ts(arrow_schema_of(output)))
    payload = cloudpickle.dumps((function, row_type, output))
    spec = OperatorSpec(uid="f", name="f", kind=kind, payload=payload, python=True, output_schema=declared)
    operator = create_operator(kind)
    operator.open(bench.context(spec, schema))
    return operator


def run(bench, out, kind, function, output=None, row_type=Order):
    opened(bench, kind, function, row_type, output).process_batch(orders(), 0, out)
    return out.rows


def test_map_gives_a_row_for_a_row_with_its_event_time(bench, out):
    found = run(bench, out, "map", lambda order: Total(user_id=order.user_id, total=order.plus(1)), Total)
    assert found == [{"user_id": 1, "total": 4, "__ts": 10}, {"user_id": 2, "total": 31, "__ts": 20}]


@dataclass
class TotalData:
    user_id: int
    total: int


class TotalTuple(NamedTuple):
    user_id: int
    total: int


class TotalDict(TypedDict):
    user_id: int
    total: int


@pytest.mark.parametrize("output", [TotalData, TotalTuple, TotalDict])
def test_rows_may_be_of_every_kind_of_row_type(bench, out, output):
    found = run(bench, out, "map", lambda order: output(user_id=order.user_id, total=1), output)
    assert found[0] == {"user_id": 1, "total": 1, "__ts": 10}


@pytest.mark.parametrize("row_type", [TotalData, TotalTuple, TotalDict, None])
def test_every_row_type_can_be_decoded(row_type):
    batch = pa.record_batch({"user_id": [1], "total": [2], "__ts": [3]})
    (row,) = RowDecoder(batch.schema, row_type).rows(batch)
    assert (row["total"] if row_type is TotalDict else row.total) == 2
    if row_type not in (TotalDict, None):
        assert type(row) is row_type


def test_a_row_behaves_as_an_instance_of_its_schema():
    batch = orders().data
    row, other = RowDecoder(batch.schema, Order).rows(batch)
    assert isinstance(row, Order)
    assert row.ts == dt.datetime(1970, 1, 1, 0, 0, 0, 10, dt.UTC)
    assert not row.large
    assert other.large
    assert row.model_dump() == {"user_id": 1, "amount": 3, "ts": row.ts}
    assert row == Order(user_id=1, amount=3, ts=row.ts)
    assert row != other
    assert hash(row) == hash(copy.copy(row))
    assert copy.deepcopy(row) == pickle.loads(pickle.dumps(row)) == row
    assert dict(row) == row.model_dump()
    with pytest.raises(AttributeError):
        row.amount = 4
    with pytest.raises(AttributeError):
        _ = row.missing


class Ranked(Schema):
    rank: int

    def __lt__(self, other):
        return self.rank < other.rank

    def __add__(self, other):
        return Ranked(rank=self.rank + other.rank)

    def __bool__(self):
        return self.rank > 0

    def __len__(self):
        return self.rank


def test_a_row_has_the_operators_of_its_schema():
    rows = list(RowDecoder(pa.schema([("rank", pa.int64())]), Ranked).rows(pa.record_batch({"rank": [2, 0, 1]})))
    assert [row.rank for row in sorted(rows)] == [0, 1, 2]
    assert rows[0] + rows[2] == Ranked(rank=3)
    assert [bool(row) for row in rows] == [True, False, True]
    assert len(rows[0]) == 2


def test_names_that_are_no_identifiers_or_tuple_methods_still_work():
    batch = pa.record_batch({"class": [1], "count": [2], "_x": [3]})
    (row,) = RowDecoder(batch.schema, None).rows(batch)
    assert (getattr(row, "class"), row.count, row._x) == (1, 2, 3)


def test_returning_the_row_itself_is_fine(bench, out):
    assert run(bench, out, "map", lambda order: order)[1]["amount"] == 30


def test_flat_map_repeats_the_event_time(bench, out):
    def twice(order) -> Iterator[Total]:
        for n in range(order.user_id):
            yield Total(user_id=order.user_id, total=n)

    found = run(bench, out, "flat_map", twice, Total)
    assert [(r["user_id"], r["total"], r["__ts"]) for r in found] == [(1, 0, 10), (2, 0, 20), (2, 1, 20)]


def test_flat_map_may_give_nothing(bench, out):
    assert run(bench, out, "flat_map", lambda _: (), Total) == []


def test_filter_rows_keeps_what_is_true(bench, out):
    assert [row["user_id"] for row in run(bench, out, "filter_rows", lambda order: order.large)] == [2]


@pytest.mark.parametrize("true", [True, np.True_])
def test_a_filter_takes_bools_of_python_and_numpy(bench, out, true):
    assert len(run(bench, out, "filter_rows", lambda _: true)) == len(ROWS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("DE", r"^filter 'f': the function returned a value of type str, not a bool \(return True or False\)$"),
        (1, "returned a value of type int, not a bool"),
        ([], "returned a value of type list, not a bool"),
        (None, r"filter 'f': the function returned None, not a bool \(return True or False: is a return missing\?\)"),
        (pl.col("amount") > 5, "returned a value of type Expr, not a bool"),
    ],
)
def test_a_filter_whose_function_returns_no_bool_fails(bench, out, given, message):
    with pytest.raises(UserFunctionError, match=message):
        run(bench, out, "filter_rows", lambda order: order.large or given)
    assert out.elements == []


def test_map_batches_takes_arrow_or_polars(bench, out):
    def arrow(batch):
        return batch.select(["user_id"]).append_column("total", batch["amount"])

    def polars(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select("user_id", pl.col("amount").alias("total"))

    first = run(bench, out, "map_batches", arrow, Total)
    assert first == run(bench, type(out)(), "map_batches", polars, Total)
    assert first[1] == {"user_id": 2, "total": 30, "__ts": 20}


def test_map_batches_that_changes_the_number_of_rows_must_keep_event_time(bench, out):
    def lossy(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("amount") > 5).select("user_id", total="amount")

    with pytest.raises(ColumnError, match="2 rows gave 1 and the result has no '__ts'"):
        run(bench, out, "map_batches", lossy, Total)

    def kept(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("amount") > 5).select("user_id", "__ts", total="amount")

    assert run(bench, out, "map_batches", kept, Total) == [{"user_id": 2, "total": 30, "__ts": 20}]


def test_an_error_names_the_users_line_and_starts_its_traceback_there(bench, out):
    def divide(order):
        return Total(user_id=1, total=order.amount // 0)

    with pytest.raises(
        UserFunctionError, match=r"map 'f': ZeroDivisionError: .*test_functions\.py:\d+ in divide"
    ) as caught:
        run(bench, out, "map", divide, Total)
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert cause.__traceback__.tb_frame.f_code.co_name == "divide"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda _: object(), "has no field 'user_id': it is of type object"),
        (lambda _: ("ann", 3), "has no field 'user_id': it is of type tuple"),
        (lambda _: "ann", r"has no field 'user_id': it is of type str \(rows must have: user_id, total\)$"),
        (lambda _: {"user_id": 1}, "has no field 'total'"),
        (lambda _: {"user_id": "one", "total": 1}, "field 'user_id' does not fit int64: it got a value of type str"),
        (lambda _: {"user_id": 1.5, "total": 1}, "field 'user_id' does not fit int64: it got a value of type float"),
        (lambda _: {"user_id": None, "total": 1}, "field 'user_id' was None in 2 of 2 rows"),
    ],
)
def test_a_wrong_result_is_named(bench, out, function, message):
    with pytest.raises(ColumnError, match=message):
        run(bench, out, "map", function, Total)


@pytest.mark.parametrize("given", [None, "ann"])
def test_a_function_of_several_rows_that_gives_one_is_told_to_yield_it(bench, out, given):
    with pytest.raises(ColumnError, match=r"has no field 'user_id': .*a function that gives one row yields it"):
        run(bench, out, "flat_map", lambda _: [given], Total)


def test_a_map_that_returns_nothing_is_asked_for_its_return_statement(bench, out):
    def only_large(order):
        if order.large:
            return Total(user_id=order.user_id, total=1)
        return None

    text = r"^map 'f': the function returned None \(is a return missing\? to drop rows, use filter or flat_map\)$"
    with pytest.raises(ColumnError, match=text):
        run(bench, out, "map", only_large, Total)


@pytest.mark.parametrize("given", [None, 7])
def test_a_flat_map_that_returns_no_rows_object_is_told_what_to_return(bench, out, given):
    text = f"^flat_map 'f': the function returned {type(given).__name__}, not rows .yield rows, or return a list"
    with pytest.raises(UserFunctionError, match=text):
        run(bench, out, "flat_map", lambda _: given, Total)


def needs_a_package(order):
    import no_such_package.inner

    return no_such_package.inner(order)


def missing_module(bench, out):
    run(bench, out, "map", needs_a_package, Total)


def missing_at_load(bench, out):
    payload = b"cno_such_package.inner\nf\n."
    spec = OperatorSpec(uid="f", name="f", kind="map", payload=payload)
    create_operator("map").open(bench.context(spec, Order.arrow_schema()))


@pytest.mark.parametrize(("call", "error"), [(missing_module, UserFunctionError), (missing_at_load, FunctionLoadError)])
def test_a_package_that_a_worker_lacks_is_told_with_where_to_install_it(bench, out, call, error):
    with pytest.raises(error) as caught:
        call(bench, out)
    assert "ModuleNotFoundError: No module named 'no_such_package'" in caught.value.message
    assert caught.value.hint == (
        f"a package: install it in the TaskManagers' Python, {sys.executable}, or name it in"
        " ps.Environment(requirements=[...]); a module of yours: put it beside the job file, or name its folder in"
        " ps.Environment(python_path=[...])"
    )


def test_a_payload_that_cannot_be_loaded_is_a_clear_error(bench):
    spec = OperatorSpec(uid="f", name="f", kind="map", payload=b"nonsense")
    with pytest.raises(FunctionLoadError, match="map 'f': the function cannot be loaded"):
        create_operator("map").open(bench.context(spec, Order.arrow_schema()))


@pytest.mark.parametrize(
    ("kind", "exact", "inexact"),
    [
        (pa.int64(), [1, None, 2.0, Decimal(3), np.float32(4)], [1.5, Decimal("0.1"), np.float32(0.5), Fraction(1, 2)]),
        (pa.uint8(), [7, 7.0], [0.5]),
        (pa.date32(), [dt.date(2026, 1, 1), None], [dt.datetime(2026, 1, 1, 5)]),
        (pa.list_(pa.int64()), [[1, 2.0], None, []], [[1, 2.5]]),
    ],
    ids=str,
)
def test_no_part_of_a_value_is_dropped(kind, exact, inexact):
    encoder = RowEncoder(pa.schema([("v", kind)]), "step")
    assert encoder.array(encoder.schema.field(0), exact).to_pylist() == exact
    for value in inexact:
        with pytest.raises(ColumnError, match="field 'v' does not fit"):
            encoder.array(encoder.schema.field(0), [*exact, value])
