"""Keys of a process function that stay in the object store until they are touched: the cold side of remote row state.

As with other backends a key is in memory with all its values, lists and maps, or in the local cold store with all of
them. Beyond that the hashes are cut into pieces: of one that is not here, the keys that are not in memory are known to
the log alone. The first key of it that comes brings the whole piece, of all states, into the cold store. A piece may be
dropped again at any time, as whatever leaves memory has been frozen before: it is in a durable segment or in one that
waits for its upload, and both are read. Called by `state.row_state` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.evolution import conform
from penstock.kernels.columns import key_column, key_columns
from penstock.state.accumulators import KEY_HASH, LAST_ACCESS
from penstock.state.hash_ranges import even_parts, inside
from penstock.state.key_index import KeyIndex
from penstock.state.pieces import FREED, Pieces
from penstock.state.regions import REGIONS
from penstock.state.remote_log import RemoteLog
from penstock.state.segments import ROW_GROUP, newest_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compile import I64
    from penstock.state.cold_records import ColdHome, ColdRecords, PackedRows
    from penstock.state.frozen import FrozenSource
    from penstock.state.key_index import KeyView
    from penstock.state.remote_log import Reader
    from penstock.state.row_spec import RowSpec
    from penstock.state.waiting import WaitingSegments

#: Rows of one state fetched at a time, about; in the background fewer, as the subtask stands still while they go in.
_ROWS, _ROWS_BEHIND = 32 * ROW_GROUP, 4 * ROW_GROUP
#: What a record takes on the local disk besides its bytes, about.
_RECORD_BYTES = 48


class LocalBytes:
    """What the records of all states take on the local disk, about, region by region of the hashes."""

    def __init__(self, owned: HashRange) -> None:
        """Nothing is here."""
        self.regions = even_parts(owned, REGIONS)
        self._lows = np.array([part.low for part in self.regions], np.int64)
        self.sizes = np.zeros(len(self.regions), np.int64)

    def came(self, hashes: I64, records: Sequence[bytes]) -> None:
        """These records are here now."""
        self._add(hashes, records, 1)

    def went(self, hashes: I64, records: Sequence[bytes]) -> None:
        """These are here no more."""
        self._add(hashes, records, -1)

    def _add(self, hashes: I64, records: Sequence[bytes], sign: int) -> None:
        sizes = np.fromiter(map(len, records), np.int64, len(records)) + _RECORD_BYTES
        np.add.at(self.sizes, np.searchsorted(self._lows, hashes, side="right") - 1, sign * sizes)
        np.maximum(self.sizes, 0, out=self.sizes)


@dataclass(frozen=True, slots=True)
class _State:
    """One state whose records are fetched."""

    spec: RowSpec
    log: RemoteLog
    source: FrozenSource
    waiting: WaitingSegments
    records: ColdRecords

    def rows(self, ranges: Sequence[HashRange], home: ColdHome) -> pa.Table:
        """Return the rows that the log means in some ranges as of now."""
        tables, saved = list[pa.Table](), iter(self.log.tables(ranges))
        for entry in self.source.log.entries:
            frozen = entry.segment is None
            tables += self.waiting.within(entry.position, ranges, home) if frozen else next(saved)
        return self.merged(tables)

    def merged(self, tables: Iterable[pa.Table]) -> pa.Table:
        """Return the rows that count, sorted by hash; any thread."""
        schema = self.spec.segment_schema
        every = [conform(table, schema) for table in tables if table.num_rows]
        if not every:
            return schema.empty_table()
        return newest_rows(pa.concat_tables(every), schema, keep_deleted=False)

    def packed(self, rows: pa.Table, known: tuple[KeyView, np.ndarray] | None) -> PackedRows | None:
        """Return merged rows as records of their keys, without those of keys in memory; any thread."""
        if rows.num_rows == 0:
            return None
        batch = rows.combine_chunks().to_batches(max_chunksize=rows.num_rows)[0]
        index = KeyIndex(self.spec.key_schema)
        hashes = batch.column(KEY_HASH).to_numpy()
        slots = index.upsert(key_columns(batch, tuple(self.spec.key_schema.names)), hashes).copy()
        wanted = np.ones(index.count, np.bool_)
        if known is not None and len(known[1]):
            wanted[_found(index, *known)] = False
        entries = [field.name for field in self.spec.entries]
        if len(entries) == 1:  # of a list the index; of a map any order will do
            order = np.lexsort((_ordered(batch.column(entries[0])), slots))
        else:
            order = np.argsort(slots, kind="stable")
        order = order[wanted[slots[order]]]
        if len(order) == 0:
            return None
        columns = [batch.column(name).take(pa.array(order)) for name in (*entries, *self.spec.stored_names)]
        if (
            self.source.ttl is not None
        ):  # what has expired stays until its key is touched: its removal belongs in the log
            columns[-1] = pa.array(self.source.ttl.clock.bounded(columns[-1].to_numpy()))
        counts = np.bincount(slots[order], minlength=index.count)
        kept = np.flatnonzero(counts).astype(np.int32)
        return self.records.packed(index.view(), kept, counts[kept], columns)


def _ordered(entries: pa.Array) -> np.ndarray:
    return entries.to_numpy() if pa.types.is_int64(entries.type) else np.zeros(len(entries), np.int64)


def _found(index: KeyIndex, keys: KeyView, slots: np.ndarray) -> np.ndarray:
    """Return the slots of an index that have one of some keys of another."""
    count = index.count
    arrays = keys.gather(slots)
    columns = tuple(key_column(array, name) for array, name in zip(arrays, keys.schema.names, strict=True))
    found = index.upsert(columns, keys.hashes[slots])
    return found[found < count]


@dataclass(slots=True)
class FetchedKeys:
    """Pieces to be fetched in the background: `run` in any thread, then `install` in the owner's."""

    owner: RemoteKeys
    pieces: I64
    cut: int
    read: Callable[[], list[PackedRows | None]]
    records: list[PackedRows | None] = field(default_factory=list)

    def run(self) -> None:
        """Read the rows.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        self.records = self.read()

    def install(self) -> None:
        """Put them in."""
        self.owner.install(self)


class RemoteKeys:
    """The keys of all states of one operator that are not in memory."""

    _cut: Pieces | None

    def __init__(self, home: ColdHome, owned: HashRange, reader: Reader, limit_bytes: int) -> None:
        """No state is known yet; about `limit_bytes` may be taken on the local disk."""
        self.home = home
        self.reader = reader
        self.limit = limit_bytes
        self._local = home.local = LocalBytes(owned)
        self._states: list[_State] = []
        self._cut = None
        self.fetched_pieces = 0
        self.dropped_regions = 0

    def follow(self, source: FrozenSource, spec: RowSpec, waiting: WaitingSegments, records: ColdRecords) -> None:
        """One more state; all are known before the first key comes.

        With a time-to-live, time goes on from the newest access that the footers know of.
        """
        source.remote = True
        log = RemoteLog(source, self.reader)
        self._states.append(_State(spec, log, source, waiting, records))
        if source.ttl is not None:
            newest = [
                span[1] for file in log.files() for group in file.groups if (span := file.span(group, LAST_ACCESS))
            ]
            source.ttl.clock.restored(np.array(newest, np.int64))

    @property
    def pieces(self) -> Pieces:
        """The pieces; made when they are asked for first, from the footers of what was restored."""
        if self._cut is None:
            # cut by the largest state: of the others fewer rows lie in a piece
            largest = max(self._states, key=lambda state: state.log.rows, default=None)
            restored = largest is not None and largest.log.rows > 0
            cuts = largest.log.cuts() if largest is not None and restored else np.empty(0, np.int64)
            self._cut = Pieces(self._local.regions, cuts, here=not restored)
        return self._cut

    def ensure(self, hashes: I64, index: KeyIndex, known: int) -> None:
        """Have the pieces here that these hashes lie in; the first `known` slots of the index are in memory.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        pieces = self.pieces
        pieces.touch(hashes)
        missing = pieces.missing(pieces.of(hashes))
        if len(missing):
            self._make_space()
            missing = pieces.missing(pieces.of(hashes))
        step = self._together(_ROWS)
        for first in range(0, len(missing), step):
            some = missing[first : first + step]
            ranges = pieces.ranges(some)
            view = index.view()
            here = np.flatnonzero(inside(view.hashes[:known], ranges)).astype(np.int32)
            for state in self._states:
                self._put(state, state.packed(state.rows(ranges, self.home), (view, here)))
            pieces.came(some)
            self.fetched_pieces += len(some)

    def next_fetch(self) -> FetchedKeys | None:
        """Return the next pieces to be fetched before anybody asks; None: all have been, or there is no space."""
        if not self._states or int(self._local.sizes.sum()) * (FREED + 1) > self.limit * FREED:
            return None
        some = self.pieces.unasked(self._together(_ROWS_BEHIND))
        if len(some) == 0:
            return None
        ranges = self.pieces.ranges(some)
        reads = [(state, state.log.base(ranges)) for state in self._states]

        def read() -> list[PackedRows | None]:
            return [state.packed(state.merged(rows()), None) for state, rows in reads]

        return FetchedKeys(self, some, self.pieces.cut, read)

    def install(self, fetched: FetchedKeys) -> None:
        """Put in what was fetched in the background, but for pieces that were asked for meanwhile."""
        pieces = self.pieces
        if not fetched.records or fetched.cut != pieces.cut:  # pieces have other numbers now
            return
        new = fetched.pieces[~pieces.been[fetched.pieces]]
        for state, packed in zip(self._states, fetched.records, strict=True):
            self._put(state, None if packed is None else packed.chosen(np.isin(pieces.of(packed.hashes), new)))
        pieces.came(new)
        self.fetched_pieces += len(new)

    def _put(self, state: _State, packed: PackedRows | None) -> None:
        if packed is not None:
            state.records.put_packed(packed)

    def _together(self, rows: int) -> int:
        """Return how many pieces to fetch at a time."""
        most = max((state.log.rows for state in self._states), default=0)
        return max(1, rows * self.pieces.count // max(1, most, ROW_GROUP))

    def _make_space(self) -> None:
        """Drop the regions that were not asked for longest, if what is here takes more than it may."""
        most = max((state.log.rows for state in self._states), default=0)
        for region in list(self.pieces.to_drop(self._local.sizes, self.limit)):
            for state in self._states:
                state.records.drop_range(self._local.regions[region])
            self._local.sizes[region] = 0
            self.pieces.drop(region, most // len(self._local.regions) // ROW_GROUP)
            self.dropped_regions += 1
