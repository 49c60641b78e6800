"""Cells of a pane table frozen at a barrier, as segment content (`frozen.FrozenContent`, `frozen.InPieces`).

Made by `state.panes.pane_changes` in the owner's thread; encoded in any thread after their pages were copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.kernels.rows.order import hash_order
from penstock.state.cells.pane_memory import Rows
from penstock.state.cells.pane_rows import rows_to_table, rows_to_tables
from penstock.state.keys.hash_ranges import inside
from penstock.state.memory.limits import PRODUCTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.pane_memory import FrozenRows


@dataclass(frozen=True, slots=True)
class FrozenPanes:
    """The frozen cells of a pane table; their pages may still have to be copied."""

    spec: PaneTableSpec
    rows: FrozenRows
    #: Memory of variable-length values, kept only to keep it alive.
    pinned: tuple[I64, ...] = ()
    #: Rows of a batch if memory is not bounded: its columns stay in the cache, and the next batch reuses their memory.
    piece_rows: int = PRODUCTION.encoded_rows

    @property
    def memory_bytes(self) -> int:
        """The bytes of the copies."""
        return self.rows.memory_bytes

    @property
    def ordered_rows(self) -> int:
        """The number of all copied rows."""
        return sum(len(part.slots) for part in self.rows.copied)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the cells as columns of a segment, in tables of `piece_rows`."""
        self._check_copied()
        merged = _merged(self.rows.copied, self.spec.width)
        return rows_to_tables(self.spec, self.rows.keys, merged, self.piece_rows)

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the cells as columns of a segment, sorted by hash, `rows` at a time."""
        self._check_copied()
        parts = self.rows.copied
        slots = np.concatenate([np.empty(0, np.int32), *(p.slots for p in parts)])
        order = hash_order(self.rows.keys.hashes[slots])  # the array of hashes is freed again
        chosen = np.zeros(len(order), np.bool_)
        for begin in range(0, len(order), rows):
            piece = order[begin : begin + rows]
            chosen[piece] = True
            yield rows_to_table(self.spec, self.rows.keys, _chosen_of(parts, chosen, self.spec.width))
            chosen[piece] = False

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the copied cells in some hash ranges; uncopied ones are unchanged in the table's memory."""
        for part in tuple(self.rows.copied):
            found = inside(self.rows.keys.hashes[part.slots], ranges)
            if found.any():
                yield rows_to_table(self.spec, self.rows.keys, part.chosen(found))

    def _check_copied(self) -> None:
        if self.rows.left:
            left = self.rows.left
            raise RuntimeError(f"{left} frozen pages are not copied yet: call copy_pages until it returns True")


def _chosen_of(parts: list[Rows], chosen: NDArray[np.bool_], width: int) -> Rows:
    """Return the chosen rows of several parts, in their order there."""
    found, first = [], 0
    for part in parts:
        found.append(part.chosen(np.flatnonzero(chosen[first : first + len(part.slots)])))
        first += len(part.slots)
    return _merged(found, width)


def _merged(parts: list[Rows], width: int) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return Rows(
        np.concatenate([np.empty(0, np.int32), *(p.slots for p in parts)]),
        np.concatenate([np.empty(0, np.int64), *(p.panes for p in parts)]),
        np.concatenate([np.empty((0, width), np.int64), *(p.cells for p in parts)]),
    )
