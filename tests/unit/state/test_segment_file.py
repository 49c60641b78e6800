"""Reading parts of a segment: what is asked of the store, and that damage is seen wherever it is."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.sizes import given, sizes

from penstock.checkpoint.memory_store import MemoryStore
from penstock.checkpoint.stores import checksum_of, read_file
from penstock.core.errors import SnapshotDamagedError
from penstock.core.keygroup import ALL_HASHES, HashRange
from penstock.core.snapshot import FileRef
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.log.segment_file import SegmentFile, inside
from penstock.state.log.segments import SegmentWriter, merge_segments

SCHEMA = PaneTableSpec(
    pa.schema([pa.field("k", pa.int64())]), (AccumulatorSpec("total", "int64", "sum"),)
).segment_schema
ROWS = 100


@pytest.fixture
def small(monkeypatch):
    given(monkeypatch, group_rows=10, whole_file_bytes=0)


class Stored:
    """A segment behind other bytes of an object, and what is read of it."""

    def __init__(self, folder=None):
        writer = SegmentWriter(SCHEMA, 1, folder=folder, limits=sizes())
        for first in (0, 40):
            rows = range(first, first + 40 if first == 0 else ROWS)
            columns = {"__key_hash": rows, "k": rows, "__namespace": [7] * len(rows), "__rows": rows, "total": rows}
            columns |= {"__deleted": [False] * len(rows), "__seq": rows}
            writer.add(pa.Table.from_pydict({n: list(v) for n, v in columns.items()}, schema=SCHEMA))
        encoded = writer.finish()
        self.data = bytes(encoded.data)
        self.store = MemoryStore("segment-file")
        self.store.put("x.pack", b"before" + self.data + b"behind")
        file = FileRef(path="x.pack", offset=6, length=len(self.data), checksum=checksum_of(self.data))
        self.segment = encoded.stored(file, "w")
        self.asked = []

    def read(self, file):
        self.asked.append((file.offset, file.length))
        return read_file(self.store, file)

    def rows(self, within, hashes=None):
        tables = SegmentFile(self.segment, self.read, sizes(), None, hashes).tables(within)
        return [h for table in tables for h in table.column("total").to_pylist()]


@pytest.mark.parametrize("mapped", [False, True])
def test_a_range_reads_the_footer_and_its_row_groups(small, tmp_path, mapped):
    stored = Stored(tmp_path if mapped else None)
    assert stored.rows(HashRange(35, 52)) == list(range(35, 53))
    (footer, length), (groups, size) = stored.asked
    assert footer + length == 6 + len(stored.data)
    file = pq.ParquetFile(io.BytesIO(stored.data)).metadata
    assert file.num_row_groups == 10
    assert size == sum(file.row_group(n).column(c).total_compressed_size for n in (3, 4, 5) for c in range(7))
    assert groups > 6
    assert stored.rows(ALL_HASHES) == list(range(ROWS))


def test_hashes_read_their_row_groups_once(small):
    stored = Stored()
    wanted = np.array([-4, 2, 3, 35, 52, 10_000])
    assert stored.rows(ALL_HASHES, wanted) == [2, 3, 35, 52]
    assert len(stored.asked) == 1 + 3
    whole = stored.segment.file.length
    assert sum(length for _, length in stored.asked[1:]) < whole / 2
    assert stored.rows(HashRange(3, 40), wanted) == [3, 35]
    assert stored.rows(ALL_HASHES, np.array([10_000])) == []


def test_a_merge_of_few_hashes_reads_a_row_group_once(small, monkeypatch):
    given(monkeypatch, merged_rows=4)
    stored = Stored()
    file = SegmentFile(stored.segment, stored.read, sizes(), None, np.array([35]))
    merged = merge_segments([file], (), SCHEMA, within=HashRange(30, 39), keep_deleted=False)
    assert [table.column("total").to_pylist() for table in merged] == [[35]]
    assert len(stored.asked) == 1 + 1


def test_a_merge_in_many_pieces_reads_a_row_group_once(small, monkeypatch):
    given(monkeypatch, merged_rows=4)
    stored = Stored()
    file = SegmentFile(stored.segment, stored.read, sizes())
    merged = list(merge_segments([file], (), SCHEMA, within=HashRange(32, 51), keep_deleted=False))
    assert [row for table in merged for row in table.column("total").to_pylist()] == list(range(32, 52))
    assert len(merged) == 20 // 4, "pieces are counted by the rows of the range, not of the file"
    assert len(stored.asked) == 1 + 3


def test_a_merge_reads_no_more_bytes_at_a_time_than_it_may_hold(small, monkeypatch):
    stored = Stored()
    groups = pq.ParquetFile(io.BytesIO(stored.data)).metadata
    size = sum(groups.row_group(number).total_byte_size for number in range(groups.num_row_groups))
    given(monkeypatch, merged_bytes=-(-size // 5), run_bytes=1)
    file = SegmentFile(stored.segment, stored.read, sizes())
    merged = merge_segments([file], (), SCHEMA, within=ALL_HASHES, keep_deleted=False)
    first = next(merged)
    assert first.num_rows == ROWS // 5
    assert len(stored.asked) <= 1 + 3, "the footer, two row groups and the one that the next part shares"
    assert first.num_rows + sum(table.num_rows for table in merged) == ROWS


def test_what_is_far_apart_is_not_read_in_one(small, monkeypatch):
    stored = Stored()
    given(monkeypatch, run_bytes=1)
    assert stored.rows(HashRange(35, 52)) == list(range(35, 53))
    assert len(stored.asked) == 1 + 3


def test_a_small_file_is_read_at_once():
    stored = Stored()
    assert stored.rows(HashRange(35, 52)) == list(range(35, 53))
    assert stored.asked == [(6, len(stored.data))]


def test_a_flipped_bit_anywhere_is_seen(small):
    stored = Stored()
    for at in range(4, len(stored.data)):  # of the magic number at the front nobody reads anything
        damaged = bytearray(stored.data)
        damaged[at] ^= 1 << (at % 8)
        stored.store.put("x.pack", b"before" + bytes(damaged))
        with pytest.raises(SnapshotDamagedError, match=r"x\.pack"):
            stored.rows(ALL_HASHES)


@pytest.mark.parametrize("cut", [0, 200])
def test_row_groups_that_are_wrong_are_read_again_with_their_checksums(small, cut):
    """A reader of local copies then reads the store."""
    stored = Stored()
    exact = stored.read

    def read(file):
        data = exact(file)
        if file.checksum:
            return data
        return data[: len(data) - cut] if cut else bytes(byte ^ (place % 300 == 0) for place, byte in enumerate(data))

    stored.read = read
    assert stored.rows(ALL_HASHES) == list(range(ROWS))
    again = [length for _, length in stored.asked[2:]]
    assert 0 < sum(again) <= stored.asked[1][1]
    assert len(again) < 10 or not cut, "those alone"


def test_a_file_that_ends_early_is_seen(small):
    stored = Stored()
    stored.store.put("x.pack", (b"before" + stored.data)[:-1])
    with pytest.raises(SnapshotDamagedError, match="shorter"):
        stored.rows(ALL_HASHES)


def test_the_footer_names_the_namespaces(small):
    stored = Stored()
    assert SegmentFile(stored.segment, stored.read).namespaces == {7}


def test_a_range_has_its_first_and_its_last_hash():
    hashes = np.array([4, 5, 9, 10, 20, 25, 26])
    assert inside(hashes, [HashRange(5, 9), HashRange(20, 25)]).tolist() == [
        False,
        True,
        True,
        False,
        True,
        True,
        False,
    ]
