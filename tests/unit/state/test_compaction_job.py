"""A merge of some segments of a log: what it may forget."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from tests.support.sizes import TINY

from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.state.log.frozen import CompactionJob
from penstock.state.log.row_spec import RowSpec
from penstock.state.log.segment_file import SegmentFile
from penstock.state.log.segments import SegmentWriter

SPEC = RowSpec(pa.schema([pa.field("k", pa.int64(), False)]), (pa.field("v", pa.int64()),))
LIMITS = TINY


def segment(position, *rows):
    """Make a segment of (hash, value) in one namespace; None: it was deleted."""
    schema, count = SPEC.segment_schema, len(rows)
    hashes, values = [key for key, _ in rows], [value for _, value in rows]
    columns = [hashes, hashes, [0] * count, values, [value is None for value in values], range(count)]
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    writer = SegmentWriter(schema, position, limits=LIMITS)
    writer.add(pa.Table.from_arrays(arrays, schema=schema))
    return of(writer.finish())


def of(encoded):
    """Return what the log holds of an encoded segment."""
    file = FileRef(path="", offset=0, length=len(encoded.data), inline=bytes(encoded.data))
    return encoded.stored(file, "w")


@pytest.mark.parametrize("oldest", [False, True])
def test_deletions_go_only_where_no_older_segment_can_hold_their_rows(tmp_path, oldest):
    inputs = (segment(4, (1, 10), (2, 20)), segment(5, (1, None), (3, 30)))
    log = SimpleNamespace(tombstones=(), is_oldest=lambda _: oldest)
    source = SimpleNamespace(state="s", limits=LIMITS, spec=SPEC, log=log, deadline=None, directory=tmp_path)
    read = lambda file: file.inline
    merged = SegmentFile(of(CompactionJob(source, inputs, 1).run(read)), read, LIMITS)
    rows = pa.concat_tables(merged.tables(ALL_HASHES))
    found = zip(*(rows.column(name).to_pylist() for name in ("k", "v", "__deleted")), strict=True)
    kept = [(2, 20, False), (3, 30, False)]
    assert sorted(found) == (kept if oldest else [(1, None, True), *kept])
