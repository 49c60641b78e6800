"""Partial aggregates of one batch: its rows of each key and pane combined into one cell.

Only key numbers are kept between batches, to be faster. Called by `operators.aggregates.combine` in the sending
subtask's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.aggregates import pane_assignment
from penstock.kernels.aggregates.pane_assignment import TIME_LIMIT
from penstock.state.cells.pane_memory import add_rows
from penstock.state.keys.key_index import KeyIndex, numbers_of_dense_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import AccumulatorInput, PaneTableSpec

#: Most keys that are kept between batches; one batch may exceed it before they are dropped.
_MOST_KEYS = 1 << 15
#: Most panes of a batch, and most numbers for (key, pane).
_MOST_PANES, _MOST_PLACES = 64, 1 << 20
#: Integer keys with a span of at most this are their own numbers; the array fits the second-level cache.
_DENSE_PLACES = 1 << 16


@dataclass(frozen=True, slots=True)
class PartialRows:
    """One row per group, in order of the groups' first rows."""

    #: The group's first row in the batch, which supplies its key.
    first_rows: I64
    panes: I64
    cells: I64


class Partials:
    """A combiner of rows, one batch at a time."""

    def __init__(self, spec: PaneTableSpec, pane: int, offset: int) -> None:
        """Combine by panes of length `pane` that start at multiples of it plus `offset` (microseconds)."""
        self._spec = spec
        self._pane = pane
        self._offset = offset
        self._index = KeyIndex(spec.key_schema)
        self._known = np.zeros(0, np.int64)
        self._group_of = np.zeros(0, np.int64)
        self._floor = 1

    def reduce(
        self, keys: KeyColumns, times: I64, inputs: Sequence[AccumulatorInput | None], limit: int
    ) -> PartialRows | None:
        """Return the groups of a batch (with at least one row).

        None if there are more than `limit`, if times are too far apart or impossible, or if a sum overflows. Then the
        rows are sent uncombined.
        """
        first, last = int(times.min()), int(times.max())
        if first <= -TIME_LIMIT or last >= TIME_LIMIT:
            return None
        base = first - (first - self._offset) % self._pane
        panes = (last - base) // self._pane + 1
        if panes > _MOST_PANES:
            return None
        slots, count = self._numbered(keys, len(times), panes)
        if count * panes > _MOST_PLACES:
            return None
        self._make_room(count * panes, len(times))
        first_rows, starts = np.empty(limit, np.int64), np.empty(limit, np.int64)
        window = np.array([self._pane, base, panes], np.int64)
        group_of = self._group_of[: len(times)]
        groups = pane_assignment.group_rows(
            slots, times, window, (self._known, group_of, first_rows, starts), self._floor
        )
        self._floor += len(times)
        if groups < 0:
            return None
        cells = np.empty((groups, self._spec.width), np.int64)
        cells[:] = self._spec.initial
        if add_rows(self._spec, (cells, cells.view(np.float64)), group_of, inputs) is not None:
            return None
        return PartialRows(first_rows[:groups], starts[:groups], cells)

    def _numbered(self, keys: KeyColumns, rows: int, panes: int) -> tuple[I32, int]:
        """Return a number for the key of each row, and the exclusive upper bound of the numbers."""
        near = numbers_of_dense_keys(keys, _DENSE_PLACES // panes)
        if near is not None:
            return near
        if self._index.count > _MOST_KEYS:
            self._index = KeyIndex(self._spec.key_schema)
        remembered = self._index.count
        slots = self._index.slots_of(keys, rows)
        if remembered and self._index.count * panes > _MOST_PLACES:  # retry without the keys of earlier batches
            self._index = KeyIndex(self._spec.key_schema)
            slots = self._index.slots_of(keys, rows)
        return slots, self._index.count

    def _make_room(self, places: int, rows: int) -> None:
        if places > len(self._known):
            self._known = np.zeros(max(places, 2 * len(self._known)), np.int64)
        if rows > len(self._group_of):
            self._group_of = np.empty(rows, np.int64)
