"""Remote keys of a process function: kept in the object store until their first use, and fetched as records by key.

Called by `state.tables.row_state` and `state.panes.session_table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.evolution import conform_table
from penstock.core.keygroup import HashRange
from penstock.kernels.keys.key_columns import key_column, key_columns
from penstock.state.keys.hash_ranges import even_parts, inside
from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import KEY_HASH
from penstock.state.log.segments import newest_rows
from penstock.state.remote.fetch_ranges import BackgroundFetch, FetchRanges, has_room
from penstock.state.remote.remote_log import RemoteLog, fetch_ranges_of, most_rows, together
from penstock.state.spill.cold_records import LocalBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource, PendingSegments
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.remote.remote_log import Reader
    from penstock.state.spill.cold_records import ColdRecords, PackedRows, SpillStore


@dataclass(frozen=True, slots=True)
class RecordForm:
    """The conversion of a segment's rows to records."""

    key_schema: pa.Schema
    #: Selects the columns of a record from those of a segment.
    columns: Callable[[pa.RecordBatch], list[pa.Array]]
    records: ColdRecords
    #: The column by which the rows of a key are sorted, if their order matters.
    ordered_by: str = ""


class RemoteRecords:
    """One state with fetched records."""

    def __init__(
        self,
        source: FrozenSource,
        reader: Reader,
        frozen: Callable[[int, Sequence[HashRange]], Iterable[pa.Table]],
        form: RecordForm,
    ) -> None:
        """Read the log of `source`; `frozen` returns rows of segments in some ranges until they are durable."""
        source.remote = True
        self.source = source
        self.log = RemoteLog(source, reader)
        self.records = form.records
        self._frozen = frozen
        self._form = form

    def rows(self, ranges: Sequence[HashRange]) -> pa.Table:
        """Return the current rows of the log in some hash ranges."""
        tables, saved = list[pa.Table](), iter(self.log.tables(ranges))
        for entry in self.source.log.entries:
            tables += self._frozen(entry.position, ranges) if entry.segment is None else next(saved)
        return self.merged(tables)

    def merged(self, tables: Iterable[pa.Table]) -> pa.Table:
        """Return the newest rows, sorted by hash; any thread."""
        schema = self.source.spec.segment_schema
        every = [conform_table(table, schema) for table in tables if table.num_rows]
        if not every:
            return schema.empty_table()
        return newest_rows(pa.concat_tables(every), schema, keep_deleted=False)

    def packed(self, rows: pa.Table, known: tuple[KeyView, np.ndarray] | None) -> PackedRows | None:
        """Return merged rows as records of their keys, without those of keys in memory; any thread."""
        if rows.num_rows == 0:
            return None
        batch = rows.combine_chunks().to_batches(max_chunksize=rows.num_rows)[0]
        form = self._form
        index = KeyIndex(form.key_schema)
        hashes = batch.column(KEY_HASH).to_numpy()
        slots = index.upsert(key_columns(batch, tuple(form.key_schema.names)), hashes).copy()
        wanted = np.ones(index.count, np.bool_)
        if known is not None and len(known[1]):
            wanted[_found(index, *known)] = False
        if form.ordered_by:
            order = np.lexsort((batch.column(form.ordered_by).to_numpy(), slots))
        else:
            order = np.argsort(slots, kind="stable")
        order = order[wanted[slots[order]]]
        if len(order) == 0:
            return None
        columns = [column.take(pa.array(order)) for column in form.columns(batch)]
        counts = np.bincount(slots[order], minlength=index.count)
        kept = np.flatnonzero(counts).astype(np.int32)
        return self.records.packed(index.view(), kept, counts[kept], columns)

    def batches(self, ranges: Iterable[HashRange]) -> Iterator[pa.RecordBatch]:
        """Yield the current rows of the log, one hash range after the other."""
        for part in ranges:
            rows = self.rows([part])
            if rows.num_rows:
                yield rows.combine_chunks().to_batches(max_chunksize=rows.num_rows)[0]

    def keys(self, ranges: Iterable[HashRange]) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the key of each of these rows, and its hash."""
        names = tuple(self._form.key_schema.names)
        for batch in self.batches(ranges):
            yield key_columns(batch, names), batch.column(KEY_HASH).to_numpy()


def in_memory(view: KeyView, count: int, ranges: Sequence[HashRange]) -> tuple[KeyView, np.ndarray]:
    """Return the view and the slots of the first `count` keys that are in some hash ranges."""
    return view, np.flatnonzero(inside(view.hashes[:count], ranges)).astype(np.int32)


def _found(index: KeyIndex, keys: KeyView, slots: np.ndarray) -> np.ndarray:
    """Return the slots of an index whose keys are among some keys of another."""
    count = index.count
    arrays = keys.gather(slots)
    columns = tuple(key_column(array, name) for array, name in zip(arrays, keys.schema.names, strict=True))
    found = index.upsert(columns, keys.hashes[slots])
    return found[found < count]


class RemoteKeys:
    """The keys of all states of one operator that are not in memory."""

    _fetch_ranges: FetchRanges | None

    def __init__(self, spill_store: SpillStore, owned: HashRange, reader: Reader, limit_bytes: int) -> None:
        """Start without states; about `limit_bytes` may be taken on the local disk."""
        self.spill_store = spill_store
        self.reader = reader
        self.limit = limit_bytes
        self._limits = spill_store.limits
        self._local = spill_store.local = LocalBytes(owned, spill_store.limits.regions)
        self._states: list[RemoteRecords] = []
        self._fetch_ranges = None
        #: Whether dropping of regions is suspended.
        self.held = False
        self.fetched_ranges = 0
        self.dropped_regions = 0

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

        form = RecordForm(spec.key_schema, columns, records, spec.entries[0].name if ordered else "")
        state = RemoteRecords(
            source, self.reader, lambda position, ranges: pending.within(position, ranges, self.spill_store), form
        )
        self.enter(state)
        if source.ttl is not None:
            source.ttl.clock.restored(state.log.newest_access())

    def enter(self, state: RemoteRecords) -> None:
        """Add a state that supplies its own conversion from rows to records."""
        self._states.append(state)

    @property
    def fetch_ranges(self) -> FetchRanges:
        """The fetch ranges, computed on first use from the footers of the restored segments."""
        if self._fetch_ranges is None:
            self._fetch_ranges = fetch_ranges_of(self._local.regions, self._logs)
        return self._fetch_ranges

    def parts(self, hashes: I64) -> list[I64]:
        """Return the positions of hashes in groups to request together; see `FetchRanges.parts`."""
        return self.fetch_ranges.parts(hashes, together(self.fetch_ranges, self._logs, self._limits.fetched_rows))

    def ensure(self, hashes: I64, index: KeyIndex, known: int) -> None:
        """Fetch the missing ranges of these hashes; the first `known` slots of the index are in memory.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        fetch_ranges = self.fetch_ranges
        fetch_ranges.touch(hashes)
        missing = fetch_ranges.missing(fetch_ranges.of(hashes))
        if len(missing):
            self._make_space()
            missing = fetch_ranges.missing(fetch_ranges.of(hashes))
        step = together(fetch_ranges, self._logs, self._limits.fetched_rows)
        for first in range(0, len(missing), step):
            some = missing[first : first + step]
            ranges = fetch_ranges.ranges(some)
            here = in_memory(index.view(), known, ranges)
            for state in self._states:
                self._put(state, state.packed(state.rows(ranges), here))
            fetch_ranges.mark_local(some)
            self.fetched_ranges += len(some)

    def every_key(self) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the keys of all states and their hashes in batches; a key is repeated for each of its rows."""
        owned = HashRange(self._local.regions[0].low, self._local.regions[-1].high)
        for state in self._states:
            yield from state.keys(even_parts(owned, 1 + state.log.rows // self._limits.fetched_rows))

    def next_fetch(self) -> BackgroundFetch[list[PackedRows | None]] | None:
        """Return the next prefetch; None: everything was fetched, or local space is short."""
        if not self._states or not has_room(int(self._local.sizes.sum()), self.limit):
            return None
        some = self.fetch_ranges.unrequested(together(self.fetch_ranges, self._logs, self._limits.prefetched_rows))
        if len(some) == 0:
            return None
        ranges = self.fetch_ranges.ranges(some)
        reads = [(state, state.log.base(ranges)) for state in self._states]

        def read() -> list[PackedRows | None]:
            return [state.packed(state.merged(rows()), None) for state, rows in reads]

        return BackgroundFetch(some, self.fetch_ranges.split_version, read, self.install)

    def install(self, fetched: BackgroundFetch[list[PackedRows | None]]) -> None:
        """Store a background fetch, except for ranges that were requested in the meantime."""
        fetch_ranges = self.fetch_ranges
        new = fetch_ranges.unrequested_of(fetched)
        if fetched.rows is None or len(new) == 0:
            return
        for state, packed in zip(self._states, fetched.rows, strict=True):
            self._put(state, None if packed is None else packed.chosen(np.isin(fetch_ranges.of(packed.hashes), new)))
        fetch_ranges.mark_local(new)
        self.fetched_ranges += len(new)

    def _put(self, state: RemoteRecords, packed: PackedRows | None) -> None:
        if packed is not None:
            state.records.put_packed(packed)

    @property
    def _logs(self) -> list[RemoteLog]:
        return [state.log for state in self._states]

    def _make_space(self) -> None:
        """Drop the least recently used regions, if local rows are above the limit."""
        if self.held:
            return
        most = most_rows(self._logs)
        for region in list(self.fetch_ranges.to_drop(self._local.sizes, self.limit)):
            for state in self._states:
                state.records.drop_range(self._local.regions[region])
            self._local.sizes[region] = 0
            self.fetch_ranges.drop(region, most // len(self._local.regions) // self._limits.group_rows)
            self.dropped_regions += 1


@dataclass(frozen=True, slots=True)
class KeyStores:
    """The stores of keys that are not in memory: a local store, and optionally the object store."""

    local: SpillStore
    #: Fetches keys from the object store into the local one; None: all keys are local.
    remote: RemoteKeys | None = None
