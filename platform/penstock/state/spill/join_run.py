"""`Run`: rows of a join side in order of (slot, time), in memory or in a file, with range lookups.

In a file the slots are the file's own key numbers. Kept by `state.tables.join_buffer`; the join operators search it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.kernels.rows.join_kernels import find_ranges, write_pairs
from penstock.state.memory.limits import PRODUCTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.spill.join_spill import SpilledRows


@dataclass(slots=True)
class Run:
    """Rows in order of (slot, time), within a span of time."""

    slots: I32
    times: I64
    values: list[pa.Array]
    #: Bytes in memory; those of a file do not count.
    size: int
    low: int
    high: int
    spilled: SpilledRows | None = None
    #: For runs in files: the number of the group they were written in.
    group: int = 0
    #: For runs of rows that this attempt received: all of their row numbers are below this, those of later runs are
    #: not.
    stop: int = 0

    @classmethod
    def of(cls, slots: I32, times: I64, values: list[pa.Array]) -> Run:
        """Sort rows into a run."""
        order = _order(slots, times)
        chosen = pa.array(order)
        return cls.ordered(slots[order], times[order], [value.take(chosen) for value in values])

    @classmethod
    def ordered(cls, slots: I32, times: I64, values: list[pa.Array]) -> Run:
        """Make a run of sorted rows."""
        size = int(slots.nbytes + times.nbytes) + sum(int(value.nbytes) for value in values)
        return cls(slots, times, values, size, int(times.min()), int(times.max()))

    @property
    def file(self) -> SpilledRows:
        """The file of a run that has one."""
        assert self.spilled is not None  # noqa: S101 - callers check `spilled`
        return self.spilled

    @property
    def length(self) -> int:
        """The bytes of the file."""
        return 0 if self.spilled is None else self.spilled.length

    @property
    def look_at(self) -> int:
        """The time at which to clean next: the middle of the times, or the last time of a file."""
        return self.high if self.spilled is not None else self.low + (self.high - self.low) // 2

    def without(self, cleaned: int) -> Run | None:
        """Return the run without cleaned rows; a file is kept or dropped as a unit."""
        if self.spilled is not None:
            return self if self.high > cleaned else None
        kept = self.times > cleaned
        if kept.all():
            return self
        if not kept.any():
            return None
        return self.chosen(kept)

    def chosen(self, kept: np.ndarray) -> Run:
        """Return the selected rows, at least one."""
        return self.taken(np.flatnonzero(kept))

    def taken(self, rows: I64) -> Run:
        """Return the rows at these ascending positions, at least one."""
        chosen = pa.array(rows)
        made = Run.ordered(self.slots[rows], self.times[rows], [value.take(chosen) for value in self.values])
        made.stop = self.stop
        return made

    def ranges(self, slots: I32, lows: I64, highs: I64) -> tuple[I64, I64]:
        """Return the first position and the number of rows of each requested slot in its span (inclusive)."""
        ranges = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
        find_ranges((self.slots, self.times), slots, (lows, highs), ranges)
        return ranges

    def pairs(self, slots: I32, lows: I64, highs: I64, most: int = PRODUCTION.join_pairs) -> Iterator[tuple[I32, I32]]:
        """Yield (request, position in this run) of all rows of a requested slot in its span, `most` at a time."""
        ranges = self.ranges(slots, lows, highs)
        total, state = int(ranges[1].sum()), np.zeros(2, np.int64)
        while total > 0:
            room = min(total, most)
            asking, found = np.empty(room, np.int32), np.empty(room, np.int32)
            total -= int(write_pairs(ranges, state, (asking, found)))
            yield asking, found


def _order(slots: I32, times: I64) -> I64:
    """Return the order of (slot, time); both in one word if they fit, which merges sorted parts in one pass."""
    low, span = int(times.min()), int(times.max()) - int(times.min())
    bits = span.bit_length()
    if bits + int(slots.max()).bit_length() < 63:
        return np.argsort((slots.astype(np.int64) << bits) | (times - low), kind="stable")
    return np.lexsort((times, slots))
