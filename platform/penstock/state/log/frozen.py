"""The frozen state of one barrier: what the task copies piece by piece, encodes in the background and names in its ack.

Made by a table's `freeze` in the owner's thread; `encode` alone may run elsewhere, after `copy_pages` has returned
True.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment
from penstock.state.log.encoded_segment import EncodedSegment, segment_of
from penstock.state.log.segment_file import SegmentFile
from penstock.state.log.segments import SegmentWriter, mapped
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.core.keygroup import HashRange
    from penstock.state.log.segment_columns import StateSpec
    from penstock.state.log.segment_log import LogView, SegmentLog
    from penstock.state.log.ttl import Ttl
    from penstock.state.memory.budget import MemoryBudget


#: Slot, hash, place in order and a copy of it while a frozen row waits to be encoded.
_ORDER_BYTES = 4 + 3 * 8
#: A value of a piece: as a cell, as a word, as a column, and in the encoder.
_CELL_BYTES = 4 * 8


class FrozenContent(Protocol):
    """Rows frozen at one position, as their table keeps them."""

    @property
    def memory_bytes(self) -> int:
        """Bytes held in memory."""

    def whole(self) -> Iterator[pa.Table]:
        """Yield all rows as columns of a segment, sorted by hash, at once or in pieces; any thread."""


@runtime_checkable
class InPieces(Protocol):
    """Frozen content that need not be made into columns at once."""

    @property
    def ordered_rows(self) -> int:
        """Rows in memory that are put in order before the first piece."""

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the rows as columns of a segment, sorted by hash, in pieces of about so many; any thread."""

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows in some ranges of hashes, what was copied of them so far; the owner's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeRoom:
    """Encoding in bounded memory: pieces of rows, a local file for the result, and a budget that is told."""

    directory: Path
    #: Names the file, and what the budget is told.
    name: str
    #: Rows of a piece.
    rows: int
    budget: MemoryBudget

    def tell(self, ordered: int, piece: int, columns: int) -> None:
        """Say how many rows are in order, and how many in the piece that is being written."""
        held = ordered * _ORDER_BYTES + piece * columns * _CELL_BYTES
        self.budget.work(f"{self.name}/encode", held)


class FrozenSegment:
    """The rows frozen at one position of the log, until they are durable."""

    def __init__(
        self,
        spec: StateSpec,
        position: int,
        rows: FrozenContent,
        room: EncodeRoom | None = None,
        *,
        wide: bool = True,
        limits: StateLimits = PRODUCTION,
    ) -> None:
        """Hold `rows`; with `room` they are encoded in bounded memory, not `wide` in small row groups."""
        self.position = position
        self._wide = wide
        self._limits = limits
        self._room = room
        self._spec = spec
        self._rows: FrozenContent | None = rows
        self._spilled: Path | None = None
        self._about: EncodedSegment | None = None
        #: The spilled file, once something of it was read.
        self._opened: SegmentFile | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes held in memory."""
        return 0 if self._rows is None else self._rows.memory_bytes

    @property
    def about(self) -> EncodedSegment | None:
        """What is known of the file, without its bytes; None: it was not encoded yet."""
        return self._about

    @property
    def in_memory(self) -> bool:
        """Whether the rows are not encoded on the local disk."""
        return self._rows is not None

    @property
    def durable(self) -> bool:
        """Whether nothing is held any more."""
        return self._rows is None and self._spilled is None

    def encode(self) -> EncodedSegment | None:
        """Return the Parquet file, None when it became durable meanwhile."""
        rows, spilled, about = self._rows, self._spilled, self._about
        if spilled is not None and about is not None:
            try:
                return about.with_data(mapped(spilled))
            except FileNotFoundError:
                if self.durable:  # an earlier barrier's upload has just finished
                    return None
                raise
        if rows is None:
            return None
        encoded = self._encoded(rows)
        self._about = encoded.with_data(b"")
        return encoded

    def _encoded(self, rows: FrozenContent) -> EncodedSegment:
        room, schema = self._room, self._spec.segment_schema
        if room is None or not isinstance(rows, InPieces):
            writer = SegmentWriter(schema, self.position, wide=self._wide, limits=self._limits)
            for table in rows.whole():
                writer.add(table)
            return writer.finish()
        path = room.directory / f"{room.name}-{self.position}.encoding"
        writer = SegmentWriter(schema, self.position, path=path, wide=self._wide, limits=self._limits)
        try:
            for table in rows.tables(room.rows):
                room.tell(rows.ordered_rows, table.num_rows, len(schema))
                writer.add(table)
            return writer.finish()
        finally:
            writer.close()
            path.unlink(missing_ok=True)
            room.tell(0, 0, 0)

    def spill(self, path: Path) -> None:
        """Encode now and keep the file on the local disk instead of the rows in memory."""
        encoded = self.encode()
        if encoded is not None:
            path.write_bytes(encoded.data)
            self._spilled, self._rows = path, None

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows in some ranges of hashes, while they are not durable; the owner's thread."""
        rows, spilled, about = self._rows, self._spilled, self._about
        if spilled is not None and about is not None:
            if self._opened is None:
                self._opened = _opened(about, mapped(spilled), self._limits)
            for wanted in ranges:
                yield from self._opened.tables(wanted)
        elif isinstance(rows, InPieces):
            yield from rows.within(ranges)

    def named(self, file: FileRef, writer: str) -> Segment:
        """Return the segment as a manifest names it, and forget the rows."""
        about = self._about
        if about is None:
            raise RuntimeError(f"segment {self.position} was declared durable before it was encoded")
        self._rows = self._opened = None
        if self._spilled is not None:
            self._spilled.unlink(missing_ok=True)
            self._spilled = None
        return segment_of(about, file, writer)


