"""`env.from_collection`: which rows it takes, and what it says of the others."""

import re
from datetime import UTC, datetime
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.building import collection as from_collection
from penstock.core.errors import GraphError


class Paid(ps.Schema):
    user: str
    amount: int
    at: datetime


class Pair(NamedTuple):
    left: int
    right: str


AT = datetime(2026, 1, 1, tzinfo=UTC)


def rows_of(rows, row_type=None):
    return from_collection.collection_source(rows, row_type).rows


def test_rows_of_a_type_are_objects_or_dicts():
    found = rows_of([Paid(user="a", amount=1, at=AT), {"user": "b", "amount": 2, "at": AT}], Paid)
    assert found.schema == Paid.arrow_schema()
    assert found.to_pylist() == [{"user": "a", "amount": 1, "at": AT}, {"user": "b", "amount": 2, "at": AT}]
    assert rows_of((Pair(n, str(n)) for n in range(3)), Pair).column("right").to_pylist() == ["0", "1", "2"]


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table, lambda columns: pa.table(columns).to_batches()[0]])
def test_a_frame_or_table_needs_no_type_and_has_plain_strings(make):
    found = rows_of(make({"n": [1, None], "text": ["x", "y"], "tags": [["a"], []]}))
    assert found.schema.types == [pa.int64(), pa.string(), pa.list_(pa.string())]
    assert found.to_pylist() == [{"n": 1, "text": "x", "tags": ["a"]}, {"n": None, "text": "y", "tags": []}]


def test_a_frame_may_have_a_type_and_no_rows():
    frame = pl.DataFrame({"right": ["x"], "left": [7]})
    assert rows_of(frame, Pair).to_pylist() == [{"left": 7, "right": "x"}]
    assert rows_of(frame.clear()).num_rows == 0
    assert rows_of(frame.clear()).schema.names == ["right", "left"]


@pytest.mark.parametrize(
    ("rows", "row_type", "said"),
    [
        ([{"user": "a"}], None, "the row type is not known (give it: env.from_collection(rows, Order)"),
        (
            [{"user": "a"}],
            Paid,
            "no field 'amount': it is of type dict: {'user': 'a'} (rows must have: user, ",
        ),
        ([{"user": "a", "amount": "x", "at": AT}], Paid, "field 'amount' does not fit int64"),
        ([{"user": None, "amount": 1, "at": AT}], Paid, "field 'user' was None in 1 of 1 rows"),
        ([(1, "x")], Pair, "a row has no field 'left': it is of type tuple: (1, 'x') (rows must have: left, "),
        (7, Paid, "7 has no rows (pass a list of rows"),
        ([1], int, "is not a row type"),
        (pl.DataFrame({"left": [1]}), Pair, "column 'right' is missing"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, row_type, said):
    with pytest.raises(GraphError, match=re.escape(said)):
        rows_of(rows, row_type)


def test_more_than_a_job_graph_holds_is_refused():
    frame = pl.DataFrame({"n": pl.int_range(3_000_000, eager=True)})
    with pytest.raises(GraphError, match=r"more than 16,777,216 \(write them to a Parquet file"):
        from_collection.collection_source(frame, None).spec()


def test_it_is_a_source_with_event_time(env, executor):
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="at")
    paid = env.from_collection([Paid(user="a", amount=1, at=AT)], Paid, watermarks=strategy)
    paid.key_by("user").window(ps.Tumbling("1s")).aggregate(n=ps.count()).uid("w").print("totals")
    graph = env.job_graph("job")
    assert graph.vertices[0].operators[0].uid == "collection"
    assert graph.vertices[-1].operators[-1].kind == "print"
