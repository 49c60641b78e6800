"""Cold rows in the object store that are fetched on demand: the cold side of a table with the remote backend.

The hashes are split into fetch ranges. A restore reads the footers of the segments. The first lookup of a key that is
not in memory fetches its range from all segments into a local store. From then on the local store is used like the cold
store of other backends. A local range may be dropped whenever local space is short, because its rows can be read again.
They are in a segment, durable or waiting for its upload, or in the file of changes since the last freeze. Called by
`PaneTable` in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.state.cells.pane_memory import Rows
from penstock.state.remote.fetch_ranges import Fetched, Pieces, has_room

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.hot_panes import HotPanes
    from penstock.state.cells.value_heap import ValueHeap
    from penstock.state.keys.key_index import KeyView
    from penstock.state.remote.regions import Regions
    from penstock.state.remote.remote_pane_log import RemoteSegments, UndurableRows
    from penstock.state.spill.cold_file import FileRows

#: Rows added at a time when none needs a fetch.
_MANY_ROWS = 1 << 20


class RemoteRows:
    """The cold rows of one table (`cold_panes.ColdRows`), a part of which is on the local disk."""

    _changes: UndurableRows

    def __init__(self, spec: PaneTableSpec, segments: RemoteSegments, local: Regions, limit_bytes: int) -> None:
        """Read the footers of the restored segments; about `limit_bytes` may be taken on the local disk."""
        self._spec = spec
        self._segments = segments
        self._local = local
        self._limit = limit_bytes
        self._limits = segments.limits
        restored = segments.rows > 0
        local.expect(segments.rows)
        self.pieces = Pieces(local.ranges, segments.cuts(), here=not restored)
        self._panes = ({0} if spec.single_pane else segments.panes()) if restored else set()
        self._rows = self._limits.few_rows if restored else _MANY_ROWS
        #: Whether many ranges were fetched since the last call of `next_rows`.
        self._busy = restored
        self.fetched_pieces = 0
        self.dropped_regions = 0

    def follow(self, changes: UndurableRows) -> None:
        """Set the table's changes; call it once, before the first request.

        With a time-to-live, time starts at the newest access in the footers.
        """
        self._changes = changes
        ttl = self._segments.ttl
        if ttl is not None:
            ttl.clock.restored(self._segments.newest_access())

    @property
    def in_file(self) -> bool:
        """Whether local rows are in files."""
        return self._local.in_file

    @property
    def panes(self) -> list[int]:
        """The panes that may have rows, local or in the object store."""
        return list(self._panes)

    @property
    def disk_bytes(self) -> int:
        """The approximate bytes taken on the local disk."""
        return sum(self._local.disk_bytes(region) for region in range(len(self._local.ranges)))

    def next_rows(self) -> int:
        """Return how many rows to add next: few while almost each of them needs a fetch."""
        few = self._limits.few_rows
        self._rows = max(few, self._rows // 4) if self._busy else min(_MANY_ROWS, self._rows * 2)
        self._busy = False
        return self._rows

    def rows_of(self, pane: int) -> int:
        """Return the number of rows of the pane, at most."""
        if pane not in self._panes:
            return 0
        return self._local.rows_of(pane) + (0 if self.pieces.here.all() else self._segments.rows)

    def for_changes(self) -> FileRows | None:
        """Return an empty file for changed rows that are evicted before the next barrier; None: not supported."""
        return self._local.for_changes()

    def fetch(self, keys: KeyView, asked: tuple[I32, I64], target: tuple[I64, I64], heap: ValueHeap) -> None:
        """Copy the cells of (slots, panes) into the empty cells of `target`; fetches missing ranges.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        rows = np.flatnonzero(np.isin(asked[1], self.panes))
        if len(rows) == 0:
            return
        before = self.fetched_pieces
        for part in self.pieces.parts(keys.hashes[asked[0][rows]], self._limits.fetched_pieces):
            slots, panes, cell = asked[0][rows[part]], asked[1][rows[part]], target[1][rows[part]]
            hashes = keys.hashes[slots]
            self.pieces.touch(hashes)
            missing = self.pieces.missing(self.pieces.of(hashes))
            if len(missing):
                self._make_space()
                missing = self.pieces.missing(self.pieces.of(hashes))
            self._bring(missing)
            self._local.fetch(keys, (slots, panes), (target[0], cell), heap)
        self._busy = self._busy or self.fetched_pieces - before > self._limits.many_pieces

    def put(self, keys: KeyView, rows: Rows) -> None:
        """Write rows of local ranges; others are only in the table's changes and the log."""
        self._panes.update(np.unique(rows.panes).tolist())
        pieces = self.pieces.of(keys.hashes[rows.slots])
        here = self.pieces.here[pieces]
        self.pieces.been[pieces] = True  # the restored rows are no longer complete
        if here.any():
            self._local.put(keys, rows if here.all() else rows.chosen(here))

    def forget(self, keys: KeyView, slots: I32, panes: I64) -> None:
        """Remove local rows."""
        self._local.forget(keys, slots, panes)

    def drop_below(self, pane: int) -> None:
        """Remove all panes that start before `pane`; the log's tombstone hides their remote rows."""
        self._panes = {p for p in self._panes if p >= pane}
        self._local.drop_below(pane)

    def scan(self, pane: int, part: HashRange, heap: ValueHeap) -> Iterator[tuple[KeyColumns, I64, I64, I64]]:
        """Yield (keys, hashes, panes, cells) of a pane's rows in a hash range; fetches missing ranges."""
        self.pieces.touch_range(part)
        if len(self.pieces.missing(self.pieces.within(part))):
            self._make_space()
            self._bring(self.pieces.missing(self.pieces.within(part)))
        yield from self._local.scan(pane, part, heap)

    def close(self) -> None:
        """Free the disk space."""
        self._local.close()

    # --- in the background ------------------------------------------------------------------------------------------

    def next_fetch(self) -> Fetched[HotPanes] | None:
        """Return the next prefetch; None: everything was fetched, or local space is short."""
        if not has_room(self.disk_bytes, self._limit):
            return None
        pieces = self.pieces.unasked(self._limits.fetched_pieces)
        if len(pieces) == 0:
            return None
        return Fetched(pieces, self.pieces.cut, self._segments.base(self.pieces.ranges(pieces)), self.install)

    def install(self, fetched: Fetched[HotPanes]) -> None:
        """Store a background fetch, except for ranges that were requested in the meantime."""
        pieces = self.pieces.unasked_of(fetched)
        if fetched.rows is not None and len(pieces):
            self._install(fetched.rows, pieces)

    # --- fetch ranges -----------------------------------------------------------------------------------------------

    def _bring(self, pieces: I64) -> None:
        step = self._limits.fetched_pieces
        for first in range(0, len(pieces), step):
            some = pieces[first : first + step]
            self._install(self._segments.within(self.pieces.ranges(some), self._changes), some)

    def _install(self, merged: HotPanes, pieces: I64) -> None:
        rows, keys = merged.memory.present(), merged.index.view()
        wanted = np.isin(self.pieces.of(keys.hashes[rows.slots]), pieces) & np.isin(rows.panes, self.panes)
        if (ttl := self._segments.ttl) is not None:  # after the merge: an expired row hides older ones
            rows.cells[:, -1] = ttl.clock.bounded(rows.cells[:, -1])
            wanted &= rows.cells[:, -1] > ttl.deadline
        self._local.put(keys, rows.chosen(wanted))
        self.pieces.came(pieces)
        self.fetched_pieces += len(pieces)

    def _make_space(self) -> None:
        """Drop the least recently used regions, if local rows are above the limit."""
        sizes = np.array([self._local.disk_bytes(region) for region in range(len(self._local.ranges))])
        for region in list(self.pieces.to_drop(sizes, self._limit)):
            rows = max((self._local.rows_of(pane) for pane in self._panes), default=0) // len(self._local.ranges)
            self._local.drop(region)
            self.pieces.drop(region, rows // self._limits.group_rows)  # about a row group each
            self.dropped_regions += 1
