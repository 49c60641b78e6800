"""Segments: what a merge keeps, what a reader reads, that others read them too."""

import io

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.sizes import given, sizes

from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN, HashRange
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Tombstone
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.log import segments as module
from penstock.state.log.segment_columns import key_names
from penstock.state.log.segment_file import SegmentFile
from penstock.state.log.segments import SegmentWriter, merge_segments, read_state
from penstock.state.memory.limits import StateLimits

SPEC = PaneTableSpec(
    pa.schema([pa.field("user", pa.string()), pa.field("at", pa.timestamp("us", tz="UTC"))]),
    (AccumulatorSpec("total", "int64", "sum"), AccumulatorSpec("spread", "float64", "moments")),
)
SCHEMA = SPEC.segment_schema


def table(rows):
    """Rows of (hash, user, namespace, total, deleted), in any order."""
    rows = sorted(rows, key=lambda r: r[0])
    columns = {name: [None] * len(rows) for name in SCHEMA.names}
    for i, (key_hash, user, namespace, total, deleted) in enumerate(rows):
        values = {"__key_hash": key_hash, "user": user, "__namespace": namespace, "total": total, "__deleted": deleted}
        values |= {"__rows": 1, "__seq": i, "spread.count": 1.0, "spread.mean": 0.5, "spread.m2": 0.0}
        for name, value in values.items():
            columns[name][i] = value
    return pa.Table.from_pydict(columns, schema=SCHEMA)


class Files:
    def __init__(self):
        self.data = {}

    def add(self, position, rows):
        writer = SegmentWriter(SCHEMA, position)
        writer.add(table(rows))
        encoded = writer.finish()
        self.data[str(position)] = encoded.data
        return encoded.stored(FileRef(path=str(position)), "w")

    def read(self, file):
        return self.data[file.path]

    def state(self, segments, tombstones=(), within=None):
        snapshot = KeyedStateSnapshot(
            uid="u",
            state="panes",
            schema=schema_to_text(SCHEMA),
            hash_low=HASH_MIN,
            hash_high=HASH_MAX,
            segments=tuple(segments),
            tombstones=tuple(tombstones),
        )
        names = ["__key_hash", "user", "__namespace", "total"]
        return [
            tuple(row[n] for n in names)
            for t in read_state(snapshot, self.read, within, sizes())
            for row in t.select(names).to_pylist()
        ]


def stone(position, low, high, hashes=ALL_HASHES):
    return Tombstone(
        position=position, hash_low=hashes.low, hash_high=hashes.high, namespace_low=low, namespace_high=high
    )


def test_the_newest_row_of_a_key_and_namespace_counts():
    files = Files()
    first = files.add(1, [(5, "a", 0, 1, False), (-3, "b", 0, 2, False), (5, "a", 10, 3, False)])
    second = files.add(2, [(5, "a", 0, 7, False)])
    expected = [(-3, "b", 0, 2), (5, "a", 0, 7), (5, "a", 10, 3)]
    assert sorted(files.state([first, second])) == expected
    assert sorted(files.state([second, first])) == expected, "the order of the list does not matter"


def test_keys_that_share_a_hash_stay_apart():
    files = Files()
    rows = [(5, "a", 0, 1, False), (5, None, 0, 2, False), (5, "", 0, 3, False)]
    assert len(files.state([files.add(1, rows), files.add(2, rows)])) == 3


def test_tombstones_hide_what_stands_before_them_in_their_ranges():
    files = Files()
    first = files.add(1, [(5, "a", 0, 1, False), (-3, "b", 0, 2, False), (5, "a", 10, 3, False)])
    after = files.add(3, [(5, "a", 0, 9, False)])
    assert sorted(files.state([first, after], [stone(2, 0, 9)])) == [(5, "a", 0, 9), (5, "a", 10, 3)]
    scoped = stone(2, 0, 9, HashRange(0, 9))
    assert sorted(files.state([first], [scoped])) == [(-3, "b", 0, 2), (5, "a", 10, 3)]


