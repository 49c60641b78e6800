"""Cold rows that stay in the object store until they are asked for: the cold side of a table with the remote backend.

The hashes are cut into pieces. A restore reads the footers of the segments; the first lookup of a key that is not in
memory fetches its piece from all of them and puts the rows into a local place, where they are looked up as the cold
rows of other backends are. A piece that is there may be dropped again whenever local space is short: whatever has left
memory is in a segment of the log, in a frozen one that waits for its upload, or in the place of the changes since the
last freeze, and is read from there. Called by `PaneTable` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.keygroup import HashRange
from penstock.state.hash_ranges import even_parts
from penstock.state.panes import Rows
from penstock.state.segments import ROW_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.kernels.columns import KeyColumns
    from penstock.kernels.compile import I32, I64
    from penstock.state.accumulators import PaneTableSpec
    from penstock.state.changes import Changes
    from penstock.state.cold_file import FileRows
    from penstock.state.hot import HotPanes
    from penstock.state.key_index import KeyView
    from penstock.state.regions import Regions
    from penstock.state.remote_segments import RemoteSegments

#: Pieces fetched at a time.
_TOGETHER = 32
#: Rows taken in at a time while every row may need a piece of its own, and when none does.
_FEW_ROWS, _MANY_ROWS = 32, 1 << 20
#: Pieces a call may fetch before the next takes fewer rows.
_MANY_PIECES = 16
#: When local space runs short, this part of it is made free.
_FREED = 8


@dataclass(slots=True)
class Fetched:
    """Pieces to be fetched in the background: `run` in any thread, then `install` in the owner's."""

    owner: RemoteRows
    pieces: I64
    read: Callable[[], HotPanes]
    #: How often pieces had been cut anew when this was made.
    cut: int
    rows: HotPanes | None = None

    def run(self) -> None:
        """Read the rows.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        self.rows = self.read()

    def install(self) -> None:
        """Put the rows in."""
        self.owner.install(self)


class RemoteRows:
    """Cold rows of one table (`cold.ColdRows`), of which a part lies on the local disk."""

    _changes: Changes

    def __init__(self, spec: PaneTableSpec, segments: RemoteSegments, local: Regions, limit_bytes: int) -> None:
        """Read the footers of the segments that were restored; about `limit_bytes` may be taken on the local disk."""
        self._spec = spec
        self._segments = segments
        self._local = local
        self._limit = limit_bytes
        self._owned = HashRange(local.ranges[0].low, local.ranges[-1].high)
        lows = np.array([part.low for part in local.ranges], np.int64)
        self._region_lows = lows
        #: Where the pieces begin, which of them are here, and which were ever.
        self._lows = np.union1d(lows, [c for c in segments.cuts().tolist() if c in self._owned]).astype(np.int64)
        restored = segments.rows > 0
        local.expect(segments.rows)
        self._here = np.full(len(self._lows), not restored)
        self._been = np.full(len(self._lows), not restored)
        self._panes = ({0} if spec.single_pane else segments.panes()) if restored else set()
        self._used = np.zeros(len(lows), np.int64)
        self._calls = 0
        self._cut = 0
        self._rows = _FEW_ROWS if restored else _MANY_ROWS
        #: Whether many pieces were fetched since `next_rows` was asked.
        self._busy = restored
        self.fetched_pieces = 0
        self.dropped_regions = 0

    def follow(self, changes: Changes) -> None:
        """Take the table's changes into account; once, before anything is asked for."""
        self._changes = changes

    @property
    def in_file(self) -> bool:
        """Whether what is here lies in files."""
        return self._local.in_file

    @property
    def panes(self) -> list[int]:
        """Panes that may have rows, here or in the object store."""
        return list(self._panes)

    @property
    def disk_bytes(self) -> int:
        """Bytes taken on the local disk, about."""
        return sum(self._local.disk_bytes(region) for region in range(len(self._region_lows)))

    def next_rows(self) -> int:
        """Return how many rows to take in next: few while almost each has to be fetched."""
        self._rows = max(_FEW_ROWS, self._rows // 4) if self._busy else min(_MANY_ROWS, self._rows * 2)
        self._busy = False
        return self._rows

    def rows_of(self, pane: int) -> int:
        """Return how many rows the pane has, at most."""
        if pane not in self._panes:
            return 0
        return self._local.rows_of(pane) + (0 if self._here.all() else self._segments.rows)

    def for_changes(self) -> FileRows | None:
        """Return an empty place for changed rows that leave memory before the next barrier; None: there is none."""
        return self._local.for_changes()

    def fetch(self, keys: KeyView, asked: tuple[I32, I64], target: tuple[I64, I64]) -> None:
        """Copy the cells of (slots, panes) to `target`, where these are empty; fetches the pieces they lie in.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        hashes = keys.hashes[asked[0][np.isin(asked[1], self.panes)]]
        if len(hashes) == 0:
            return
        self._touch(hashes)
        if not self._here[self._piece_of(hashes)].all():
            self._make_space()
        pieces = np.unique(self._piece_of(hashes))
        missing = pieces[~self._here[pieces]]
        self._bring(missing)
        self._busy = self._busy or len(missing) > _MANY_PIECES
        self._local.fetch(keys, asked, target)

    def put(self, keys: KeyView, rows: Rows) -> None:
        """Write rows; where the piece is not here they are left out: their changes are known without them."""
        self._panes.update(np.unique(rows.panes).tolist())
        pieces = self._piece_of(keys.hashes[rows.slots])
        here = self._here[pieces]
        self._been[pieces] = True  # what was restored is not all that there is
        if here.any():
            self._local.put(keys, rows if here.all() else Rows(rows.slots[here], rows.panes[here], rows.cells[here]))

    def forget(self, keys: KeyView, slots: I32, panes: I64) -> None:
        """Remove rows that are here."""
        self._local.forget(keys, slots, panes)

    def drop_below(self, pane: int) -> None:
        """Remove all panes that start before `pane`; the log's tombstone hides those that are not here."""
        self._panes = {p for p in self._panes if p >= pane}
        self._local.drop_below(pane)

    def scan(self, pane: int, part: HashRange) -> Iterator[tuple[KeyColumns, I64, I64, I64]]:
        """Yield (keys, hashes, panes, cells) of a pane's rows within a hash range; fetches what is not here."""
        first, last = self._pieces(part)
        self._touch(self._lows[first : last + 1])
        if not self._here[first : last + 1].all():
            self._make_space()
            first, last = self._pieces(part)
            self._bring(first + np.flatnonzero(~self._here[first : last + 1]))
        yield from self._local.scan(pane, part)

    def close(self) -> None:
        """Give the disk back."""
        self._local.close()

    # --- in the background ------------------------------------------------------------------------------------------

    def next_fetch(self) -> Fetched | None:
        """Return the next pieces to be fetched before anybody asks; None: all have been, or there is no space."""
        if self.disk_bytes * (_FREED + 1) > self._limit * _FREED:
            return None
        pieces = np.flatnonzero(~self._been)[:_TOGETHER]
        if len(pieces) == 0:
            return None
        return Fetched(self, pieces, self._segments.base(self._ranges(pieces)), self._cut)

    def install(self, fetched: Fetched) -> None:
        """Put in what was fetched in the background, but for pieces that were asked for meanwhile."""
        if fetched.rows is None or fetched.cut != self._cut:  # pieces have other numbers now
            return
        pieces = fetched.pieces[~self._been[fetched.pieces]]
        self._install(fetched.rows, pieces)

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _piece_of(self, hashes: I64) -> I64:
        return np.searchsorted(self._lows, hashes, side="right") - 1

    def _pieces(self, part: HashRange) -> tuple[int, int]:
        """Return the first and the last piece that a range of hashes touches."""
        first, last = self._piece_of(np.array([part.low, part.high], np.int64)).tolist()
        return first, last

    def _range(self, piece: int) -> HashRange:
        last = piece + 1 == len(self._lows)
        return HashRange(int(self._lows[piece]), self._owned.high if last else int(self._lows[piece + 1]) - 1)

    def _ranges(self, pieces: I64) -> list[HashRange]:
        """Return the ranges of ascending pieces, neighbours as one."""
        ranges: list[HashRange] = []
        for piece in pieces.tolist():
            part = self._range(piece)
            if ranges and ranges[-1].high + 1 == part.low:
                part = HashRange(ranges.pop().low, part.high)
            ranges.append(part)
        return ranges

    def _bring(self, pieces: I64) -> None:
        for first in range(0, len(pieces), _TOGETHER):
            some = pieces[first : first + _TOGETHER]
            self._install(self._segments.within(self._ranges(some), self._changes), some)

    def _install(self, merged: HotPanes, pieces: I64) -> None:
        rows, keys = merged.memory.present(), merged.index.view()
        wanted = np.isin(self._piece_of(keys.hashes[rows.slots]), pieces) & np.isin(rows.panes, self.panes)
        self._local.put(keys, Rows(rows.slots[wanted], rows.panes[wanted], rows.cells[wanted]))
        self._here[pieces] = self._been[pieces] = True
        self.fetched_pieces += len(pieces)

    def _touch(self, hashes: I64) -> None:
        self._calls += 1
        self._used[np.searchsorted(self._region_lows, hashes, side="right") - 1] = self._calls

    def _make_space(self) -> None:
        """Drop the regions that were not asked for longest, if what is here takes more than it may."""
        sizes = np.array([self._local.disk_bytes(region) for region in range(len(self._region_lows))])
        taken = int(sizes.sum())
        if taken <= self._limit:
            return
        for region in np.argsort(self._used, kind="stable").tolist():
            if taken * _FREED <= self._limit * (_FREED - 1):
                break
            if sizes[region]:
                taken -= int(sizes[region])
                self._drop(region)

    def _drop(self, region: int) -> None:
        """Forget what is here of a region; its pieces are cut anew, so that each is about a row group."""
        part = self._local.ranges[region]
        first, last = self._pieces(part)
        rows = max((self._local.rows_of(pane) for pane in self._panes), default=0) // len(self._region_lows)
        lows = [p.low for p in even_parts(part, max(1, rows // ROW_GROUP))]
        if len(lows) <= last + 1 - first:
            lows = self._lows[first : last + 1].tolist()
        self._local.drop(region)
        self._lows = np.concatenate([self._lows[:first], np.array(lows, np.int64), self._lows[last + 1 :]])
        gone, been = np.zeros(len(lows), np.bool_), np.ones(len(lows), np.bool_)
        self._here = np.concatenate([self._here[:first], gone, self._here[last + 1 :]])
        self._been = np.concatenate([self._been[:first], been, self._been[last + 1 :]])
        self._cut += 1
        self.dropped_regions += 1