def _opened(about: EncodedSegment, data: bytes, limits: StateLimits) -> SegmentFile:
    return SegmentFile(segment_of(about, FileRef(inline=b"", length=len(data)), ""), lambda _: data, limits)


class FrozenTable:
    """A table as of one barrier (`keyed.FrozenState`)."""

    def __init__(self, source: FrozenSource, view: LogView, segments: tuple[FrozenSegment, ...]) -> None:
        """`segments` are those of the view that were not durable at the barrier."""
        self._source = source
        self._view = view
        self._segments = segments
        self._last = max((s.position for s in segments), default=0)

    @property
    def view(self) -> LogView:
        """The log at the barrier."""
        return self._view

    @property
    def memory_bytes(self) -> int:
        """Bytes of copied pages."""
        return sum(s.memory_bytes for s in self._segments)

    def copy_pages(self, limit: int) -> bool:
        """Copy up to `limit` frozen pages; True when none is left."""
        return self._source.memory.copy_frozen(limit, self._last)

    def encode(self) -> tuple[EncodedSegment, ...]:
        """Return all segments up to the barrier that are not durable yet."""
        return tuple(e for s in self._segments if (e := s.encode()) is not None)

    def durable(self, files: Mapping[int, FileRef]) -> None:
        """Enter the files into the log."""
        for segment in self._segments:
            if segment.position in files and not segment.durable:
                named = segment.named(files[segment.position], self._source.writer)
                self._source.log.uploaded(segment.position, named)

    def failed(self) -> None:
        """The upload was given up: the segments stay in the log, the next freeze offers them again."""

    def snapshot(self) -> KeyedStateSnapshot:
        """Return what the ack names."""
        segments, tombstones = self._view.named()
        source = self._source
        return KeyedStateSnapshot(
            uid=source.uid,
            state=source.state,
            schema=schema_to_text(source.spec.segment_schema),
            hash_low=source.hash_range.low,
            hash_high=source.hash_range.high,
            segments=segments,
            tombstones=tombstones,
        )


class FrozenMemory(Protocol):
    """The memory of a table: what it froze may have to be copied, piece by piece."""

    def copy_frozen(self, limit: int, up_to: int) -> bool:
        """Copy up to `limit` pages of the freezes numbered at most `up_to`; True when none is left."""


class FrozenSource:
    """What a frozen table needs of its table; `memory` is replaced when the table is rebuilt."""

    def __init__(self, uid: str, state: str, spec: StateSpec, log: SegmentLog, writer: str) -> None:
        """Name the table, its log and the writer of its segments."""
        self.uid = uid
        self.state = state
        self.spec = spec
        self.log = log
        self.writer = writer
        #: Whether its rows may be read a few at a time, by remote state.
        self.remote = False
        #: When its rows expire, if they do.
        self.ttl: Ttl | None = None
        self.memory: FrozenMemory

    @property
    def hash_range(self) -> HashRange:
        """The subtask's range."""
        return self.log.hash_range

    @property
    def limits(self) -> StateLimits:
        """The store's sizes."""
        return self.log.limits
