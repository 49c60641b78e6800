"""Segments: Parquet files of state rows sorted by `__key_hash`; writing, reading by hash range, and merging by order.

Order is (position in the log, `__seq`): of the rows of one (key, namespace) the last one counts, rows that stand before
a tombstone in whose ranges they lie are gone. Called by freeze, restore, compaction, the savepoint writer and the
offline tools; any thread.
"""

from __future__ import annotations

import io
import mmap
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.evolution import conform
from penstock.core.keygroup import HASH_MAX, HASH_MIN, HashRange
from penstock.core.schema import schema_from_text
from penstock.kernels.columns import key_columns
from penstock.state.accumulators import DELETED, FIRST_ENTRY, KEY_HASH, LAST_ACCESS, NAMESPACE, ROW, SEQ
from penstock.state.entry_order import last_entries
from penstock.state.key_index import KeyIndex
from penstock.state.keyed import EncodedSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment, Tombstone
    from penstock.kernels.compile import I64

ROW_GROUP = 65_536
#: A smaller file is read back instead of mapped.
_MAPPED_BYTES = 128 << 10
#: Rows merged at a time; more segments than memory holds are merged hash range by hash range.
_MERGE_ROWS = 1_000_000
#: No more bytes of different hashes are merged at a time: a column of strings must not have 2 GiB.
_MERGE_BYTES = 1 << 30
_KEY_IDS = range(101, FIRST_ENTRY)
_ENTRY_IDS = range(FIRST_ENTRY, 1001)


class SegmentWriter:
    """Writes one segment; rows must come in the order of their hash."""

    def __init__(self, schema: pa.Schema, position: int, tier: int = 0, *, path: Path | None = None) -> None:
        """Start a file of `schema` (see `PaneTableSpec.segment_schema`), in memory or under `path`."""
        self._schema = schema
        self._position = position
        self._tier = tier
        self._path = path
        self._out = io.BytesIO() if path is None else path.open("w+b")
        self._writer = pq.ParquetWriter(self._out, schema, use_dictionary=False, **_layout(schema))
        self._rows = 0
        self._hashes = [HASH_MAX, HASH_MIN]
        self._namespaces = [HASH_MAX, HASH_MIN]

    def add(self, table: pa.Table) -> None:
        """Append rows; `__seq` is counted anew."""
        rows = table.num_rows
        if rows == 0:
            return
        place = self._schema.get_field_index(SEQ)
        seq = pa.array(np.arange(self._rows, self._rows + rows))
        table = table.set_column(place, self._schema.field(place), seq)
        self._rows += rows
        for column, span in ((KEY_HASH, self._hashes), (NAMESPACE, self._namespaces)):
            values = table.column(column).to_numpy()
            span[0], span[1] = min(span[0], int(values.min())), max(span[1], int(values.max()))
        self._writer.write_table(table, row_group_size=ROW_GROUP)

    def finish(self) -> EncodedSegment:
        """Return the file; without any row its ranges are empty (lowest above highest).

        One under a path has no name any more and is mapped: its bytes are the page cache's, not this process's.
        """
        self._writer.close()
        return EncodedSegment(
            position=self._position,
            data=self._data(),
            rows=self._rows,
            hash_min=self._hashes[0],
            hash_max=self._hashes[1],
            namespace_min=self._namespaces[0],
            namespace_max=self._namespaces[1],
            tier=self._tier,
        )

    def _data(self) -> bytes:
        if isinstance(self._out, io.BytesIO):
            return self._out.getvalue()
        assert self._path is not None  # noqa: S101 - for the type checker
        with self._out as out:
            out.flush()
            self._path.unlink()
            if out.tell() < _MAPPED_BYTES:
                out.seek(0)
                return out.read()
            return cast("bytes", mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ))  # written and sliced as bytes are


