"""Rows of a table in the order of offsets, whatever the order of files; only those of the range, each once."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.backfill.table_plan import Offsets, open_table
from penstock.backfill.table_reader import TableConfig, TablePart, overlapping, rows_of
from penstock.connector.source import SourceSpec

SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False)])
OFFSETS = Offsets(partition="p", offset="o")
SOURCE = SourceSpec(factory="none:none", config={}, schema="", bounded=True)


@given(
    ends=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    files=st.integers(1, 4),
    group=st.integers(1, 30),
    mixed=st.booleans(),
    seed=st.integers(0, 99),
)
@examples(60)
def test_every_part_is_its_range_in_order(ends, files, group, mixed, seed, tmp_path_factory):
    rand, folder = random.Random(seed), tmp_path_factory.mktemp("table")
    rows = [(p, o, p * 1_000 + o) for p, end in enumerate(ends) for o in range(end)]
    if mixed:
        rand.shuffle(rows)
    bounds = sorted([0, len(rows), *(rand.randrange(len(rows) + 1) for _ in range(files - 1))])
    for number in range(files):
        own = rows[bounds[number] : bounds[number + 1]]
        columns = [pa.array(column, pa.int64()) for column in (zip(*own, strict=True) if own else [[], [], []])]
        pq.write_table(pa.table(dict(zip("po", columns, strict=False)) | {"value": columns[2]}),
                       folder / f"{rand.randrange(1000):03}-{number}.parquet", row_group_size=group)  # fmt: skip
    table = open_table("table", (str(folder),), SCHEMA, OFFSETS)
    config = TableConfig(where="table", offsets=OFFSETS, sparse=False, source=SOURCE, on_bad_record="fail")
    for p, end in enumerate(ends):
        table.require_dense(("", p))
        low = rand.randrange(end)
        high = rand.randrange(low, end) + 1
        part = TablePart(place=("", p), chunks=tuple(table.chunks["", p]), low=low, high=high)
        found = [value for batch in rows_of(part, SCHEMA, config) for value in batch.column(0).to_pylist()]
        assert found == [p * 1_000 + o for o in range(low, high)]


def test_row_groups_in_order_are_read_one_by_one(tmp_path):
    for number, low in enumerate((20, 0, 40)):
        rows = {"p": [0] * 20, "o": list(range(low, low + 20)), "value": list(range(20))}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet", row_group_size=10)
    table = open_table("table", (str(tmp_path),), SCHEMA, OFFSETS)
    groups = list(overlapping(table.chunks["", 0]))
    assert [[chunk.first for chunk in group] for group in groups] == [[0], [10], [20], [30], [40], [50]]


def test_a_file_that_is_cut_short_is_named(tmp_path):
    pq.write_table(pa.table({"p": [0], "o": [0], "value": [1]}), tmp_path / "0.parquet")
    data = (tmp_path / "0.parquet").read_bytes()
    (tmp_path / "0.parquet").write_bytes(data[:-9])
    with pytest.raises(Exception, match=r"0.parquet cannot be read"):
        open_table("table", (str(tmp_path),), SCHEMA, OFFSETS)
