"""Segments, Parquet files of state rows sorted by `__key_hash`.

Writing, the encoded form, merging and the rows that count.

Called by freeze, restore, compaction, the savepoint writer and the offline tools; any thread.
"""

from __future__ import annotations

import io
import mmap
import tempfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.evolution import FIRST_VALUE_ID, conform_table, field_id
from penstock.core.keygroup import HASH_MAX, HASH_MIN, HashRange
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import FileRef, Segment
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_column, key_columns
from penstock.kernels.rows.row_order import hash_order, sort_hashes
from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import (
    DELETED,
    KEY_HASH,
    LAST_ACCESS,
    NAMESPACE,
    ROW,
    SEQ,
    entry_names,
    key_names,
    one_batch,
)
from penstock.state.log.segment_file import GROUPS, NAMESPACES, SegmentFile, has_hash_in
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from penstock.core.snapshot import KeyedStateSnapshot, Tombstone
    from penstock.kernels.compiler.compile import I32, I64


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """A Parquet file that is ready for upload, and its manifest entry without file and writer."""

    entry: Segment
    data: bytes

    @property
    def position(self) -> int:
        """The file's place in the log."""
        return self.entry.position

    def stored(self, file: FileRef, writer: str) -> Segment:
        """Return the manifest entry of the file, which is stored in `file`."""
        return msgspec.structs.replace(self.entry, file=file, writer=writer)


_OWNER = "__owner"


def last_entries(owners: I32, entries: Sequence[pa.Array]) -> I64:
    """Return the positions of the rows that count, ascending, with deletions and the last clearing of an owner.

    Args:
        owners: of each row a small number that stands for its key and namespace; rows come in order.
        entries: the entry columns, all null in a row that clears.
    """
    rows = len(owners)
    if rows == 0:
        return np.empty(0, np.int64)
    names = [f"e{i}" for i in range(len(entries))]
    columns = (
        key_column(pa.array(owners, pa.int64()), _OWNER),
        *(key_column(array, name) for array, name in zip(entries, names, strict=True)),
    )
    fields = [(_OWNER, pa.int64()), *((name, array.type) for name, array in zip(names, entries, strict=True))]
    index = KeyIndex(pa.schema(fields))
    ids = index.upsert(columns, hash_key_columns(columns, rows))
    last = np.empty(index.count, np.int64)
    last[ids] = np.arange(rows)  # for equal ids the last assignment wins
    last.sort()
    if entries[0].null_count:
        clearing = np.flatnonzero(entries[0].is_null().to_numpy(zero_copy_only=False))
        cleared = np.full(int(owners.max()) + 1, -1, np.int64)
        cleared[owners[clearing]] = clearing
        last = last[last >= cleared[owners[last]]]
    return last


#: Smaller files are read back instead of mapped.
_MAPPED_BYTES = 128 << 10
#: A file lists the namespaces of its rows if there are at most this many.
_NAMED = 1024
#: Hash, namespace, deleted, seq: a state without other columns besides the key has timers.
_FIXED_COLUMNS = 4


