"""Time-to-live of row state: rows expire when they were not written (or read) for a given time.

The clock is the machine's clock made monotonic: a step back holds it still. So state can live longer but never shorter,
and expired rows stay expired. After a restore it starts at the newest time in the state. Lists and maps have a time for
each element or entry, by slot: a list of times, or a dict of times. Both are in time order, so expired elements and
entries are at the front. Used by the tables of row state, in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.elements import MIN_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


class EntryStamps:
    """Times of last access, microseconds since the epoch."""

    def __init__(self, ttl: Ttl, *, lists: bool) -> None:
        """Start without times."""
        self.ttl = ttl
        self._lists = lists
        self._held: dict[int, Any] = {}

    def expired(self, slot: int) -> list[Any]:
        """Return the map keys (for a list: positions) that have expired, oldest first."""
        stamps, deadline = self._held.get(slot) or (), self.ttl.deadline
        ages = stamps.items() if isinstance(stamps, dict) else enumerate(stamps)
        return [name for name, _ in takewhile(lambda age: age[1] <= deadline, ages)]

    def forget(self, slot: int, names: Sequence[Any]) -> None:
        """Remove the times of entries of a map by their keys; of a list, of as many first elements."""
        stamps = self._held.get(slot, [] if self._lists else {})
        if self._lists:
            del stamps[: len(names)]
        else:
            for key in names:
                stamps.pop(key, None)
        if not stamps:
            self.drop(slot)

    def touch_list(self, slot: int, first: int, length: int) -> None:
        """Set the elements of a list from `first` upwards as accessed now; the list has `length`."""
        stamps = self._held.setdefault(slot, [])
        stamps[first:] = [self.ttl.clock.now] * (length - first)

    def touch_map(self, slot: int, keys: Iterable[Any]) -> None:
        """Set entries of a map as accessed now."""
        stamps, now = self._held.setdefault(slot, {}), self.ttl.clock.now
        for key in keys:
            stamps.pop(key, None)
            stamps[key] = now

    def drop(self, slot: int) -> None:
        """Remove all times of a slot."""
        self._held.pop(slot, None)

    def put(self, slot: int, stamps: Any) -> None:
        """Set the times of a slot, which had none: a list, or a dict by map key."""
        if isinstance(stamps, dict):
            stamps = dict(sorted(stamps.items(), key=lambda entry: entry[1]))
        self._held[slot] = stamps

    def times(self, slot: int) -> Any:
        """Return the times of a slot: a list, or a dict by map key."""
        return self._held[slot]

    def renumber(self, numbers: np.ndarray) -> None:
        """Renumber slots: slot s becomes `numbers[s]`."""
        self._held = {int(numbers[slot]): stamps for slot, stamps in self._held.items() if numbers[slot] >= 0}
