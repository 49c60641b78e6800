"""Time-to-live of row state: rows expire when they were not written (or read) for a given time.

The clock is the machine's clock made monotonic: a step back holds it still. So state can live longer but never shorter,
and expired rows stay expired. After a restore it starts at the newest time in the state. Used by the tables of row
state, in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.elements import MIN_TIMESTAMP

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.kernels.compiler.compile import I64

#: Restored times further ahead of the clock than this came from a wrong clock, and are capped.
_MOST_AHEAD_US = 86_400_000_000


class TtlClock:
    """The monotonic time of one operator's time-to-live; constant within a batch."""

    def __init__(self, clock: Clock) -> None:
        """Start at the time of `clock`, which may step in both directions."""
        self._clock = clock
        #: Microseconds since the epoch.
        self.now = MIN_TIMESTAMP
        self.tick()

    def tick(self) -> None:
        """Advance the time at the start of a batch."""
        self.now = max(self.now, self._clock.now_ms() * 1000)

    def bounded(self, times: I64) -> I64:
        """Return restored times of last access, capped if they are far ahead of the clock; any thread.

        Times up to `now` are not capped: rows written since may be fetched after the clock was corrected.
        """
        return np.minimum(times, max(self.now, self._clock.now_ms() * 1000 + _MOST_AHEAD_US))

    def restored(self, times: I64) -> I64:
        """Return restored times of last access, capped, and advance the time to the newest of them."""
        times = self.bounded(times)
        if len(times):
            self.now = max(self.now, int(times.max()))
        return times


@dataclass(frozen=True, slots=True)
class Ttl:
    """The time-to-live settings of one state."""

    clock: TtlClock
    duration_us: int
    #: Whether reading counts as an access.
    on_read: bool = False
    #: Whether expired values may be read until they are cleaned up.
    return_expired: bool = False

    @property
    def deadline(self) -> int:
        """Rows last accessed at this time or before have expired."""
        return self.clock.now - self.duration_us
