"""The frozen state of one barrier, and the segments of a log that are frozen but not durable.

Made by a table's `freeze` in the owner's thread; only `encode` may run elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment
from penstock.state.log.segment_columns import NAMESPACE
from penstock.state.log.segment_file import SegmentFile
from penstock.state.log.segments import EncodedSegment, SegmentWriter, mapped, newest_rows, segment_of
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.core.keygroup import HashRange
    from penstock.state.log.segment_columns import StateSpec
    from penstock.state.log.segment_log import LogView, SegmentLog
    from penstock.state.log.ttl import Ttl
    from penstock.state.memory.budget import MemoryBudget

#: Bytes of a frozen row before it is encoded: slot, hash, position in the order and a copy of it.
_ORDER_BYTES = 4 + 3 * 8
#: Bytes of a value in a batch that is being encoded: as a cell, as a word, as a column, and in the encoder.
_CELL_BYTES = 4 * 8


class FrozenContent(Protocol):
    """The rows frozen at one position, in the form their table keeps them."""

    @property
    def memory_bytes(self) -> int:
        """The bytes held in memory."""

    def whole(self) -> Iterator[pa.Table]:
        """Yield all rows as columns of a segment, sorted by hash, in one or more tables; any thread."""


@runtime_checkable
class BatchedContent(Protocol):
    """Frozen content that can be converted to columns in batches."""

    @property
    def ordered_rows(self) -> int:
        """The rows in memory that are sorted before the first batch."""

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the rows as columns of a segment, sorted by hash, in batches of about `rows`; any thread."""

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows copied so far in some hash ranges; the owner's thread."""


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Changes of keys that left memory between two freezes, in order, as rows of a segment."""

    spec: StateSpec
    parts: tuple[pa.Table, ...]

    @property
    def memory_bytes(self) -> int:
        """The bytes of the rows."""
        return sum(part.nbytes for part in self.parts)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the effective rows, sorted by hash; any thread."""
        yield newest_rows(pa.concat_tables(self.parts), self.spec.segment_schema, keep_deleted=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeResources:
    """Resources for encoding in bounded memory: the batch size, a local file for the result, and the memory budget."""

    directory: Path
    #: Name of the file and of the holder in the budget.
    name: str
    #: Rows of a batch.
    rows: int
    budget: MemoryBudget

    def report_work(self, ordered: int, piece: int, columns: int) -> None:
        """Report the memory for `ordered` sorted rows and a batch of `piece` rows to the budget."""
        held = ordered * _ORDER_BYTES + piece * columns * _CELL_BYTES
        self.budget.work(f"{self.name}/encode", held)


class FrozenSegment:
    """The rows frozen at one position of the log, until they are durable."""

    def __init__(
        self,
        spec: StateSpec,
        position: int,
        rows: FrozenContent,
        room: EncodeResources | None = None,
        *,
        wide: bool = True,
        limits: StateLimits = PRODUCTION,
    ) -> None:
        """Hold `rows`; with `room` they are encoded in bounded memory, without `wide` in small row groups."""
        self.position = position
        self._wide = wide
        self._limits = limits
        self._room = room
        self._spec = spec
        self._rows: FrozenContent | None = rows
        self._spilled: Path | None = None
        self._about: EncodedSegment | None = None
        #: The spilled file, opened by the first read.
        self._opened: SegmentFile | None = None

    @property
    def memory_bytes(self) -> int:
        """The bytes held in memory."""
        return 0 if self._rows is None else self._rows.memory_bytes

    @property
    def about(self) -> EncodedSegment | None:
        """Description of the encoded file, without its bytes; None: it was not encoded yet."""
        return self._about

    @property
    def in_memory(self) -> bool:
        """Whether the rows are still in memory, not encoded on the local disk."""
        return self._rows is not None

    @property
    def batched(self) -> bool:
        """Whether the rows in memory can be read by hash ranges."""
        return isinstance(self._rows, BatchedContent)

    @property
    def durable(self) -> bool:
        """Whether the segment is durable, so that no rows are held."""
        return self._rows is None and self._spilled is None

    def encode(self) -> EncodedSegment | None:
        """Return the Parquet file; None if the segment has become durable."""
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
        if room is None or not isinstance(rows, BatchedContent):
            writer = SegmentWriter(schema, self.position, wide=self._wide, limits=self._limits)
            for table in rows.whole():
                writer.add(table)
            return writer.finish()
        path = room.directory / f"{room.name}-{self.position}.encoding"
        writer = SegmentWriter(schema, self.position, path=path, wide=self._wide, limits=self._limits)
        try:
            for table in rows.tables(room.rows):
                room.report_work(rows.ordered_rows, table.num_rows, len(schema))
                writer.add(table)
            return writer.finish()
        finally:
            writer.close()
            path.unlink(missing_ok=True)
            room.report_work(0, 0, 0)

    def spill(self, path: Path) -> None:
        """Encode now and replace the rows in memory by a file on the local disk."""
        encoded = self.encode()
        if encoded is not None:
            path.write_bytes(encoded.data)
            self._spilled, self._rows = path, None

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows in some hash ranges, until they are durable; the owner's thread."""
        rows, spilled, about = self._rows, self._spilled, self._about
        if spilled is not None and about is not None:
            if self._opened is None:
                self._opened = _opened(about, mapped(spilled), self._limits)
            for wanted in ranges:
                yield from self._opened.tables(wanted)
        elif isinstance(rows, BatchedContent):
            yield from rows.within(ranges)

    def named(self, file: FileRef, writer: str) -> Segment:
        """Return the manifest entry of the segment, and release the rows."""
        about = self._about
        if about is None:
            raise RuntimeError(f"segment {self.position} was marked durable before it was encoded")
        self._rows = self._opened = None
        if self._spilled is not None:
            self._spilled.unlink(missing_ok=True)
            self._spilled = None
        return segment_of(about, file, writer)


def _opened(about: EncodedSegment, data: bytes, limits: StateLimits) -> SegmentFile:
    return SegmentFile(segment_of(about, FileRef(inline=b"", length=len(data)), ""), lambda _: data, limits)


class FrozenTable:
    """One table at one barrier.

    Pages are copied by the owner's thread in steps; encoding runs in the background.
    """

    def __init__(self, source: FrozenSource, view: LogView, segments: tuple[FrozenSegment, ...]) -> None:
        """Take the log's view; `segments` are those of it that were not durable at the barrier."""
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
        """The bytes of the copied pages."""
        return sum(s.memory_bytes for s in self._segments)

    def copy_pages(self, limit: int) -> bool:
        """Copy up to `limit` frozen pages; True when none is left."""
        memory = self._source.memory
        return memory is None or memory.copy_frozen(limit, self._last)

    def encode(self) -> tuple[EncodedSegment, ...]:
        """Return all segments up to the barrier that are not durable yet."""
        return tuple(e for s in self._segments if (e := s.encode()) is not None)

    def durable(self, files: Mapping[int, FileRef]) -> None:
        """Record the stored files in the log."""
        for segment in self._segments:
            if segment.position in files and not segment.durable:
                named = segment.named(files[segment.position], self._source.writer)
                self._source.log.uploaded(segment.position, named)

    def failed(self) -> None:
        """Handle an abandoned upload: the segments stay in the log, and the next freeze offers them again."""

    def snapshot(self) -> KeyedStateSnapshot:
        """Return the snapshot for the acknowledgement."""
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
    """The memory of a table whose frozen pages have to be copied in steps."""

    def copy_frozen(self, limit: int, up_to: int) -> bool:
        """Copy up to `limit` pages of the freezes numbered at most `up_to`; True when none is left."""


class FrozenSource:
    """The properties of a table that its frozen state uses; `memory` is replaced when the table is rebuilt."""

    def __init__(self, names: tuple[str, str, str], spec: StateSpec, log: SegmentLog, directory: Path) -> None:
        """Set the names of operator, state and writer of segments, the log, and the folder for spilled segments."""
        self.uid, self.state, self.writer = names
        self.directory = directory
        self.spec = spec
        self.log = log
        #: Whether remote state reads the rows a few at a time.
        self.remote = False
        #: The time-to-live of its rows, if they have one.
        self.ttl: Ttl | None = None
        #: Pages that have to be copied before they are overwritten; None: frozen rows are never overwritten.
        self.memory: FrozenMemory | None = None
        #: The segments of the log that are not durable.
        self.pending = PendingSegments(self)

    @property
    def hash_range(self) -> HashRange:
        """The hash range of the subtask."""
        return self.log.hash_range

    @property
    def limits(self) -> StateLimits:
        """The size limits of the store."""
        return self.log.limits


class PendingSegments:
    """The segments of one state's log that are not durable."""

    def __init__(self, source: FrozenSource) -> None:
        """Start without segments."""
        self._source = source
        #: With it, segments are encoded in bounded memory.
        self.room: EncodeResources | None = None
        self._segments: list[FrozenSegment] = []
        #: Rows of keys that left memory since the last freeze: older than those in memory, and not in the log yet.
        self._gathered: list[pa.Table] = []

    def add(self, rows: FrozenContent, *, position: int | None = None, spilled: bool = False) -> FrozenSegment:
        """Append rows to the log as a segment, at a reserved position or the next one.

        With `spilled` they are encoded to the local disk now. Gathered rows come before them, in a segment.
        """
        self.flush()
        source, log = self._source, self._source.log
        position = log.next_position() if position is None else position
        log.append(position)
        wide, limits = not source.remote, source.limits
        segment = FrozenSegment(source.spec, position, rows, self.room, wide=wide, limits=limits)
        self._segments.append(segment)
        if spilled:
            self.spill(segment)
        return segment

    def spill(self, segment: FrozenSegment) -> None:
        """Encode a segment to a local file, which replaces its rows in memory until it is durable."""
        folder = self._source.directory
        folder.mkdir(parents=True, exist_ok=True)
        segment.spill(folder / f"{self._source.state}-{segment.position}.parquet")

    def gather(self, changes: Iterable[FrozenContent], most_bytes: int) -> None:
        """Hold changes of keys that leave memory; a later call of `add` or `flush` makes one segment of all.

        Above `most_bytes` they are encoded to the local disk now.
        """
        for rows in changes:
            self._hold([*self._gathered, *rows.whole()])
            if self.gathered_bytes > most_bytes:
                self.flush(spilled=True)

    def hide(self, up_to: int) -> None:
        """Hide all earlier rows of namespaces up to `up_to`, by a tombstone."""
        log = self._source.log
        self._hold([part.filter(pc.field(NAMESPACE) > up_to) for part in self._gathered])
        log.add_tombstone(log.hash_range, MIN_TIMESTAMP, up_to)

    def _hold(self, parts: list[pa.Table]) -> None:
        self._gathered = [part for part in parts if part.num_rows]
        self._source.log.gathering = bool(self._gathered)

    def flush(self, *, spilled: bool = False) -> None:
        """Append the gathered rows to the log as a segment; with `spilled` they are encoded to the local disk now."""
        gathered = tuple(self._gathered)
        self._hold([])
        if gathered:
            self.add(GatheredRows(self._source.spec, gathered), spilled=spilled)

    @property
    def gathered_bytes(self) -> int:
        """The bytes of the gathered rows."""
        return sum(part.nbytes for part in self._gathered)

    def frozen(self, changes: Iterable[FrozenContent] = ()) -> FrozenTable:
        """Return the log at this moment with these changes, and the segments that are not durable."""
        self.flush()
        for rows in changes:
            self.add(rows)
        return FrozenTable(self._source, self._source.log.view(), tuple(self._undurable()))

    @property
    def waiting(self) -> bool:
        """Whether segments may wait for an upload."""
        return bool(self._segments)

    @property
    def memory_bytes(self) -> int:
        """The bytes held in memory."""
        return self.gathered_bytes + sum(segment.memory_bytes for segment in self._undurable())

    def within(self, position: int, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows frozen at a position in some hash ranges, until they are durable.

        Segments in memory that cannot be read by ranges are first encoded to the local disk, and stay there.
        """
        for segment in self._undurable():
            if segment.position == position:
                if segment.in_memory and not segment.batched:
                    self.spill(segment)
                yield from segment.within(ranges)

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, lowest and highest namespace and rows of each segment that is not durable.

        Segments in memory are first encoded to the local disk, and stay there.
        """
        for segment in self._undurable():
            if segment.in_memory:
                self.spill(segment)
            about = segment.about
            if about is not None:
                yield segment.position, about.namespace_min, about.namespace_max, about.rows

    def clear(self) -> None:
        """Forget all segments and gathered rows."""
        self._segments = []
        self._hold([])

    def _undurable(self) -> list[FrozenSegment]:
        self._segments = [segment for segment in self._segments if not segment.durable]
        return self._segments
