"""The engine's side of a process function: present values and declarations of its states, and its timer changes.

Used by the modules of states and by the operators that bind them.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.functions.migration import MigrateValues
    from penstock.functions.state_ttl import TimeToLive


class Current:
    """The index of the current key among the keys of the batch."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        """Start without a key."""
        self.at = -1


def unbound() -> NoReturn:
    """Raise the error for a declaration, which holds no state.

    Raises:
        UsageError: always.
    """
    msg = "state belongs to a key: it can only be used while a job runs"
    raise UsageError(msg, hint="test the function in a job: penstock.testing.JobHarness")


def without_key(name: str) -> NoReturn:
    """Raise the error for a state where no row or timer is handled: in `open`, `close` and `process_broadcast`.

    `name` is what the function uses: `self.` and the state, or the key of the context.

    Raises:
        UsageError: always.
    """
    msg = "state belongs to a key, and there is none here: it can only be used in process and on_timer"
    raise UsageError(msg, hint=f"use {name} in process and on_timer; a new key has nothing in it")


def cells_of(current: Current, name: str) -> Cells:
    """Return the cells of a declared state, or of the context's key, while a job runs."""
    return Cells(current, lambda: without_key(name))


class Cells:
    """Values of one state for the keys of a batch, by index of the key; loaded at the first use."""

    __slots__ = ("_load", "_refuse", "current", "items")

    def __init__(self, current: Current, refuse: Callable[[], NoReturn] = unbound) -> None:
        """Start without keys: `refuse` makes every use an error until `begin`, and after `forbid`."""
        self.current, self._refuse = current, refuse
        #: Empty until loaded. Always the same list, so that a state accesses it in one step.
        self.items: list[Any] = []
        self._load: Callable[[], list[Any]] = refuse

    def begin(self, load: Callable[[], list[Any]]) -> None:
        """Start a batch of other keys; `load` returns their values."""
        self._load = load
        self.items.clear()

    def forbid(self) -> None:
        """Make every use an error until the next batch: there is no key at present."""
        self.begin(self._refuse)

    def fill(self) -> None:
        """Load the values of the batch's keys."""
        self.items[:] = self._load()

    def take(self) -> list[Any]:
        """Return and drop the loaded values; empty if the state was not used."""
        found = self.items.copy()
        self.items.clear()
        return found


@dataclass(frozen=True, slots=True)
class Declaration:
    """Options of a declared state, besides its type."""

    ttl: TimeToLive = None
    #: Field name: its former name.
    renamed: dict[str, str] = field(default_factory=dict)
    migrate: MigrateValues | None = None
    #: The function of a reducing state, the aggregator of an aggregating one.
    fold: Any = None


def renames(renamed: Any) -> dict[str, str]:
    """Return the `renamed` of a state as a new dict; raises UsageError if it is none."""
    if renamed is None:
        return {}
    if not isinstance(renamed, dict) or not all(isinstance(text, str) for pair in renamed.items() for text in pair):
        msg = f"renamed={renamed!r} is not a dict of names"
        raise UsageError(msg, hint='write renamed={"new name": "old name"}')
    return dict(renamed)


#: The declaration of states without options, and of those that the engine makes.
PLAIN = Declaration()


def declaration_of(state: Any) -> Declaration:
    """Return the declaration of a state."""
    declared: Declaration = state._declaration  # noqa: SLF001 - hidden from users only
    return declared


class NoTimerQueue:
    """The timers of a function without `on_timer`: none can be registered."""

    def __init__(self) -> None:
        """Make every time due, so that `Timers` calls `add_now`."""
        self.horizon = math.inf
        self.times: list[int] = []
        self.places: list[int] = []

    def add_now(self, time: int, place: int) -> None:  # noqa: ARG002 - the signature of `TimerQueue`
        """Refuse the timer.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "a timer is registered, and the function has no on_timer",
            hint="define on_timer(self, timestamp, ctx) in the function",
        )

    def delete_now(self, time: int, place: int) -> None:
        """Do nothing: there are no timers."""


class TimerQueue:
    """Timers by (time, index of the key in the batch)."""

    __slots__ = ("_due", "_open", "_position", "heap", "horizon", "places", "times")

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
        #: Timers added while others fire, or those of one key; deleted ones may be left. Always the same list.
        self.heap: list[tuple[int, int]] = []

    def add_now(self, time: int, place: int) -> None:
        """Register a timer that is due at once."""
        waiting = self._waiting()
        if (time, place) not in waiting:
            waiting.add((time, place))
            heapq.heappush(self.heap, (time, place))

    def delete_now(self, time: int, place: int) -> None:
        """Delete a timer that is due."""
        self._waiting().discard((time, place))

    def fire(self, times: list[int], places: list[int]) -> Iterator[tuple[int, int]]:
        """Yield (time, index) of the due timers, given in order of time; changes during the iteration are applied."""
        self._due = list(zip(times, places, strict=True))
        self._position, self._open = 0, None
        self.heap.clear()
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

    def begin_key(self, times: list[int], place: int, horizon: int) -> None:
        """Hold the timers of one key up to `horizon`, given in order of time, until `end_key`."""
        self.heap[:] = [(time, place) for time in times]
        self._open = set(self.heap)
        self.horizon = horizon

    def fire_until(self, time: int) -> Iterator[tuple[int, int]]:
        """Yield (time, index) of the timers of the key up to a time; changes during the iteration are applied."""
        return self._added_before(time + 1)

    def end_key(self) -> None:
        """Make the timers that did not fire changes for later."""
        for time, place in self._open or ():
            self.times.append(time)
            self.places.append(place)
        self._open, self.horizon = None, MIN_TIMESTAMP - 1
        self.heap.clear()

    def _added_before(self, time: int | None) -> Iterator[tuple[int, int]]:
        while self.heap and (time is None or self.heap[0][0] < time):
            timer = heapq.heappop(self.heap)
            if self._open is not None and timer in self._open:
                self._open.remove(timer)
                yield timer

    def _waiting(self) -> set[tuple[int, int]]:
        if self._open is None:
            self._open = set(self._due[self._position :])
        return self._open
