"""Remote keys of a process function: kept in the object store until their first use, and fetched as records by key.

Called by `state.tables.row_state` and `state.tables.session_table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.keygroup import HashRange
from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import keyed_batch
from penstock.state.remote.range_fetcher import RangeFetcher
from penstock.state.remote.remote_log import RemoteLog
from penstock.state.spill.cold_records import KeyRows
from penstock.state.spill.rocksdb import LocalBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.remote.remote_log import Reader
    from penstock.state.spill.cold_records import PackedKeys, SpillStore


@dataclass(frozen=True, slots=True)
class RemoteRows:
    """One state whose rows are fetched, and the columns of its rows in a record."""

    log: RemoteLog
    #: Selects the columns of a record's rows from those of a segment.
    columns: Callable[[pa.RecordBatch], list[pa.Array]]
    #: Whether the rows of a key are sorted by the first of these columns.
    by_first: bool


class RemoteKeys:
    """The keys of all states of one operator that are not in memory (`range_fetcher.RemoteTable`)."""

    def __init__(self, spill_store: SpillStore, owned: HashRange, reader: Reader, limit_bytes: int) -> None:
        """Start without states; about `limit_bytes` may be taken on the local disk."""
        limits = spill_store.limits
        self.spill_store = spill_store
        self.reader = reader
        self._local = spill_store.local = LocalBytes(owned, limits.regions)
        self._states: list[RemoteRows] = []
        self._key_schema = pa.schema([])
        self.fetcher: RangeFetcher[PackedKeys] = RangeFetcher(
            self, self._local.regions, limit_bytes, limits, limits.prefetched_rows
        )

    def follow(self, source: FrozenSource[RowSpec]) -> None:
        """Add a state whose rows are the same in records and segments; as `add`."""
        spec = source.spec
        by_first = len(spec.entries) == 1 and pa.types.is_int64(spec.entries[0].type)  # the index of a list

        def columns(batch: pa.RecordBatch) -> list[pa.Array]:
            found = [batch.column(name) for name in spec.row_names]
            if source.ttl is not None:
                # expired values stay until their key is used: their removal belongs in the log
                found[-1] = pa.array(source.ttl.clock.bounded(found[-1].to_numpy()))
            return found

        self.add(source, columns, by_first=by_first)

    def add(
        self,
        source: FrozenSource[RowSpec] | FrozenSource[PaneTableSpec],
        columns: Callable[[pa.RecordBatch], list[pa.Array]],
        *,
        by_first: bool = False,
    ) -> None:
        """Add a state, in the order in which the store has them; all are added before the first key is used.

        `columns`, `by_first`: see `RemoteRows`. With a time-to-live, time starts at the newest access in the footers.
        """
        log = RemoteLog(source, self.reader)
        self._states.append(RemoteRows(log, columns, by_first))
        self.fetcher.logs.append(log)
        self._key_schema = source.spec.key_schema
        if source.ttl is not None:
            source.ttl.clock.restored(log.newest_access())

    def every_key(self) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the keys of all states and their hashes in batches; a key is repeated for each of its rows."""
        owned = HashRange(self._local.regions[0].low, self._local.regions[-1].high)
        for state in self._states:
            for part in owned.split(1 + state.log.rows // self.spill_store.limits.fetched_rows):
                rows = state.log.merged(state.log.current([part]))
                if rows.num_rows:
                    _, keys, hashes = keyed_batch(rows, self._key_schema)
                    yield keys, hashes

    @property
    def local_bytes(self) -> I64:
        """The approximate bytes of each region on the local disk."""
        return self._local.sizes

    def current(self, ranges: Sequence[HashRange]) -> list[Iterable[pa.Table]]:
        """Return the current rows of each state in some hash ranges."""
        return [state.log.current(ranges) for state in self._states]

    def merged(self, tables: Sequence[Iterable[pa.Table]]) -> PackedKeys:
        """Return rows of each state, oldest first, as records of their keys."""
        index, found = KeyIndex(self._key_schema), []
        for state, rows in zip(self._states, tables, strict=True):
            batch, keys, hashes = keyed_batch(state.log.merged(rows), self._key_schema)
            found.append((state, batch, index.upsert(keys, hashes).copy()))
        rows = [_rows_of(state, batch, slots, index.count) for state, batch, slots in found]
        parts = [packer.pack(some) for packer, some in zip(self.spill_store.packers, rows, strict=True)]
        return self.spill_store.packed(index.view(), np.arange(index.count, dtype=np.int32), parts)

    def store(self, rows: PackedKeys, wanted: Callable[[I64], np.ndarray]) -> None:
        """Store the records of the wanted hashes."""
        chosen = wanted(rows.hashes)
        self.spill_store.put_packed(rows if chosen.all() else rows.chosen(chosen))

    def drop(self, region: int) -> None:
        """Drop the local records of a region."""
        self.spill_store.drop_range(self._local.regions[region])
        self._local.sizes[region] = 0


def _rows_of(state: RemoteRows, batch: pa.RecordBatch, slots: I32, count: int) -> KeyRows:
    """Return the rows of `count` keys in the order of their slots."""
    if batch.num_rows == 0:
        return KeyRows(np.zeros(count, np.int64), [])
    return KeyRows.of(state.columns(batch), slots, count, by_first=state.by_first)
