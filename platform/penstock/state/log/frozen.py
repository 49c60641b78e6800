"""The frozen state of one barrier, the segments of a log that are not durable, and the compaction of durable ones.

Made by `state.store` and a table's `freeze` in the owner's thread; only `encode` and a compaction may run elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment
from penstock.state.log.segment_columns import NAMESPACE
from penstock.state.log.segment_file import SegmentFile, rows_within
from penstock.state.log.segments import EncodedSegment, SegmentWriter, mapped, merge_segments, newest_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.core.keygroup import HashRange
    from penstock.state.log.arrival import PartialRestore
    from penstock.state.log.segment_columns import StateSpec
    from penstock.state.log.segment_log import LogView, SegmentLog
    from penstock.state.log.ttl import Ttl
    from penstock.state.memory.budget import MemoryBudget
    from penstock.state.memory.limits import StateLimits

#: The columns of the state.
SpecT_co = TypeVar("SpecT_co", bound="StateSpec", covariant=True)
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
    """Changes of keys that left memory between two freezes, as rows of a segment.

    The parts are in order, and each is sorted by hash.
    """

    source: FrozenSource[StateSpec]
    #: In local files: rows of later namespaces than the given one.
    filed: tuple[tuple[pa.Table, int], ...]
    #: In memory, after them.
    parts: tuple[pa.Table, ...]

    @property
    def memory_bytes(self) -> int:
        """The bytes of the rows in memory."""
        return sum(part.nbytes for part in self.parts)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the effective rows, sorted by hash, in tables of a bounded size; any thread."""
        source, every = self.source, [*self.filed, *((part, MIN_TIMESTAMP) for part in self.parts)]
        rows = sum(part.num_rows for part, _ in every)
        for span in source.hash_range.split(1 + rows // source.limits.encoded_rows):
            near = [found for part, hidden in every if (found := _within(part, span, hidden)).num_rows]
            if near:
                yield newest_rows(pa.concat_tables(near), source.spec.segment_schema, keep_deleted=True)


def _within(part: pa.Table, span: HashRange, hidden: int) -> pa.Table:
    """Return the rows in a hash range, of later namespaces than `hidden`."""
    found = rows_within(part, span)
    return found if hidden == MIN_TIMESTAMP else found.filter(pc.field(NAMESPACE) > hidden)


def _filed(parts: Sequence[pa.Table], path: Path) -> Iterator[pa.Table]:
    """Yield tables again after writing them to a local file, which is removed: their bytes are mapped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part)
    file = pa.ipc.open_file(pa.py_buffer(mapped(path)))
    path.unlink()
    for number in range(file.num_record_batches):
        yield pa.Table.from_batches([file.get_batch(number)])


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeResources:
    """Resources for encoding in bounded memory: the batch size, and the holder in the memory budget."""

    holder: str
    #: Rows of a batch.
    rows: int
    budget: MemoryBudget

    def batches(self, content: BatchedContent, columns: int) -> Iterator[pa.Table]:
        """Yield the rows of content in batches; the budget knows the memory for the sorted rows and the batch."""
        try:
            for table in content.tables(self.rows):
                held = content.ordered_rows * _ORDER_BYTES + table.num_rows * columns * _CELL_BYTES
                self.budget.work(f"{self.holder}/encode", held)
                yield table
        finally:
            self.budget.work(f"{self.holder}/encode", 0)


class FrozenSegment:
    """The rows frozen at one position of the log, until they are durable."""

    def __init__(self, source: FrozenSource[StateSpec], position: int, rows: FrozenContent) -> None:
        """Hold `rows`."""
        self.position = position
        #: The manifest entry of the encoded file, without file and writer; None: it was not encoded yet.
        self.about: Segment | None = None
        self._source = source
        self._rows: FrozenContent | None = rows
        self._spilled: Path | None = None
        #: The spilled file, opened by the first read.
        self._opened: SegmentFile | None = None

    @property
    def memory_bytes(self) -> int:
        """The bytes held in memory."""
        return 0 if self._rows is None else self._rows.memory_bytes

    @property
    def durable(self) -> bool:
        """Whether the segment is durable, so that no rows are held."""
        return self._rows is None and self._spilled is None

    def encode(self) -> EncodedSegment | None:
        """Return the Parquet file; None if the segment has become durable."""
        rows, spilled, about = self._rows, self._spilled, self.about
        if spilled is not None and about is not None:
            try:
                return EncodedSegment(about, mapped(spilled))
            except FileNotFoundError:
                if self.durable:  # an earlier barrier's upload has just finished
                    return None
                raise
        if rows is None:
            return None
        encoded = self._encoded(rows)
        self.about = encoded.entry
        return encoded

    def _encoded(self, rows: FrozenContent) -> EncodedSegment:
        source, room, schema = self._source, self._source.room, self._source.spec.segment_schema
        if room is None or not isinstance(rows, BatchedContent):
            tables, in_file = rows.whole(), isinstance(rows, GatheredRows) and bool(rows.filed)
        else:
            tables, in_file = room.batches(rows, len(schema)), True
        folder = source.directory if in_file else None
        writer = SegmentWriter(schema, self.position, folder=folder, wide=not source.remote, limits=source.limits)
        return writer.write(tables)

    def spill(self) -> None:
        """Encode rows in memory now: a local file replaces them until the segment is durable."""
        encoded = None if self._rows is None else self.encode()
        if encoded is not None:
            self._source.directory.mkdir(parents=True, exist_ok=True)
            path = self._source.directory / f"{self._source.state}-{self.position}.parquet"
            path.write_bytes(encoded.data)
            self._spilled, self._rows = path, None

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows in some hash ranges, until they are durable; the owner's thread.

        Rows in memory that cannot be read by ranges are spilled.
        """
        if isinstance(self._rows, BatchedContent):
            yield from self._rows.within(ranges)
            return
        self.spill()
        spilled, about = self._spilled, self.about
        if spilled is not None and about is not None:
            if self._opened is None:
                self._opened = _opened(about, mapped(spilled), self._source.limits)
            yield from self._opened.tables_of(self._opened.within_any(ranges), ranges)

    def named(self, file: FileRef, writer: str) -> Segment:
        """Return the manifest entry of the segment, and release the rows."""
        about = self.about
        if about is None:
            raise RuntimeError(f"segment {self.position} was marked durable before it was encoded")
        self._rows = self._opened = None
        if self._spilled is not None:
            self._spilled.unlink(missing_ok=True)
            self._spilled = None
        return msgspec.structs.replace(about, file=file, writer=writer)


def _opened(about: Segment, data: bytes, limits: StateLimits) -> SegmentFile:
    in_memory = msgspec.structs.replace(about, file=FileRef(inline=b"", length=len(data)))
    return SegmentFile(in_memory, lambda _: data, limits)


class FrozenTable:
    """One table at one barrier.

    Pages are copied by the owner's thread in steps; encoding runs in the background.
    """

    def __init__(self, source: FrozenSource[StateSpec], view: LogView, segments: tuple[FrozenSegment, ...]) -> None:
        """Take the log's view; `segments` are those of it that were not durable at the barrier."""
        self._source = source
        #: The log at the barrier.
        self.view = view
        self._segments = segments
        self._last = max((s.position for s in segments), default=0)

    @property
    def memory_bytes(self) -> int:
        """The bytes of the copied pages."""
        return sum(s.memory_bytes for s in self._segments)

    def copy_pages(self, limit: int) -> bool:
        """Copy up to `limit` frozen pages; True when none is left."""
        copy = self._source.copy_frozen
        return copy is None or copy(limit, self._last)

    def encode(self) -> tuple[EncodedSegment, ...]:
        """Return all segments up to the barrier that are not durable yet."""
        return tuple(e for s in self._segments if (e := s.encode()) is not None)

    def durable(self, files: Mapping[int, FileRef]) -> None:
        """Record the stored files in the log."""
        for segment in self._segments:
            if segment.position in files and not segment.durable:
                named = segment.named(files[segment.position], self._source.writer)
                self._source.log.uploaded(segment.position, named)

    def snapshot(self) -> KeyedStateSnapshot:
        """Return the snapshot for the acknowledgement."""
        segments, tombstones = self.view.named()
        source = self._source
        return KeyedStateSnapshot(
            uid=source.uid,
            state=source.state,
            schema=source.schema_text,
            hash_low=source.hash_range.low,
            hash_high=source.hash_range.high,
            segments=segments,
            tombstones=tombstones,
        )


class FrozenSource(Generic[SpecT_co]):
    """The log of one table, and its segments that are not durable; `copy_frozen` is replaced when it is rebuilt."""

    def __init__(self, names: tuple[str, str, str], spec: SpecT_co, log: SegmentLog, directory: Path) -> None:
        """Set the names of operator, state and writer of segments, the log, and the folder for spilled segments."""
        self.uid, self.state, self.writer = names
        self.directory = directory
        self.spec = spec
        #: The schema of its segments, as in a manifest.
        self.schema_text = schema_to_text(spec.segment_schema)
        self.log = log
        #: Whether remote state reads the rows a few at a time.
        self.remote = False
        #: The restore of the rows, if the operator processes rows during it.
        self.restore: PartialRestore | None = None
        #: The time-to-live of its rows, if they have one.
        self.ttl: Ttl | None = None
        #: Copies up to so many frozen pages of the freezes up to a number, before they are overwritten; whether none is
        #: left. None: frozen rows are never overwritten.
        self.copy_frozen: Callable[[int, int], bool] | None = None
        #: With it, segments are encoded in bounded memory.
        self.room: EncodeResources | None = None
        #: The segments of the log that are not durable.
        self._segments: list[FrozenSegment] = []
        #: Rows of keys that left memory since the last freeze: older than those in memory, and not in the log yet. The
        #: oldest are in local files, and of these only rows of later namespaces than the given one count.
        self._gathered: list[pa.Table] = []
        self._filed: list[tuple[pa.Table, int]] = []

    @property
    def hash_range(self) -> HashRange:
        """The hash range of the subtask."""
        return self.log.hash_range

    @property
    def deadline(self) -> int | None:
        """The time of last access up to which its rows have expired; None without a time-to-live."""
        return None if self.ttl is None else self.ttl.deadline

    @property
    def limits(self) -> StateLimits:
        """The size limits of the store."""
        return self.log.limits

    # --- segments that are not durable ------------------------------------------------------------------------------

    def add(self, rows: FrozenContent, *, position: int | None = None, spilled: bool = False) -> FrozenSegment:
        """Append rows to the log as a segment, at a reserved position or the next one.

        With `spilled` they are encoded to the local disk now. Gathered rows come before them, in a segment.
        """
        self.flush()
        log = self.log
        position = log.next_position() if position is None else position
        log.append(position)
        segment = FrozenSegment(self, position, rows)
        self._segments.append(segment)
        if spilled:
            segment.spill()
        return segment

    def gather(self, changes: Iterable[FrozenContent], most_bytes: int) -> None:
        """Hold changes of keys that leave memory; a later call of `add` or `flush` makes one segment of all.

        Above `most_bytes` they move to a local file.
        """
        for rows in changes:
            self._gathered += [part for part in rows.whole() if part.num_rows]
        if self.gathered_bytes > most_bytes:
            path = self.directory / f"{self.state}.gathered"
            self._filed += [(part, MIN_TIMESTAMP) for part in _filed(self._gathered, path)]
            self._gathered = []
        self.log.gathering = bool(self._gathered or self._filed)

    def hide(self, up_to: int) -> None:
        """Hide all earlier rows of namespaces up to `up_to`, by a tombstone."""
        self._filed = [(part, max(hidden, up_to)) for part, hidden in self._filed]
        left = (part.filter(pc.field(NAMESPACE) > up_to) for part in self._gathered)
        self._gathered = [part for part in left if part.num_rows]
        self.log.gathering = bool(self._gathered or self._filed)
        self.log.add_tombstone(self.log.hash_range, MIN_TIMESTAMP, up_to)

    def flush(self, *, spilled: bool = False) -> None:
        """Append the gathered rows to the log as a segment; with `spilled` they are encoded to the local disk now."""
        gathered = GatheredRows(self, tuple(self._filed), tuple(self._gathered))
        self._drop_gathered()
        if gathered.filed or gathered.parts:
            self.add(gathered, spilled=spilled)

    def _drop_gathered(self) -> None:
        self._gathered, self._filed, self.log.gathering = [], [], False

    @property
    def gathered_bytes(self) -> int:
        """The bytes of the gathered rows in memory."""
        return sum(part.nbytes for part in self._gathered)

    def frozen(self, changes: Iterable[FrozenContent] = ()) -> FrozenTable:
        """Return the log at this moment with these changes, and the segments that are not durable."""
        self.flush()
        for rows in changes:
            self.add(rows)
        return FrozenTable(self, self.log.view(), tuple(self._undurable()))

    @property
    def waiting(self) -> bool:
        """Whether segments may wait for an upload."""
        return bool(self._segments)

    @property
    def memory_bytes(self) -> int:
        """The bytes of rows in memory that are not durable."""
        return self.gathered_bytes + sum(segment.memory_bytes for segment in self._undurable())

    def within(self, position: int, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows frozen at a position in some hash ranges, until they are durable."""
        for segment in self._undurable():
            if segment.position == position:
                yield from segment.within(ranges)

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, lowest and highest namespace and rows of each segment that is not durable.

        Segments in memory are first encoded to the local disk, and stay there.
        """
        for segment in self._undurable():
            segment.spill()
            if (about := segment.about) is not None:
                yield segment.position, about.namespace_min, about.namespace_max, about.rows

    def clear(self) -> None:
        """Forget all segments and gathered rows."""
        self._segments = []
        self._drop_gathered()

    def _undurable(self) -> list[FrozenSegment]:
        self._segments = [segment for segment in self._segments if not segment.durable]
        return self._segments


class CompactionJob:
    """A run of committed segments of one tier to be merged.

    Call `run` in the background, then `KeyedState.compacted` in the owner's thread.
    """

    def __init__(self, source: FrozenSource[StateSpec], inputs: tuple[Segment, ...], tier: int) -> None:
        """Record the tombstones of this moment; later ones hide rows of the merged segment by their position."""
        self._source = source
        self.state = source.state
        #: The segments that are merged, oldest first.
        self.inputs = inputs
        self._tier = tier
        self._tombstones = source.log.tombstones
        self._oldest = source.log.is_oldest(inputs)
        self._expired = source.deadline
        self.result: EncodedSegment | None = None

    def run(self, read: Callable[[FileRef], bytes]) -> EncodedSegment:
        """Read, merge and encode, one hash range at a time; the result gets the position of the newest input."""
        folder, schema, limits = self._source.directory, self._source.spec.segment_schema, self._source.limits
        files = [SegmentFile(segment, read, limits) for segment in self.inputs]
        folder.mkdir(parents=True, exist_ok=True)
        keep_deleted, expired = not self._oldest, self._expired
        merged = merge_segments(
            files, self._tombstones, schema, within=ALL_HASHES, keep_deleted=keep_deleted, expired=expired
        )
        writer = SegmentWriter(schema, self.inputs[-1].position, self._tier, folder=folder, limits=limits)
        self.result = writer.write(merged)
        return self.result