def _layout(schema: pa.Schema) -> dict[str, Any]:
    """Return encodings and compressions: integers by their differences, the rest by zstd; hashes are noise."""
    packed = [f.name for f in schema if f.name != KEY_HASH and pt.is_int64(f.type)]
    rest = {f.name: "zstd" for f in schema if f.name != KEY_HASH and not pt.is_int64(f.type)}
    return {
        "column_encoding": dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
        "compression": {**rest, KEY_HASH: "none", **dict.fromkeys(packed, "none")},
        "compression_level": dict.fromkeys(rest, 1),
    }


def key_names(schema: pa.Schema) -> tuple[str, ...]:
    """Return the key columns of a segment's schema, by their field ids."""
    return _names(schema, _KEY_IDS)


def entry_names(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that tell a key's elements of a list or entries of a map apart; none for other states."""
    return _names(schema, _ENTRY_IDS)


def _names(schema: pa.Schema, ids: range) -> tuple[str, ...]:
    return tuple(f.name for f in schema if int((f.metadata or {}).get(b"id", b"0")) in ids)


def read_segment(data: bytes, within: HashRange) -> Iterator[pa.Table]:
    """Yield the rows whose hash lies in the range, a row group at a time; groups outside are not read."""
    file = pq.ParquetFile(io.BytesIO(data))
    place = file.schema_arrow.get_field_index(KEY_HASH)
    for number in range(file.num_row_groups):
        stats = file.metadata.row_group(number).column(place).statistics
        if stats is not None and stats.has_min_max and (stats.min > within.high or stats.max < within.low):
            continue
        table = file.read_row_group(number, use_threads=False)
        hashes = table.column(KEY_HASH).to_numpy()
        first = int(np.searchsorted(hashes, within.low, side="left"))
        stop = int(np.searchsorted(hashes, within.high, side="right"))
        if stop > first:
            yield table.slice(first, stop - first)


def clip_of(segment: Segment, within: HashRange) -> HashRange | None:
    """Return the part of `within` that the segment may be read for."""
    return HashRange(segment.clip_low, segment.clip_high).intersect(within)


def visible_rows(hashes: I64, namespaces: I64, position: int, tombstones: Iterable[Tombstone]) -> np.ndarray:
    """Return which rows of a segment at `position` no tombstone hides."""
    visible = np.ones(len(hashes), np.bool_)
    for stone in tombstones:
        if stone.position > position:
            hidden = (hashes >= stone.hash_low) & (hashes <= stone.hash_high)
            hidden &= (namespaces >= stone.namespace_low) & (namespaces <= stone.namespace_high)
            visible &= ~hidden
    return visible


def read_visible(
    data: bytes, segment: Segment, tombstones: Sequence[Tombstone], within: HashRange
) -> Iterator[pa.Table]:
    """Yield the segment's rows within its clip and the range that no tombstone hides.

    Deletions are still among them.
    """
    clip = clip_of(segment, within)
    if clip is None:
        return
    for table in read_segment(data, clip):
        hashes, namespaces = table.column(KEY_HASH).to_numpy(), table.column(NAMESPACE).to_numpy()
        visible = visible_rows(hashes, namespaces, segment.position, tombstones)
        if visible.all():
            yield table
        elif visible.any():
            yield table.filter(pa.array(visible))


def merge_segments(
    sources: Sequence[tuple[Segment, bytes]],
    tombstones: Sequence[Tombstone],
    schema: pa.Schema,
    *,
    within: HashRange,
    keep_deleted: bool,
    expired: int | None = None,
) -> Iterator[pa.Table]:
    """Yield the newest visible row of every (key, namespace), sorted by hash, in pieces of bounded size.

    With a time-to-live, what was last accessed at `expired` or before is deleted.
    """
    ordered = sorted(sources, key=lambda source: source[0].position)
    total = sum(segment.rows for segment, _ in ordered)
    parts = max(1, -(-total // _MERGE_ROWS))
    step = (within.high - within.low + 1) // parts + 1
    low = within.low
    while low <= within.high:
        piece = HashRange(low, min(low + step - 1, within.high))
        tables = [t for segment, data in ordered for t in read_visible(data, segment, tombstones, piece)]
        for part in _cut(tables):
            every = pa.concat_tables([conform(table, schema) for table in part])
            merged = _newest(every if expired is None else _expired(every, expired), schema, keep_deleted=keep_deleted)
            if merged.num_rows:
                yield merged
        low = piece.high + 1


def _cut(tables: list[pa.Table]) -> Iterator[list[pa.Table]]:
    """Yield the rows hash range by hash range, so few that they can be merged; those of one hash stay together.

    Each of the tables is sorted by hash.
    """
    if sum(table.nbytes for table in tables) > _MERGE_BYTES:
        columns = [table.column(KEY_HASH).to_numpy() for table in tables]
        hashes = np.sort(np.concatenate(columns))
        middle = int(hashes[len(hashes) // 2])
        if middle == hashes[0] and middle < hashes[-1]:
            middle = int(hashes[np.searchsorted(hashes, middle, side="right")])
        if middle > hashes[0]:
            stops = [int(np.searchsorted(column, middle)) for column in columns]
            yield from _cut([t.slice(0, stop) for t, stop in zip(tables, stops, strict=True) if stop])
            yield from _cut([t.slice(stop) for t, stop in zip(tables, stops, strict=True) if stop < t.num_rows])
            return
    if tables:
        yield tables


def _expired(table: pa.Table, until: int) -> pa.Table:
    """Return the rows with those deleted that were last accessed at `until` or before."""
    old = pc.less_equal(table.column(LAST_ACCESS), until).fill_null(False)
    place = table.schema.get_field_index(DELETED)
    return table.set_column(place, table.schema.field(place), pc.or_(table.column(DELETED), old))


def _newest(table: pa.Table, schema: pa.Schema, *, keep_deleted: bool) -> pa.Table:
    """Keep the last row of every (key, namespace), or (key, namespace, `__row`) or entry; rows come in order."""
    names = (*key_names(schema), *(name for name in (NAMESPACE, ROW) if name in schema.names))
    batch = table.combine_chunks().to_batches(max_chunksize=table.num_rows)[0]
    hashes = table.column(KEY_HASH).to_numpy()
    namespaces = table.column(NAMESPACE).to_numpy()
    mixed = hashes ^ (namespaces.view(np.uint64) * np.uint64(0x9E3779B185EBCA87)).view(np.int64)
    if ROW in names:  # not part of the hash, and the same key may have many
        mixed ^= (table.column(ROW).to_numpy().view(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)).view(np.int64)
    index = KeyIndex(pa.schema([schema.field(n) for n in names]))
    slots = index.upsert(key_columns(batch, names), mixed)
    entries = [batch.column(name) for name in entry_names(schema)]
    if entries:
        last = last_entries(slots, entries)
    else:
        last = np.empty(index.count, np.int64)
        last[slots] = np.arange(len(slots))  # of equal slots the last assignment stays
    if not keep_deleted:
        deleted = table.column(DELETED).to_numpy()
        last = last[~deleted[last]]
    last = last[np.lexsort((last, hashes[last]))]
    return table.take(pa.array(last))


def read_state(
    snapshot: KeyedStateSnapshot, read: Callable[[FileRef], bytes], within: HashRange | None = None
) -> Iterator[pa.Table]:
    """Yield the rows a snapshot of one state means, sorted by hash.

    What a savepoint writes and the offline reader shows.

    `read` returns a file's bytes, already verified against its checksum.
    """
    schema = schema_from_text(snapshot.schema)
    own = HashRange(snapshot.hash_low, snapshot.hash_high)
    asked = own if within is None else own.intersect(within)
    if asked is None:
        return
    sources = [(s, read(s.file)) for s in snapshot.segments if clip_of(s, asked) is not None]
    yield from merge_segments(sources, snapshot.tombstones, schema, within=asked, keep_deleted=False)