def test_deleted_rows_hide_older_ones():
    files = Files()
    first = files.add(1, [(5, "a", 0, 1, False), (6, "b", 0, 2, False)])
    gone = files.add(2, [(5, "a", 0, 0, True)])
    assert files.state([first, gone]) == [(6, "b", 0, 2)]
    back = files.add(3, [(5, "a", 0, 4, False)])
    assert files.state([first, gone, back]) == [(5, "a", 0, 4), (6, "b", 0, 2)]


def test_the_newest_row_of_each_window_counts_between_those_of_others():
    files = Files()
    first = files.add(1, [(5, "a", 0, 1, False), (5, "a", 10, 2, False), (6, "b", 0, 3, False)])
    second = files.add(2, [(5, "a", 0, 4, False), (5, "a", 10, 5, False)])
    assert files.state([first, second]) == [(5, "a", 0, 4), (5, "a", 10, 5), (6, "b", 0, 3)]


def test_clipped_segments_show_their_part():
    files = Files()
    whole = files.add(1, [(h, "a", 0, h, False) for h in (-9, -1, 0, 8)])
    fields = {f: getattr(whole, f) for f in whole.__struct_fields__}
    clipped = type(whole)(**fields | {"clip_low": -1, "clip_high": 0})
    assert [r[0] for r in files.state([clipped])] == [-1, 0]
    assert [r[0] for r in files.state([whole], within=HashRange(0, HASH_MAX))] == [0, 8]
    assert files.state([clipped], within=HashRange(5, 9)) == []


def ten_groups():
    """Return a segment of ten row groups, of ten hashes each."""
    writer = SegmentWriter(SCHEMA, 1, limits=StateLimits(group_rows=10))
    writer.add(table([(h, "a", 0, h, False) for h in range(100)]))
    encoded = writer.finish()
    assert pq.ParquetFile(io.BytesIO(encoded.data)).num_row_groups == 10
    return encoded.stored(FileRef(inline=encoded.data), "w")


def test_wide_rows_are_in_row_groups_of_bounded_bytes():
    writer = SegmentWriter(SCHEMA, 1, limits=StateLimits(group_rows=50, group_bytes=10_000))
    writer.add(table([(h, "a", 0, h, False) for h in range(50)]))
    writer.add(table([(h, "a" * 2000, 0, h, False) for h in range(50, 60)]))
    writer.add(table([(60, "a" * 20_000, 0, 1, False), (61, "b" * 20_000, 0, 1, False)]))
    encoded = writer.finish()
    groups = pq.ParquetFile(io.BytesIO(encoded.data)).metadata
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [50, 4, 4, 2, 1, 1]
    file = SegmentFile(encoded.stored(FileRef(inline=encoded.data), "w"), lambda ref: ref.inline)
    assert [h for part in file.tables(ALL_HASHES) for h in part.column("__key_hash").to_pylist()] == list(range(62))


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (35, 52, 1000, [[3], [4], [5]]),
        (30, 59, 1000, [[3, 4, 5]]),
        (30, 59, 20, [[3, 4], [5]]),
        (30, 59, 0, [[3], [4], [5]]),
        (25, 69, 1000, [[2], [3, 4, 5, 6]]),
        (20, 65, 1000, [[2, 3, 4, 5], [6]]),
    ],
)
def test_row_groups_outside_the_range_are_not_read_and_those_inside_together(monkeypatch, low, high, most, expected):
    read, one, several = [], pq.ParquetFile.read_row_group, pq.ParquetFile.read_row_groups
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda s, n, **k: read.append([n]) or one(s, n, **k))
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", lambda s, n, **k: read.append(n) or several(s, n, **k))
    limits = StateLimits(decoded_bytes=8 * len(SCHEMA) * most)
    parts = list(SegmentFile(ten_groups(), lambda file: file.inline, limits).tables(HashRange(low, high)))
    assert read == expected
    assert [h for p in parts for h in p.column("__key_hash").to_pylist()] == list(range(low, high + 1))


def test_large_merges_go_hash_range_by_hash_range(monkeypatch):
    given(monkeypatch, merged_rows=30)
    files = Files()
    random = np.random.default_rng(1)
    hashes = sorted(random.integers(HASH_MIN, HASH_MAX, 100).tolist())
    first = files.add(1, [(h, "a", 0, 1, False) for h in hashes])
    second = files.add(2, [(h, "a", 0, 2, False) for h in hashes[::3]])
    rows = files.state([first, second])
    assert [r[0] for r in rows] == hashes
    assert [r[3] for r in rows] == [2 if i % 3 == 0 else 1 for i in range(100)]


