"""Local cold rows by region, an even part of the hashes, so that a region's disk space can be freed.

It holds the local part of remote state: one file per region if the table allows it, otherwise one store of sorted
bytes. Called by `state.remote.remote_panes` in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.state.cells.pane_memory import PaneCells
from penstock.state.keys.hash_ranges import even_parts
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.spill.cold_file import ColdFileStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.value_heap import ValueHeap
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.cold_panes import ColdPaneStore, SortedColdStore

#: Approximate overhead of a row in a store, besides its cell: the key and the store's own data.
_ROW_BYTES = 48
#: At least this much of a region's file may stay mapped between two calls.
_MAPPED_BYTES = 256 << 10


class Regions(Protocol):
    """Cold rows of which regions can be dropped."""

    ranges: list[HashRange]

    def disk_bytes(self, region: int) -> int:
        """Return the approximate bytes of a region on the local disk."""

    def drop(self, region: int) -> None:
        """Drop a region's rows."""

    def expect(self, rows: int) -> None:
        """Set the expected number of rows in all."""

    @property
    def bounded_memory(self) -> bool:
        """See `cold_panes.ColdPaneStore`, also for the methods below."""

    def rows_of(self, pane: int) -> int: ...

    def for_changes(self) -> ColdFileStore | None: ...

    def fetch(self, keys: KeyView, requested: tuple[I32, I64], target: tuple[I64, I64], heap: ValueHeap) -> None: ...

    def put(self, keys: KeyView, rows: PaneCells) -> None: ...

    def forget(self, keys: KeyView, slots: I32, panes: I64) -> None: ...

    def drop_below(self, pane: int) -> None: ...

    def scan(self, pane: int, part: HashRange, heap: ValueHeap) -> Iterator[tuple[KeyColumns, I64, I64, I64]]: ...

    def close(self) -> None: ...


class FileRegions:
    """One file per region, for tables of one pane with fixed-width keys and values."""

    bounded_memory = True

    def __init__(
        self,
        spec: PaneTableSpec,
        owned: HashRange,
        folder: Path,
        memory_bytes: int,
        limits: StateLimits = PRODUCTION,
    ) -> None:
        """Start empty; at most about `memory_bytes` of the files are mapped between two calls."""
        self.ranges = even_parts(owned, limits.regions)
        share = max(_MAPPED_BYTES, memory_bytes // limits.regions)
        self._files = [ColdFileStore(spec, part, folder, share, limits) for part in self.ranges]
        self._changes = ColdFileStore(spec, owned, folder, memory_bytes, limits)
        self._lows = np.array([part.low for part in self.ranges], np.int64)

    def disk_bytes(self, region: int) -> int:
        """Return the bytes of a region on the local disk."""
        return self._files[region].disk_bytes

    def expect(self, rows: int) -> None:
        """Set the number of rows for which each file is allocated: its part of `rows`."""
        for file in self._files:
            file.expect(rows // len(self._files))

    def drop(self, region: int) -> None:
        """Delete a region's file."""
        self._files[region].close()

    def rows_of(self, pane: int) -> int:
        """Return the number of rows of the pane, at most."""
        return sum(file.rows_of(pane) for file in self._files)

    def for_changes(self) -> ColdFileStore:
        """Return an empty file for changed rows that are evicted before the next barrier."""
        return self._changes.for_changes()

    def fetch(self, keys: KeyView, requested: tuple[I32, I64], target: tuple[I64, I64], heap: ValueHeap) -> None:
        """Copy the cells of (slots, panes) into the empty cells of `target` = (cells, cell of each)."""
        for file, at in self._split(keys.hashes[requested[0]]):
            file.fetch(keys, (requested[0][at], requested[1][at]), (target[0], target[1][at]), heap)

    def put(self, keys: KeyView, rows: PaneCells) -> None:
        """Write rows."""
        for file, at in self._split(keys.hashes[rows.slots]):
            file.put(keys, rows.chosen(at))

    def forget(self, keys: KeyView, slots: I32, panes: I64) -> None:
        """Remove rows."""
        for file, at in self._split(keys.hashes[slots]):
            file.forget(keys, slots[at], panes[at])

    def drop_below(self, pane: int) -> None:
        """Remove all panes that start before `pane`."""
        for file in self._files:
            file.drop_below(pane)

    def scan(self, pane: int, part: HashRange, heap: ValueHeap) -> Iterator[tuple[KeyColumns, I64, I64, I64]]:
        """Yield (keys, hashes, panes, cells) of a pane's rows in a hash range."""
        for file in self._files:
            yield from file.scan(pane, part, heap)

    def close(self) -> None:
        """Free the disk space."""
        for file in self._files:
            file.close()

    def _split(self, hashes: I64) -> Iterator[tuple[ColdFileStore, I64]]:
        """Yield the regions that have some of these hashes, and the positions of those hashes."""
        if len(hashes) == 0:
            return
        region = np.searchsorted(self._lows, hashes, side="right") - 1
        order = np.argsort(region, kind="stable")
        found, first = np.unique(region[order], return_index=True)
        stops = [*first[1:].tolist(), len(order)]
        for number, start, stop in zip(found.tolist(), first.tolist(), stops, strict=True):
            yield self._files[number], order[start:stop]


class StoreRegions:
    """One store of sorted bytes, for keys and values of any type and any number of panes."""

    bounded_memory = False

    def __init__(self, owned: HashRange, rows: SortedColdStore, regions: int) -> None:
        """Start with `regions` empty regions."""
        self.ranges = even_parts(owned, regions)
        self._rows = rows
        self._lows = np.array([part.low for part in self.ranges], np.int64)
        self._bytes = np.zeros(len(self.ranges), np.int64)
        inner: ColdPaneStore = rows
        self.rows_of, self.for_changes = inner.rows_of, inner.for_changes
        self.fetch, self.forget = inner.fetch, inner.forget
        self.drop_below, self.scan, self.close = inner.drop_below, inner.scan, inner.close

    def disk_bytes(self, region: int) -> int:
        """Return the approximate bytes of a region, from the rows that were written to it."""
        return int(self._bytes[region])

    def expect(self, rows: int) -> None:
        """Do nothing: a store needs no preparation."""

    def drop(self, region: int) -> None:
        """Remove a region's rows."""
        self._rows.drop_range(self.ranges[region])
        self._bytes[region] = 0

    def put(self, keys: KeyView, rows: PaneCells) -> None:
        """Write rows."""
        sizes = self._rows.write(keys, rows) + _ROW_BYTES
        region = np.searchsorted(self._lows, keys.hashes[rows.slots], side="right") - 1
        np.add.at(self._bytes, region, sizes)
