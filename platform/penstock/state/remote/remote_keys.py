"""Remote keys of a process function: kept in the object store until their first use, and fetched as records by key.

Called by `state.tables.row_state` and `state.panes.session_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.keygroup import HashRange
from penstock.state.keys.hash_ranges import LocalBytes, even_parts, inside
from penstock.state.keys.key_index import KeyIndex, columns_of
from penstock.state.log.segment_columns import keyed_batch
from penstock.state.remote.range_fetcher import RangeFetcher
from penstock.state.remote.remote_log import RemoteLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource, PendingSegments
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.remote.remote_log import Reader
    from penstock.state.spill.cold_records import ColdRecords, PackedRows, SpillStore


class RemoteRecords:
    """One state with fetched records, and the conversion of a segment's rows to records."""

    def __init__(
        self,
        log: RemoteLog,
        key_schema: pa.Schema,
        frozen: Callable[[int, Sequence[HashRange]], Iterable[pa.Table]],
        records: ColdRecords,
        columns: Callable[[pa.RecordBatch], list[pa.Array]],
        ordered_by: str = "",
    ) -> None:
        """Read `log`; `frozen` returns rows of segments in some ranges until they are durable.

        `columns` selects the columns of a record from those of a segment. The rows of a key are sorted by the column
        `ordered_by`, if there is one.
        """
        self.log = log
        self.records = records
        self._key_schema, self._frozen, self._columns, self._ordered_by = key_schema, frozen, columns, ordered_by

    def rows(self, ranges: Sequence[HashRange]) -> pa.Table:
        """Return the current rows of the log in some hash ranges."""
        return self.log.merged(self.log.current(ranges, self._frozen))

    def packed(self, rows: pa.Table, known: tuple[KeyView, np.ndarray] | None) -> PackedRows | None:
        """Return merged rows as records of their keys, without those of keys in memory; any thread."""
        if rows.num_rows == 0:
            return None
        batch, keys, hashes = keyed_batch(rows, self._key_schema)
        index = KeyIndex(self._key_schema)
        slots = index.upsert(keys, hashes).copy()
        wanted = np.ones(index.count, np.bool_)
        if known is not None and len(known[1]):
            wanted[_found(index, *known)] = False
        if self._ordered_by:
            order = np.lexsort((batch.column(self._ordered_by).to_numpy(), slots))
        else:
            order = np.argsort(slots, kind="stable")
        order = order[wanted[slots[order]]]
        if len(order) == 0:
            return None
        columns = [column.take(pa.array(order)) for column in self._columns(batch)]
        counts = np.bincount(slots[order], minlength=index.count)
        kept = np.flatnonzero(counts).astype(np.int32)
        return self.records.packed(index.view(), kept, counts[kept], columns)

    def keys(self, ranges: Iterable[HashRange]) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the key of each of the current rows, and its hash, one hash range after the other."""
        for part in ranges:
            rows = self.rows([part])
            if rows.num_rows:
                _, keys, hashes = keyed_batch(rows, self._key_schema)
                yield keys, hashes


def _found(index: KeyIndex, keys: KeyView, slots: np.ndarray) -> np.ndarray:
    """Return the slots of an index whose keys are among some keys of another."""
    count = index.count
    found = index.upsert(columns_of(keys, slots), keys.hashes[slots])
    return found[found < count]


class RemoteKeys:
    """The keys of all states of one operator that are not in memory (`range_fetcher.RemoteTable`)."""

    def __init__(self, spill_store: SpillStore, owned: HashRange, reader: Reader, limit_bytes: int) -> None:
        """Start without states; about `limit_bytes` may be taken on the local disk."""
        limits = spill_store.limits
        self.spill_store = spill_store
        self.reader = reader
        self._local = spill_store.local = LocalBytes(owned, limits.regions)
        self._states: list[RemoteRecords] = []
        #: Keys in memory, which the log does not replace: an index and the number of its first slots.
        self._known: tuple[KeyIndex, int] | None = None
        self.fetcher: RangeFetcher[Iterable[PackedRows | None]] = RangeFetcher(
            self, self._local.regions, limit_bytes, limits, limits.prefetched_rows
        )

    def follow(self, source: FrozenSource, spec: RowSpec, pending: PendingSegments, records: ColdRecords) -> None:
        """Add a state; all states are added before the first key is used.

        With a time-to-live, time starts at the newest access in the footers.
        """
        ordered = len(spec.entries) == 1 and pa.types.is_int64(spec.entries[0].type)  # the index of a list
        names = [*(field.name for field in spec.entries), *spec.stored_names]

        def columns(batch: pa.RecordBatch) -> list[pa.Array]:
            found = [batch.column(name) for name in names]
            if source.ttl is not None:
                # expired values stay until their key is used: their removal belongs in the log
                found[-1] = pa.array(source.ttl.clock.bounded(found[-1].to_numpy()))
            return found

        log, ordered_by = self.log_of(source), spec.entries[0].name if ordered else ""
        self.enter(RemoteRecords(log, spec.key_schema, pending.within, records, columns, ordered_by))
        if source.ttl is not None:
            source.ttl.clock.restored(log.newest_access())

    def log_of(self, source: FrozenSource) -> RemoteLog:
        """Return the log of a state whose rows are fetched."""
        source.remote = True
        return RemoteLog(source, self.reader)

    def enter(self, state: RemoteRecords) -> None:
        """Add a state that supplies its own conversion from rows to records."""
        self._states.append(state)

    def parts(self, hashes: I64) -> list[I64]:
        """Return the positions of hashes in groups to request together; see `FetchRanges.parts`."""
        return self.fetcher.parts(hashes)

    def ensure(self, hashes: I64, index: KeyIndex, known: int) -> None:
        """Fetch the missing ranges of these hashes; the first `known` slots of the index are in memory.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        self._known = index, known
        self.fetcher.ensure(hashes)

    def every_key(self) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the keys of all states and their hashes in batches; a key is repeated for each of its rows."""
        owned = HashRange(self._local.regions[0].low, self._local.regions[-1].high)
        for state in self._states:
            yield from state.keys(even_parts(owned, 1 + state.log.rows // self.spill_store.limits.fetched_rows))

    @property
    def logs(self) -> list[RemoteLog]:
        """The log of each state."""
        return [state.log for state in self._states]

    @property
    def local_bytes(self) -> I64:
        """The approximate bytes of each region on the local disk."""
        return self._local.sizes

    def read(self, ranges: Sequence[HashRange]) -> Iterator[PackedRows | None]:
        """Yield the current records of each state in some hash ranges, without those of keys in memory."""
        known = None
        if self._known is not None:
            view = self._known[0].view()
            known = view, np.flatnonzero(inside(view.hashes[: self._known[1]], ranges)).astype(np.int32)
        for state in self._states:
            yield state.packed(state.rows(ranges), known)

    def base(self, ranges: Sequence[HashRange]) -> Callable[[], list[PackedRows | None]]:
        """Return a function for any thread that reads rows in ranges without changes since the restore."""
        reads = [(state, state.log.base(ranges)) for state in self._states]
        return lambda: [state.packed(state.log.merged(rows()), None) for state, rows in reads]

    def store(self, rows: Iterable[PackedRows | None], fetch_ranges: I64) -> None:
        """Store the records of these fetch ranges."""
        for state, packed in zip(self._states, rows, strict=True):
            if packed is not None:
                wanted = np.isin(self.fetcher.fetch_ranges.of(packed.hashes), fetch_ranges)
                state.records.put_packed(packed if wanted.all() else packed.chosen(wanted))

    def drop(self, region: int) -> None:
        """Drop the local records of a region."""
        for state in self._states:
            state.records.drop_range(self._local.regions[region])
        self._local.sizes[region] = 0