@pytest.mark.parametrize("limit", [1, 1500, 6000])
def test_wide_rows_are_merged_few_at_a_time(monkeypatch, limit):
    given(monkeypatch, merged_bytes=limit)
    merged, newest = [], module.newest_rows
    monkeypatch.setattr(module, "newest_rows", lambda t, *a, **k: merged.append(t) or newest(t, *a, **k))
    files = Files()
    hashes = [*([-4] * 20), *range(50), *([99] * 30)]
    first = files.add(1, [(h, f"{i}", 0, i, False) for i, h in enumerate(hashes)])
    second = files.add(2, [(h, f"{i}", 0, -i, i % 4 == 0) for i, h in enumerate(hashes) if i % 2 == 0])
    expected = [(h, f"{i}", 0, i if i % 2 else -i) for i, h in enumerate(hashes) if i % 4]
    rows = files.state([first, second])
    assert sorted(rows) == sorted(expected)
    assert [row[0] for row in rows] == [row[0] for row in expected]
    assert len(merged) > 1
    for part in merged:
        assert part.nbytes <= limit or len(part.column("__key_hash").unique()) == 1


def test_timers_are_merged_in_parts_though_their_row_groups_are_spans_of_time():
    fields, random = PaneTableSpec(SPEC.key_schema, ()).segment_schema, np.random.default_rng(2)
    schema, limits = pa.schema([field for field in fields if field.name != "__rows"]), StateLimits(group_rows=200)
    hashes, stored = np.sort(random.integers(0, 1000, 800)), []
    for position in (1, 2):
        columns = {name: [None] * len(hashes) for name in schema.names}
        columns |= {"__key_hash": hashes, "user": [str(h) for h in hashes], "__seq": range(len(hashes))}
        columns |= {"__namespace": 1000 * position + random.permutation(800), "__deleted": [False] * 800}
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        encoded = SegmentWriter(schema, position, limits=limits).write([pa.Table.from_arrays(arrays, schema=schema)])
        stored.append(encoded.stored(FileRef(inline=encoded.data), "w"))
    files = [SegmentFile(segment, lambda ref: ref.inline, limits) for segment in stored]
    # the encoded bytes: one range of hashes is read, and its rows take more when they are decoded
    limits = limits.changed(merged_bytes=sum(file.estimated(ALL_HASHES)[1] for file in files))
    files = [SegmentFile(segment, lambda ref: ref.inline, limits) for segment in stored]
    merged = list(merge_segments(files, (), schema, within=ALL_HASHES, keep_deleted=False))
    assert len(merged) > 1
    assert [h for part in merged for h in part.column("__key_hash").to_pylist()] == sorted([*hashes, *hashes])


def test_a_segment_knows_its_ranges_and_carries_field_ids():
    files = Files()
    segment = files.add(4, [(-7, "a", 3, 1, False), (9, "b", -5, 1, False)])
    assert (segment.rows, segment.hash_min, segment.hash_max) == (2, -7, 9)
    assert (segment.namespace_min, segment.namespace_max) == (-5, 3)
    schema = pq.read_schema(io.BytesIO(files.data["4"]))
    assert key_names(schema) == ("user", "at")
    assert schema.field("total").metadata[b"PARQUET:field_id"] == b"1002"
    assert schema.equals(SCHEMA)


@pytest.mark.parametrize("reader", ["duckdb", "polars"])
def test_others_read_a_segment(reader, tmp_path):
    files = Files()
    files.add(1, [(h, f"user-{h}", 10, h * 2, False) for h in range(-20, 20)])
    path = tmp_path / "segment.parquet"
    path.write_bytes(files.data["1"])
    if reader == "duckdb":
        with duckdb.connect() as db:
            rows = db.read_parquet(str(path)).order("__key_hash").select('"user", total').fetchall()
    else:
        rows = pl.read_parquet(path).sort("__key_hash").select("user", "total").rows()
    assert rows == [(f"user-{h}", h * 2) for h in range(-20, 20)]
