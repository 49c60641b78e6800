"""Remote keys of a process function: kept in the object store until their first use.

As with other backends a key is completely in memory or completely in the local cold store. The hashes are also split
into fetch ranges. If a range is not local, its keys outside memory are only in the log. The first use of such a key
fetches its range, of all states, into the cold store. A range may be dropped at any time, because each eviction first
freezes changes. They are in a durable segment or in one that waits for its upload, and both are read. Called by
`state.tables.row_state` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.keygroup import HashRange
from penstock.state.keys.hash_ranges import even_parts
from penstock.state.remote.fetch_ranges import Fetched, Pieces, has_room
from penstock.state.remote.remote_log import most_rows, pieces_of, together
from penstock.state.remote.remote_records import RecordForm, RemoteRecords, in_memory
from penstock.state.spill.local_bytes import LocalBytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyIndex
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.pending_segments import WaitingSegments
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.remote.remote_log import Reader, RemoteLog
    from penstock.state.spill.cold_records import ColdHome, ColdRecords, PackedRows


class RemoteKeys:
    """The keys of all states of one operator that are not in memory."""

    _cut: Pieces | None

    def __init__(self, home: ColdHome, owned: HashRange, reader: Reader, limit_bytes: int) -> None:
        """Start without states; about `limit_bytes` may be taken on the local disk."""
        self.home = home
        self.reader = reader
        self.limit = limit_bytes
        self._limits = home.limits
        self._local = home.local = LocalBytes(owned, home.limits.regions)
        self._states: list[RemoteRecords] = []
        self._cut = None
        #: Whether dropping of regions is suspended.
        self.held = False
        self.fetched_pieces = 0
        self.dropped_regions = 0

    def follow(self, source: FrozenSource, spec: RowSpec, waiting: WaitingSegments, records: ColdRecords) -> None:
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
            source, self.reader, lambda position, ranges: waiting.within(position, ranges, self.home), form
        )
        self.enter(state)
        if source.ttl is not None:
            source.ttl.clock.restored(state.log.newest_access())

    def enter(self, state: RemoteRecords) -> None:
        """Add a state that supplies its own conversion from rows to records."""
        self._states.append(state)

    @property
    def pieces(self) -> Pieces:
        """The fetch ranges, computed on first use from the footers of the restored segments."""
        if self._cut is None:
            self._cut = pieces_of(self._local.regions, self._logs)
        return self._cut

    def parts(self, hashes: I64) -> list[I64]:
        """Return the positions of hashes in groups to request together; see `Pieces.parts`."""
        return self.pieces.parts(hashes, together(self.pieces, self._logs, self._limits.fetched_rows))

    def ensure(self, hashes: I64, index: KeyIndex, known: int) -> None:
        """Fetch the missing ranges of these hashes; the first `known` slots of the index are in memory.

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
        step = together(pieces, self._logs, self._limits.fetched_rows)
        for first in range(0, len(missing), step):
            some = missing[first : first + step]
            ranges = pieces.ranges(some)
            here = in_memory(index.view(), known, ranges)
            for state in self._states:
                self._put(state, state.packed(state.rows(ranges), here))
            pieces.came(some)
            self.fetched_pieces += len(some)

    def every_key(self) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the keys of all states and their hashes in batches; a key is repeated for each of its rows."""
        owned = HashRange(self._local.regions[0].low, self._local.regions[-1].high)
        for state in self._states:
            yield from state.keys(even_parts(owned, 1 + state.log.rows // self._limits.fetched_rows))

    def next_fetch(self) -> Fetched[list[PackedRows | None]] | None:
        """Return the next prefetch; None: everything was fetched, or local space is short."""
        if not self._states or not has_room(int(self._local.sizes.sum()), self.limit):
            return None
        some = self.pieces.unasked(together(self.pieces, self._logs, self._limits.prefetched_rows))
        if len(some) == 0:
            return None
        ranges = self.pieces.ranges(some)
        reads = [(state, state.log.base(ranges)) for state in self._states]

        def read() -> list[PackedRows | None]:
            return [state.packed(state.merged(rows()), None) for state, rows in reads]

        return Fetched(some, self.pieces.cut, read, self.install)

    def install(self, fetched: Fetched[list[PackedRows | None]]) -> None:
        """Store a background fetch, except for ranges that were requested in the meantime."""
        pieces = self.pieces
        new = pieces.unasked_of(fetched)
        if fetched.rows is None or len(new) == 0:
            return
        for state, packed in zip(self._states, fetched.rows, strict=True):
            self._put(state, None if packed is None else packed.chosen(np.isin(pieces.of(packed.hashes), new)))
        pieces.came(new)
        self.fetched_pieces += len(new)

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
        for region in list(self.pieces.to_drop(self._local.sizes, self.limit)):
            for state in self._states:
                state.records.drop_range(self._local.regions[region])
            self._local.sizes[region] = 0
            self.pieces.drop(region, most // len(self._local.regions) // self._limits.group_rows)
            self.dropped_regions += 1


@dataclass(frozen=True, slots=True)
class KeyTiers:
    """The stores of keys that are not in memory: a local store, and optionally the object store."""

    local: ColdHome
    #: Fetches keys from the object store into the local one; None: all keys are local.
    remote: RemoteKeys | None = None
