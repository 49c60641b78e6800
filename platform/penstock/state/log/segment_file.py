"""Segment reader: reads the footer first, then row groups on request, each verified by its own checksum.

Row groups are hash ranges, so a reader of a key range reads the bytes of a few groups. A small file is read in one
call, and so is one of an earlier version, whose groups have no checksums. Called by restore, compaction, the savepoint
writer, the offline tools and remote state; any thread.
"""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.errors import SnapshotDamagedError
from penstock.core.evolution import field_id
from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN, HashRange
from penstock.core.range_file import RangeFile
from penstock.core.snapshot import FileRef
from penstock.state.log.segment_columns import KEY_HASH, NAMESPACE
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.snapshot import Segment
    from penstock.kernels.compiler.compile import I64

#: Metadata key of `[[offset, length, crc32, first hash, last hash, rows], ...]`, one element per row group.
GROUPS = b"penstock.row_groups"
#: Bytes of most decoded values.
_WORD = 8
#: Metadata key of the namespaces of the file's rows, `[...]`, if they are few.
NAMESPACES = b"penstock.namespaces"


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: its hash range and its position in the file."""

    number: int
    offset: int
    length: int
    crc: int
    low: int
    high: int
    rows: int


class SegmentFile:
    """An open segment; several threads may read it, except by `tables`."""

    def __init__(
        self,
        segment: Segment,
        read: Callable[[FileRef], bytes],
        limits: StateLimits = PRODUCTION,
        ids: frozenset[int] | None = None,
        hashes: I64 | None = None,
    ) -> None:
        """Read the footer, or all of a small file; `read` returns a file or a part of it, and verifies checksums.

        With `ids`, only the columns with these field ids are decoded. With `hashes`, which are sorted, only rows of
        these are read.

        Raises:
            SnapshotDamagedError: the file is missing or damaged.
        """
        self.segment = segment
        self.limits = limits
        self._ids = ids
        self._hashes = hashes
        self._read = read
        #: The file, if all of it is in memory.
        self._opened: pq.ParquetFile | None = None
        #: The last row group of `tables` with its rows, if some of them are after the range.
        self._kept: tuple[list[RowGroup], pa.Table] | None = None
        file = segment.file
        if file.inline is not None or file.length < limits.whole_file_bytes or not segment.footer_length:
            data = pa.py_buffer(read(file))  # in memory or mapped: not copied
            self._opened = pq.ParquetFile(pa.BufferReader(data))
            self._metadata = self._opened.metadata
        else:
            start = file.offset + file.length - segment.footer_length
            footer = FileRef(
                path=file.path, offset=start, length=segment.footer_length, checksum=segment.footer_checksum
            )
            self._metadata = pq.read_metadata(io.BytesIO(read(footer)))
        self.groups = self._groups()

    @property
    def namespaces(self) -> set[int] | None:
        """The namespaces of its rows; None: the footer does not list them."""
        text = (self._metadata.metadata or {}).get(NAMESPACES)
        return None if text is None else set(json.loads(text))

    def within(self, wanted: HashRange) -> list[RowGroup]:
        """Return the row groups that may have rows in a range, in file order."""
        near = [g for g in self.groups if g.low <= wanted.high and wanted.low <= g.high]
        if self._hashes is None:
            return near
        return [g for g in near if has_hash_in(self._hashes, max(g.low, wanted.low), min(g.high, wanted.high))]

    def within_any(self, ranges: Sequence[HashRange]) -> list[RowGroup]:
        """Return the row groups that may have rows in one of the ranges, in file order."""
        numbers = {group.number for wanted in ranges for group in self.within(wanted)}
        return [self.groups[number] for number in sorted(numbers)]

    @cached_property
    def spans(self) -> I64:
        """The lowest and highest hash, lowest and highest namespace and rows of every row group, one per column.

        Without statistics in the footer a row group has the namespaces of the file.
        """
        every = (self.segment.namespace_min, self.segment.namespace_max)
        rows = [(g.low, g.high, *(self.span(g, NAMESPACE) or every), g.rows) for g in self.groups]
        return np.array(rows, np.int64).reshape(-1, 5).T

    def span(self, group: RowGroup, name: str) -> tuple[int, int] | None:
        """Return the lowest and highest value of a row group's column; None if the footer has no statistics."""
        about = self._metadata.row_group(group.number)
        for number in range(about.num_columns):
            column = about.column(number)
            stats = column.statistics if column.path_in_schema == name else None
            if stats is not None and stats.has_min_max:
                return stats.min, stats.max
        return None

    def tables(self, wanted: HashRange) -> Iterator[pa.Table]:
        """Yield the rows whose hash is in the range, a few row groups at a time; other groups are not read.

        A row group that two ranges in ascending order share is decoded once.

        Raises:
            SnapshotDamagedError: the file is missing or damaged.
        """
        near, kept = self.within(wanted), self._kept
        self._kept = None
        first = [kept] if kept is not None and near[:1] == kept[0] else []
        for groups, table in chain(first, self._decoded(near[len(first) :], wanted)):
            if groups[-1].high > wanted.high:
                self._kept = (groups, table)
            part = table if _are_inside(groups, wanted) else rows_within(table, wanted)
            if self._hashes is not None:
                part = part.filter(pa.array(np.isin(part.column(KEY_HASH).to_numpy(), self._hashes)))
            if part.num_rows:
                yield part

    def tables_of(self, groups: Sequence[RowGroup], ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows of row groups whose hash is in one of the ranges, which are ascending; raises as `tables`."""
        for _, table in self._decoded(groups, ALL_HASHES):
            chosen = inside(table.column(KEY_HASH).to_numpy(), ranges)
            yield table if chosen.all() else table.filter(pa.array(chosen))

    def _decoded(self, groups: Sequence[RowGroup], wanted: HashRange) -> Iterator[tuple[list[RowGroup], pa.Table]]:
        """Yield row groups with all of their rows, sorted by hash; neighbours inside `wanted` together.

        Raises as `tables`.
        """
        for run in runs_of(groups, self.limits.run_bytes):
            file = self._file_with(run, self._fetch(run))
            for part in _parts_of(run, wanted, self.limits.decoded_bytes // (_WORD * self._metadata.num_columns)):
                yield part, self._rows_of(file, part)

    def estimated(self, wanted: HashRange) -> tuple[int, int]:
        """Return about how many rows are in a range, and the bytes of their encoded columns without compression.

        The rows of a row group count as spread evenly.
        """
        rows = size = 0.0
        for group in self.within(wanted):
            part = (min(group.high, wanted.high) - max(group.low, wanted.low) + 1) / (group.high - group.low + 1)
            rows += group.rows * part
            size += self._metadata.row_group(group.number).total_byte_size * part
        return int(rows), int(size)

    def _fetch(self, run: Sequence[RowGroup]) -> bytes:
        """Return the verified bytes of neighbouring row groups; empty if the file is in memory."""
        if self._opened is not None:
            return b""
        file, first, last = self.segment.file, run[0], run[-1]
        length = last.offset + last.length - first.offset
        data = self._read(FileRef(path=file.path, offset=file.offset + first.offset, length=length))
        view = memoryview(data)
        wrong = []
        for group in run:
            start = group.offset - first.offset
            if zlib.crc32(view[start : start + group.length]) != group.crc:
                wrong.append(group)
        return self._corrected(data, first.offset, wrong) if wrong else data

    def _corrected(self, data: bytes, start: int, wrong: Sequence[RowGroup]) -> bytes:
        """Read wrong row groups again, with their checksums: `read` then uses no damaged local copy."""
        file, corrected = self.segment.file, bytearray(data)
        for group in wrong:
            ref = FileRef(
                path=file.path,
                offset=file.offset + group.offset,
                length=group.length,
                checksum=f"crc32:{group.crc:08x}",
            )
            again = self._read(ref)
            if zlib.crc32(again) != group.crc:
                where = f"{file.path} is damaged: row group {group.number} of the part at {file.offset}"
                msg = f"{where} has a wrong checksum"
                raise SnapshotDamagedError(msg, hint="restore an older savepoint")
            corrected[group.offset - start : group.offset - start + group.length] = again
        return bytes(corrected)

    def _file_with(self, run: Sequence[RowGroup], data: bytes) -> pq.ParquetFile:
        """Return a file of which the bytes of these row groups can be read."""
        if self._opened is not None:
            return self._opened
        source = RangeFile(self.segment.file.length, _part(data, run[0].offset))
        return pq.ParquetFile(source, metadata=self._metadata)

    def _rows_of(self, file: pq.ParquetFile, groups: Sequence[RowGroup]) -> pa.Table:
        names = None
        if self._ids is not None:
            names = [field.name for field in file.schema_arrow if field_id(field) in self._ids]
        if len(groups) == 1:  # faster than a list of one
            return file.read_row_group(groups[0].number, columns=names, use_threads=False)
        return file.read_row_groups([group.number for group in groups], columns=names, use_threads=False)

    def _groups(self) -> list[RowGroup]:
        metadata = self._metadata
        places = (metadata.metadata or {}).get(GROUPS)
        if places is not None:
            return [RowGroup(number, *place) for number, place in enumerate(json.loads(places))]
        if self._opened is None:
            msg = f"{self.segment.file.path} does not list its row groups"
            raise SnapshotDamagedError(msg, hint="restore an older savepoint")
        groups = []
        for number in range(metadata.num_row_groups):
            about = metadata.row_group(number)
            stats = about.column(0).statistics  # the hash is the first column
            known = stats is not None and stats.has_min_max
            low, high = (stats.min, stats.max) if known else (HASH_MIN, HASH_MAX)
            groups.append(RowGroup(number, 0, 0, 0, low, high, about.num_rows))
        return groups


def rows_within(table: pa.Table, wanted: HashRange) -> pa.Table:
    """Return the rows in a hash range, from a table sorted by hash."""
    hashes = table.column(KEY_HASH).to_numpy()
    first = int(np.searchsorted(hashes, wanted.low, side="left"))
    stop = int(np.searchsorted(hashes, wanted.high, side="right"))
    return table.slice(first, max(0, stop - first))


def has_hash_in(hashes: I64, low: int, high: int) -> bool:
    """Return whether one of the sorted `hashes` is in `low..high`."""
    return bool(np.searchsorted(hashes, low, side="left") < np.searchsorted(hashes, high, side="right"))


def inside(hashes: I64, ranges: Sequence[HashRange]) -> np.ndarray:
    """Return a mask of the hashes that are in one of the ranges, which are ascending and do not overlap."""
    if not ranges:
        return np.zeros(len(hashes), np.bool_)
    lows = np.array([r.low for r in ranges], np.int64)
    highs = np.array([r.high for r in ranges], np.int64)
    place = np.searchsorted(lows, hashes, side="right") - 1
    return np.asarray((place >= 0) & (hashes <= highs[np.maximum(place, 0)]))


def runs_of(groups: Sequence[RowGroup], most_bytes: int) -> Iterator[list[RowGroup]]:
    """Yield runs of neighbouring row groups, of at most `most_bytes`, to read each in one call."""
    run: list[RowGroup] = []
    size = 0
    for group in groups:
        if run and (group.number != run[-1].number + 1 or size + group.length > most_bytes):
            yield run
            run, size = [], 0
        run.append(group)
        size += group.length
    if run:
        yield run


def _parts_of(run: Sequence[RowGroup], wanted: HashRange, most_rows: int) -> Iterator[list[RowGroup]]:
    """Yield the row groups of a run: those inside `wanted` together, about `most_rows` rows at a time.

    Row groups of timers are spans of time: their hashes do not ascend from one to the next, so each is alone.
    """
    part: list[RowGroup] = []
    for group in run:
        inside = _are_inside([group], wanted)
        joins = part and inside and part[-1].high <= group.low
        if part and not (joins and sum(g.rows for g in part) + group.rows <= most_rows):
            yield part
            part = []
        part.append(group)
        if not inside:
            yield part
            part = []
    if part:
        yield part


def _are_inside(groups: Sequence[RowGroup], wanted: HashRange) -> bool:
    """Return whether all hashes of neighbouring row groups are wanted."""
    return groups[0].low in wanted and groups[-1].high in wanted


def _part(data: bytes, start: int) -> Callable[[int, int], bytes]:
    """Return a function that reads byte ranges of a file of which only `data`, from `start` on, is present."""

    def fetch(offset: int, length: int) -> bytes:
        first, stop = offset - start, offset - start + length
        if first < 0 or stop > len(data):
            msg = f"bytes {offset} to {offset + length} of a segment were not fetched"
            raise ValueError(msg)
        return data[first:stop]

    return fetch
