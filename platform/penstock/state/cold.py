"""The cold side of a pane table: the store it needs (`ColdStore`), and which keys and panes lie there (`ColdPanes`).

The hashmap backend has no cold store; `state.rocksdb` is the one of the rocksdb backend. A cold store is a spill area:
it starts empty, nothing is recovered from it, the checkpoint is the truth. Called by `PaneTable` in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.core.keygroup import HashRange
from penstock.kernels import pages as kernels
from penstock.state.cold_keys import bound, decode_keys, encode_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.kernels.columns import KeyColumns
    from penstock.kernels.compile import I32, I64
    from penstock.state.accumulators import PaneTableSpec
    from penstock.state.key_index import KeyView
    from penstock.state.panes import Rows

#: Cold rows merged with hot ones at a time.
_PART_ROWS = 200_000


class ColdStore(Protocol):
    """Sorted keys and values on the local disk."""

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write or replace."""

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys in one call, None where there is none."""

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove."""

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove all keys from `low` up to, without, `high`."""

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield keys from `low` up to, without, `high` in order, in pieces."""

    def close(self) -> None:
        """Close and remove the files."""


class ColdPanes:
    """What of one table lies in the cold store."""

    def __init__(self, spec: PaneTableSpec, store: ColdStore) -> None:
        """Nothing is cold yet."""
        self._spec = spec
        self._store = store
        #: pane -> rows written there (a row written twice counts twice).
        self._rows: dict[int, int] = {}
        self._maybe = np.zeros(0, np.uint8)
        self._touched = np.zeros(0, np.uint32)
        self._known = 0
        self._tick = 0

    @property
    def panes(self) -> list[int]:
        """Panes with cold rows."""
        return list(self._rows)

    def holds(self, panes: list[int]) -> bool:
        """Whether any of the panes has cold rows."""
        return any(p in self._rows for p in panes)

    def note_slots(self, slots: I32, count: int) -> None:
        """The slots were touched; new ones (up to `count`) may have rows in the cold store if it holds any."""
        if count > len(self._maybe):
            size = max(count, 2 * len(self._maybe), 4096)
            self._maybe = np.concatenate([self._maybe, np.zeros(size - len(self._maybe), np.uint8)])
            self._touched = np.concatenate([self._touched, np.zeros(size - len(self._touched), np.uint32)])
        self._maybe[self._known : count] = 1 if self._rows else 0
        self._known = count
        self._tick += 1
        self._touched[slots] = self._tick

    def recent(self, count: int) -> np.ndarray:
        """Return which slots to keep: at most half, those touched last."""
        touched = self._touched[:count]
        middle = np.partition(touched, count // 2)[count // 2]
        return np.asarray(touched > middle)

    def moved(self, kept: I32) -> None:
        """The table was rebuilt with these slots alone, in this order."""
        self._maybe = self._maybe[kept]
        self._touched = self._touched[kept]
        self._known = len(kept)

    def absent(self, cells: I64, cell: I64, slots: I32) -> I64:
        """Return the rows whose cell is new here although the cold store may hold it."""
        if not self._rows:
            return np.empty(0, np.int64)
        out = np.empty(len(slots), np.int64)
        return out[: kernels.absent_rows(cells, cell, slots, self._maybe, out)]

    def get(self, keys: KeyView, slots: I32, panes: I64) -> tuple[I64, I64]:
        """Return (places in `slots`, cells) of the cold rows there are, read in one sorted call."""
        asked = np.nonzero(np.isin(panes, np.array(self.panes, np.int64)))[0]
        asked = asked[np.lexsort((keys.hashes[slots[asked]], panes[asked]))]
        values = self._store.get(encode_keys(keys, slots[asked], panes[asked])) if len(asked) else []
        found = [i for i, value in enumerate(values) if value is not None]
        data = b"".join(v for v in values if v is not None)
        return asked[found], np.frombuffer(data, np.int64).reshape(len(found), self._spec.width)

    def put(self, keys: KeyView, rows: Rows) -> None:
        """Write rows; their changes are already part of a segment."""
        order = np.lexsort((keys.hashes[rows.slots], rows.panes))
        cells = rows.cells[order]
        cells[:, 0] &= ~1
        flat, width = cells.tobytes(), cells.shape[1] * 8
        values = [flat[i : i + width] for i in range(0, len(flat), width)]
        self._store.put(encode_keys(keys, rows.slots[order], rows.panes[order]), values)
        for pane, count in zip(*np.unique(rows.panes, return_counts=True), strict=True):
            self._rows[int(pane)] = self._rows.get(int(pane), 0) + int(count)

    def forget(self, keys: KeyView, slots: I32, panes: I64) -> None:
        """Remove rows that were deleted."""
        if self._rows:
            self._store.delete(encode_keys(keys, slots, panes))

    def drop_below(self, pane: int) -> None:
        """Remove all panes that start before `pane`."""
        gone = [p for p in self._rows if p < pane]
        for p in gone:
            del self._rows[p]
        if gone:
            self._store.delete_range(bound(min(gone)), bound(pane))

    def parts(self, panes: list[int], owned: HashRange) -> list[HashRange]:
        """Return hash ranges that hold a bounded number of cold rows of these panes each."""
        total = sum(self._rows.get(p, 0) for p in panes)
        parts = max(1, -(-total // _PART_ROWS))
        step = -(-(owned.high - owned.low + 1) // parts)
        lows = range(owned.low, owned.high + 1, step)
        return [HashRange(low, min(low + step - 1, owned.high)) for low in lows]

    def scan(self, panes: list[int], part: HashRange) -> Iterator[tuple[KeyColumns, I64, I64, I64]]:
        """Yield (keys, hashes, panes, cells) of the cold rows of these panes within a hash range."""
        for pane in sorted(p for p in panes if p in self._rows):
            high = bound(pane, part.high + 1) if part.high < (1 << 63) - 1 else bound(pane + 1)
            for keys, values in self._store.scan(bound(pane, part.low), high):
                cells = np.frombuffer(b"".join(values), np.int64).reshape(len(values), self._spec.width)
                columns, hashes, namespaces = decode_keys(self._spec.key_schema, keys)
                yield columns, hashes, namespaces, cells
