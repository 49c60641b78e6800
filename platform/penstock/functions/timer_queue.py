"""Timer changes of functions during one batch, and the order in which due timers fire.

Changes are kept as lists until the batch is over. While timers fire, changes at or before `horizon`, the last time of
those that are due, take effect at once: such timers fire in the same pass, in time order, each once. Used by
`penstock.operators.process.keyed_process` for each of the two kinds of time.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from penstock.core.elements import MIN_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterator


class TimerQueue:
    """Timers by (time, index of the key in the batch)."""

    __slots__ = ("_due", "_heap", "_open", "_position", "horizon", "places", "times")

    def __init__(self) -> None:
        """Start without due timers."""
        #: Changes for later, in order; a negative index p is a deletion, of key ~p.
        self.times: list[int] = []
        self.places: list[int] = []
        self.horizon = MIN_TIMESTAMP - 1
        self._due: list[tuple[int, int]] = []
        self._position = 0
        #: The timers still to fire; None while none of them was changed.
        self._open: set[tuple[int, int]] | None = None
        self._heap: list[tuple[int, int]] = []

    def add_now(self, time: int, place: int) -> None:
        """Register a timer that is due at once."""
        waiting = self._waiting()
        if (time, place) not in waiting:
            waiting.add((time, place))
            heapq.heappush(self._heap, (time, place))

    def delete_now(self, time: int, place: int) -> None:
        """Delete a timer that is due."""
        self._waiting().discard((time, place))

    def fire(self, times: list[int], places: list[int]) -> Iterator[tuple[int, int]]:
        """Yield (time, index) of the due timers, given in order of time; changes during the iteration are applied."""
        self._due = list(zip(times, places, strict=True))
        self._position, self._open, self._heap = 0, None, []
        self.horizon = times[-1]
        for timer in self._due:
            self._position += 1
            if self._open is None:
                yield timer
                continue
            yield from self._added_before(timer[0])
            if timer in self._open:
                self._open.remove(timer)
                yield timer
        yield from self._added_before(None)
        self._due, self._open, self.horizon = [], None, MIN_TIMESTAMP - 1

    def _added_before(self, time: int | None) -> Iterator[tuple[int, int]]:
        while self._heap and (time is None or self._heap[0][0] < time):
            timer = heapq.heappop(self._heap)
            if self._open is not None and timer in self._open:
                self._open.remove(timer)
                yield timer

    def _waiting(self) -> set[tuple[int, int]]:
        if self._open is None:
            self._open = set(self._due[self._position :])
        return self._open
