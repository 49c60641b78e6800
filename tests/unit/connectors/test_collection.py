"""Rows that travel in the job graph: all of them, in order, from any position."""

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.building.collection import collection_source
from penstock.connector.sink import load_factory
from penstock.connector.source import SourceContext, SourceSplit
from penstock.core.clock import ManualClock


class Paid(ps.Schema):
    user: str
    amount: int | None


ROWS = [{"user": "a", "amount": 1}, Paid(user="b", amount=None), {"user": "c", "amount": 3}]


def read(spec, splits, max_rows):
    factory = load_factory(spec.factory)
    factory.validate(spec)
    reader = factory.create_reader(spec, SourceContext(0, 1, "job", "uid", ManualClock()))
    reader.add_splits(splits)
    found = []
    while not reader.snapshot()[0].finished:
        found += [batch.data for batch in reader.poll(max_rows).batches]
    return pa.Table.from_batches(found, schema=Paid.arrow_schema()).to_pylist()


@pytest.mark.parametrize("max_rows", [1, 2, 100])
def test_one_split_holds_all_rows_in_their_order(max_rows):
    spec = collection_source(ROWS, Paid).spec()
    splits = load_factory(spec.factory).create_enumerator(spec, first_run=True).discover(frozenset())
    assert [split.id for split in splits] == ["rows-0"]
    assert spec.bounded
    assert [row["user"] for row in read(spec, splits, max_rows)] == ["a", "b", "c"]


def test_it_goes_on_from_a_position():
    spec = collection_source(ROWS, Paid).spec()
    split = SourceSplit(id="rows-0", state={"index": 0, "position": 2})
    assert read(spec, (split,), 10) == [{"user": "c", "amount": 3}]


def test_a_history_ends_at_a_position():
    spec = collection_source(ROWS, Paid).spec()
    (found,) = load_factory(spec.factory).history(spec, {"positions": {"rows-0": 2}}, None)
    assert [piece.state for piece in found.pieces] == [{"index": 0, "position": 0, "end": 2}]


def test_no_rows_are_an_input_that_ends_at_once():
    spec = collection_source([], Paid).spec()
    reader = load_factory(spec.factory).create_reader(spec, SourceContext(0, 1, "job", "uid", ManualClock()))
    reader.add_splits((SourceSplit(id="rows-0", state={"index": 0, "position": 0}),))
    assert reader.poll(10).finished == ("rows-0",)
