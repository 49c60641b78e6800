"""Time-to-live of row state: what has not been written (or read) for so long is gone.

Time is the machine's clock, but it never goes back here: a step back holds it still, so state lives longer and never
shorter, and what has expired stays so. After a restore it begins with the newest time in the state. Used by the tables
of row state, in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.elements import MIN_TIMESTAMP

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.kernels.compiler.compile import I64

#: Restored times further ahead of the clock come of a clock that was wrong: they count as this far ahead.
_MOST_AHEAD_US = 86_400_000_000


class TtlClock:
    """The time of one operator's time-to-live; all of a batch happens at one time."""

    def __init__(self, clock: Clock) -> None:
        """`clock` may step in both directions."""
        self._clock = clock
        #: Microseconds since the epoch.
        self.now = MIN_TIMESTAMP
        self.tick()

    def tick(self) -> None:
        """A batch begins."""
        self.now = max(self.now, self._clock.now_ms() * 1000)

    def bounded(self, times: I64) -> I64:
        """Return restored times of last access, those far ahead of the clock as far as they may count; any thread.

        What was written since, up to now, counts as it is: it may be fetched when the clock has been put right.
        """
        return np.minimum(times, max(self.now, self._clock.now_ms() * 1000 + _MOST_AHEAD_US))

    def restored(self, times: I64) -> I64:
        """Return restored times of last access; time goes on from the newest of them."""
        times = self.bounded(times)
        if len(times):
            self.now = max(self.now, int(times.max()))
        return times


@dataclass(frozen=True, slots=True)
class Ttl:
    """What one state asks for."""

    clock: TtlClock
    duration_us: int
    #: Reading is an access too.
    on_read: bool = False
    #: What has expired may be read until it is cleaned up.
    return_expired: bool = False

    @property
    def deadline(self) -> int:
        """What was last accessed then or before has expired."""
        return self.clock.now - self.duration_us