class SegmentWriter:
    """A writer of one segment; rows must arrive in hash order."""

    def __init__(
        self,
        schema: pa.Schema,
        position: int,
        tier: int = 0,
        *,
        folder: Path | None = None,
        wide: bool = False,
        limits: StateLimits = PRODUCTION,
    ) -> None:
        """Start a file of `schema` (see `PaneTableSpec.segment_schema`), in memory or without a name in `folder`."""
        self._group_rows = limits.encoded_rows if wide else limits.group_rows
        self._group_bytes = limits.group_bytes
        self._schema = schema
        self._position = position
        self._tier = tier
        self._out: BinaryIO = io.BytesIO()
        if folder is not None:
            self._out = cast("BinaryIO", tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - `close` does it
        self._sink = _Sink(self._out)
        self._writer = pq.ParquetWriter(self._sink, schema, use_dictionary=False, **_layout(schema))
        self._groups: list[tuple[int, ...]] = []
        #: For timers a row group is a time span, so that the due ones are in few groups.
        self._times = len(schema) == len(key_names(schema)) + _FIXED_COLUMNS
        self._named: set[int] | None = set()
        self._rows = 0
        self._hashes = [HASH_MAX, HASH_MIN]
        self._namespaces = [HASH_MAX, HASH_MIN]

    def add(self, table: pa.Table) -> None:
        """Append rows; `__seq` is renumbered."""
        rows = table.num_rows
        if rows == 0:
            return
        place = self._schema.get_field_index(SEQ)
        seq = pa.array(np.arange(self._rows, self._rows + rows))
        table = table.set_column(place, self._schema.field(place), seq)
        self._rows += rows
        hashes, namespaces = table.column(KEY_HASH).to_numpy(), table.column(NAMESPACE).to_numpy()
        _widen(self._hashes, int(hashes[0]), int(hashes[-1]))
        first_namespace, last_namespace = int(namespaces.min()), int(namespaces.max())
        _widen(self._namespaces, first_namespace, last_namespace)
        if self._named is not None:
            several = first_namespace != last_namespace  # most tables have one window
            self._named.update(np.unique(namespaces).tolist() if several else (first_namespace,))
            self._named = self._named if len(self._named) <= _NAMED else None
        most = min(self._group_rows, max(1, self._group_bytes * rows // table.nbytes))
        if self._times and rows > most:
            table = _by_time(table, most)
            hashes = table.column(KEY_HASH).to_numpy()
        for first in range(0, rows, most):
            start, stop = self._sink.begin(), min(first + most, rows)
            self._writer.write_table(table.slice(first, stop - first), row_group_size=most)
            low, high = int(hashes[first]), int(hashes[stop - 1])
            self._groups.append((start, self._sink.size - start, self._sink.crc, low, high, stop - first))

    def write(self, tables: Iterable[pa.Table]) -> EncodedSegment:
        """Append all tables, close the file and return it."""
        try:
            for table in tables:
                self.add(table)
            return self.finish()
        finally:
            self.close()

    def finish(self) -> EncodedSegment:
        """Return the file; if it has no row, its ranges are empty (lowest above highest).

        A file in a folder is mapped: its bytes belong to the page cache, not to this process.
        """
        about: dict[bytes, list[Any]] = {GROUPS: self._groups}
        if self._named is not None:
            about[NAMESPACES] = sorted(self._named)
        self._writer.add_key_value_metadata({name: msgspec.json.encode(found) for name, found in about.items()})
        start = self._sink.begin()
        self._writer.close()
        data = self._data()
        entry = Segment(
            file=FileRef(),
            position=self._position,
            writer="",
            rows=self._rows,
            hash_min=self._hashes[0],
            hash_max=self._hashes[1],
            namespace_min=self._namespaces[0],
            namespace_max=self._namespaces[1],
            tier=self._tier,
            footer_length=len(data) - start,
            footer_checksum=f"crc32:{self._sink.crc:08x}",
        )
        return EncodedSegment(entry, data)

    def close(self) -> None:
        """Close the file, also of an abandoned segment; idempotent."""
        if not self._out.closed:
            self._writer.close()
            self._out.close()

    def _data(self) -> bytes:
        if isinstance(self._out, io.BytesIO):
            return self._out.getvalue()
        with self._out as out:
            out.flush()
            if out.tell() < _MAPPED_BYTES:
                out.seek(0)
                return out.read()
            return _mapped(out)


def _widen(span: list[int], low: int, high: int) -> None:
    span[0], span[1] = min(span[0], low), max(span[1], high)


def mapped(path: Path) -> bytes:
    """Map a file that is not empty: its bytes belong to the page cache, also after it is removed.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    with path.open("rb") as file:
        return _mapped(file)


def _mapped(file: BinaryIO) -> bytes:
    return cast("bytes", mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # used like bytes: written and sliced


def _by_time(table: pa.Table, group_rows: int) -> pa.Table:
    """Regroup rows sorted by hash into row groups by time; the rows of a group stay sorted by hash."""
    group = np.empty(table.num_rows, np.int64)
    group[np.argsort(table.column(NAMESPACE).to_numpy(), kind="stable")] = np.arange(table.num_rows) // group_rows
    return table.take(pa.array(np.argsort(group, kind="stable")))


class _Sink:
    """The output file, with a checksum of the bytes since the last `begin`."""

    closed = False

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.size = 0
        self.crc = 0

    def begin(self) -> int:
        """Start a new checksum; return the file position."""
        self.crc = 0
        return self.size

    def write(self, data: bytes) -> int:
        """Write all of `data`."""
        self.crc = zlib.crc32(data, self.crc)
        self.size += len(data)
        return self._out.write(data)

    def writable(self) -> bool:
        """Return True, as Arrow requires."""
        return True

    def tell(self) -> int:
        """Return the file position."""
        return self.size

    def flush(self) -> None:
        """Do nothing: writes are not buffered here."""

    def close(self) -> None:
        """Do nothing: the caller that opened the file closes it."""


def _layout(schema: pa.Schema) -> dict[str, Any]:
    """Return encodings and compressions: integers delta-encoded, other columns zstd, hashes (random) plain."""
    packed = [f.name for f in schema if f.name != KEY_HASH and pt.is_int64(f.type)]
    rest = {f.name: "zstd" for f in schema if f.name != KEY_HASH and not pt.is_int64(f.type)}
    return {
        "column_encoding": dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
        "compression": {**rest, KEY_HASH: "none", **dict.fromkeys(packed, "none")},
        "compression_level": dict.fromkeys(rest, 1),
    }


def clip_of(segment: Segment, within: HashRange) -> HashRange | None:
    """Return the part of `within` for which the segment may be read."""
    return HashRange(segment.clip_low, segment.clip_high).intersect(within)


def read_visible(file: SegmentFile, tombstones: Sequence[Tombstone], within: HashRange) -> Iterator[pa.Table]:
    """Yield the segment's rows in its clip and a range that no tombstone hides, by row group.

    Deletions are included.
    """
    clip = clip_of(file.segment, within)
    if clip is None:
        return
    for table in file.tables(clip):
        shown = without_hidden(table, file.segment.position, tombstones)
        if shown.num_rows:
            yield shown


def without_hidden(table: pa.Table, position: int, tombstones: Sequence[Tombstone]) -> pa.Table:
    """Return the rows of a segment at `position` that no tombstone hides."""
    if not tombstones:
        return table
    hashes, namespaces = table.column(KEY_HASH).to_numpy(), table.column(NAMESPACE).to_numpy()
    visible = np.ones(len(hashes), np.bool_)
    for stone in tombstones:
        if stone.position > position:
            hidden = (hashes >= stone.hash_low) & (hashes <= stone.hash_high)
            hidden &= (namespaces >= stone.namespace_low) & (namespaces <= stone.namespace_high)
            visible &= ~hidden
    return table if visible.all() else table.filter(pa.array(visible))


def merge_segments(
    files: Sequence[SegmentFile],
    tombstones: Sequence[Tombstone],
    schema: pa.Schema,
    *,
    within: HashRange,
    keep_deleted: bool,
    expired: int | None = None,
) -> Iterator[pa.Table]:
    """Yield the newest visible row of every (key, namespace), sorted by hash, in tables of bounded rows and bytes.

    Only the row groups that a table needs are read. With a time-to-live, rows last accessed at `expired` or before
    become deletions.
    """
    ordered = sorted(files, key=lambda file: file.segment.position)
    span = _span([file.segment for file in ordered], within)
    if span is None:
        return
    limits = ordered[0].limits
    clips = [clip_of(file.segment, span) for file in ordered]
    sizes = [file.estimated(clip) for file, clip in zip(ordered, clips, strict=True) if clip is not None]
    rows, size = map(sum, zip(*sizes, strict=True))
    for piece in span.split(max(-(-rows // limits.merged_rows), -(-size // limits.merged_bytes))):
        tables = [table for file in ordered for table in read_visible(file, tombstones, piece)]
        for part in _merge_batches(tables, limits.merged_bytes):
            every = conformed(part, schema)
            merged = newest_rows(
                every if expired is None else _expired(every, expired), schema, keep_deleted=keep_deleted
            )
            if merged.num_rows:
                yield merged


def conformed(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of all tables with the columns of `schema`."""
    some = [table for table in tables if table.num_rows]
    if not some:
        return schema.empty_table()
    first = some[0].schema.remove_metadata()  # each file lists its row groups there; fields have their own
    if all(table.schema.remove_metadata().equals(first, check_metadata=True) for table in some):
        return conform_table(pa.concat_tables(some), schema)
    return pa.concat_tables([conform_table(table, schema) for table in some])


def _span(segments: Sequence[Segment], within: HashRange) -> HashRange | None:
    """Return the part of a range in which the segments have rows."""
    ranges = [clip_of(s, HashRange(s.hash_min, s.hash_max)) for s in segments if s.rows]
    low, high = min((r.low for r in ranges if r), default=1), max((r.high for r in ranges if r), default=0)
    return HashRange(low, high).intersect(within) if low <= high else None


def _merge_batches(tables: list[pa.Table], most_bytes: int) -> Iterator[list[pa.Table]]:
    """Yield the rows by hash range, few enough to be merged; rows of one hash stay together.

    Each of the tables is sorted by hash.
    """
    if sum(table.nbytes for table in tables) > most_bytes:
        columns = [table.column(KEY_HASH).to_numpy() for table in tables]
        hashes = np.sort(np.concatenate(columns))
        middle = int(hashes[len(hashes) // 2])
        if middle == hashes[0] and middle < hashes[-1]:
            middle = int(hashes[np.searchsorted(hashes, middle, side="right")])
        if middle > hashes[0]:
            stops = [int(np.searchsorted(column, middle)) for column in columns]
            yield from _merge_batches(
                [t.slice(0, stop) for t, stop in zip(tables, stops, strict=True) if stop], most_bytes
            )
            above = [t.slice(stop) for t, stop in zip(tables, stops, strict=True) if stop < t.num_rows]
            yield from _merge_batches(above, most_bytes)
            return
    if tables:
        yield tables


def slices_of_keys(table: pa.Table, most: int) -> Iterator[pa.Table]:
    """Yield rows sorted by hash in slices of about `most` rows; rows of one hash stay together."""
    hashes, first = table.column(KEY_HASH).to_numpy(), 0
    while first < len(hashes):
        last = hashes[min(first + most, len(hashes)) - 1]
        stop = int(np.searchsorted(hashes, last, side="right"))
        yield table.slice(first, stop - first)
        first = stop


def _expired(table: pa.Table, until: int) -> pa.Table:
    """Return the rows, with those last accessed at `until` or before turned into deletions."""
    old = pc.less_equal(table.column(LAST_ACCESS), until).fill_null(False)
    place = table.schema.get_field_index(DELETED)
    return table.set_column(place, table.schema.field(place), pc.or_(table.column(DELETED), old))


def newest_rows(table: pa.Table, schema: pa.Schema, *, keep_deleted: bool) -> pa.Table:
    """Keep the last row of every (key, namespace), or (key, namespace, `__row`) or entry; rows come in order."""
    names = (*key_names(schema), *(name for name in (NAMESPACE, ROW) if name in schema.names))
    batch = one_batch(table)
    hashes = table.column(KEY_HASH).to_numpy()
    namespaces = table.column(NAMESPACE).to_numpy()
    mixed = hashes ^ (namespaces.view(np.uint64) * np.uint64(0x9E3779B185EBCA87)).view(np.int64)
    if ROW in names:  # `__row` is not part of the hash, and a key may have many rows
        mixed ^= (table.column(ROW).to_numpy().view(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)).view(np.int64)
    entries = [batch.column(name) for name in entry_names(schema)]
    newest, order = np.ones(len(hashes), np.bool_), hash_order(hashes)
    # rows of one key have one mixed hash; only a list or map almost always has equal ones
    if entries or _has_equal(mixed, hashes, order):
        index = KeyIndex(pa.schema([schema.field(n) for n in names]))
        slots = index.upsert(key_columns(batch, names), mixed)
        if entries:
            last = last_entries(slots, entries)
        else:
            last = np.empty(index.count, np.int64)
            last[slots] = np.arange(len(slots))  # for equal slots the last assignment wins
        newest[:] = False
        newest[last] = True
    if not keep_deleted:
        newest &= ~table.column(DELETED).to_numpy()
    return table.take(pa.array(order[newest[order]]))


def _has_equal(mixed: I64, hashes: I64, order: I64) -> bool:
    """Return whether two rows have equal mixed hashes, and so equal hashes, which ascend in `order`."""
    ascending = hashes[order]
    same = np.flatnonzero(ascending[1:] == ascending[:-1])
    if len(same) == 0:
        return False
    if bool((mixed[order[same]] == mixed[order[same + 1]]).any()):
        return True
    near = np.zeros(len(order), np.bool_)  # several namespaces of a key: equal ones need not be neighbours
    near[same] = near[same + 1] = True
    found = sort_hashes(mixed[order[near]])
    return bool((found[1:] == found[:-1]).any())


def read_state(
    snapshot: KeyedStateSnapshot,
    read: Callable[[FileRef], bytes],
    within: HashRange | None = None,
    limits: StateLimits = PRODUCTION,
    only: Collection[str] | None = None,
    hashes: I64 | None = None,
) -> Iterator[pa.Table]:
    """Yield the live rows of one state in a snapshot, sorted by hash.

    A savepoint writes them, and the offline reader shows them. `read` returns the bytes of a file or of a part of it,
    verified if the reference has a checksum. With `only`, other value columns are not decoded. With `hashes`, which are
    sorted, only rows of these hashes come, and only row groups that may have them are read.
    """
    schema = schema_from_text(snapshot.schema)
    ids = None
    if only is not None:
        schema = pa.schema([f for f in schema if field_id(f) < FIRST_VALUE_ID or f.name in only], schema.metadata)
        ids = frozenset(map(field_id, schema))
    own = HashRange(snapshot.hash_low, snapshot.hash_high)
    asked = own if within is None else own.intersect(within)
    if asked is None:
        return
    near = [s for s in snapshot.segments if clip_of(s, asked) is not None]
    if hashes is not None:
        near = [s for s in near if has_hash_in(hashes, s.hash_min, s.hash_max)]
    files = [SegmentFile(s, read, limits, ids, hashes) for s in near]
    yield from merge_segments(files, snapshot.tombstones, schema, within=asked, keep_deleted=False)
