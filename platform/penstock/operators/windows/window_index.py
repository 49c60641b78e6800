"""The windows of one key, indexed by the times they wait for and by overlap, so that no lookup scans all of them.

A key may have thousands of open windows (an hour that slides by a second) or as many sessions. The index is kept across
batches as the value of the state `windows` (`operators.windows.window_buffer`), where it acts as a dict; a restore
rebuilds it. Used by `operators.windows.window_engine`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.eventtime.windows import TimeWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.operators.windows.window_assigners import WindowAssigner

_END = attrgetter("end")


class BufferedWindow(msgspec.Struct, array_like=True):
    """The state of one window of one key."""

    #: Numbers of its rows, in order.
    rows: list[int] = []
    #: State of the trigger and of the function.
    trigger: dict[str, Any] = {}
    function: dict[str, Any] = {}
    #: The trigger's timers.
    event: set[int] = set()
    processing: set[int] = set()


class WindowIndex(dict[TimeWindow, BufferedWindow]):
    """Windows of a key; changed only by `put` and `take`."""

    __slots__ = ("_assigner", "_events", "_ordered", "_processings")

    def __init__(self, assigner: WindowAssigner, windows: Mapping[TimeWindow, BufferedWindow] | None = None) -> None:
        """Make an index of the restored `windows`, if there are any."""
        super().__init__()
        self._assigner = assigner
        #: Windows by the time they wait for.
        self._events: dict[int, dict[TimeWindow, None]] = {}
        self._processings: dict[int, dict[TimeWindow, None]] = {}
        #: Windows that merge, none of which touches another, in order of start and end.
        self._ordered: list[TimeWindow] = []
        for window, known in (windows or {}).items():
            self.put(assigner.restored(window), known)

    def put(self, window: TimeWindow, known: BufferedWindow) -> None:
        """Add a window with the times it waits for."""
        self[window] = known
        for time in known.event:
            self.wait(time, window, processing=False)
        for time in known.processing:
            self.wait(time, window, processing=True)
        self.wait(self._assigner.cleanup_time(window), window, processing=self._assigner.processing)
        if self._assigner.merges:
            insort(self._ordered, window)

    def take(self, window: TimeWindow) -> BufferedWindow:
        """Remove and return a window."""
        known = self.pop(window)
        self._leave(self._events, known.event, window)
        self._leave(self._processings, known.processing, window)
        cleanup = self._processings if self._assigner.processing else self._events
        self._leave(cleanup, (self._assigner.cleanup_time(window),), window)
        if self._assigner.merges:
            del self._ordered[bisect_left(self._ordered, window)]
        return known

    def wait(self, time: int, window: TimeWindow, *, processing: bool) -> None:
        """Register a window for that time."""
        (self._processings if processing else self._events).setdefault(time, {})[window] = None

    def no_longer(self, time: int, window: TimeWindow, *, processing: bool) -> None:
        """Remove a window's registration for that time, unless it is over then."""
        if processing != self._assigner.processing or time != self._assigner.cleanup_time(window):
            self._leave(self._processings if processing else self._events, (time,), window)

    def due(self, time: int, *, processing: bool) -> list[TimeWindow]:
        """Remove and return the windows registered for that time, in order."""
        return sorted((self._processings if processing else self._events).pop(time, ()))

    def touched(self, window: TimeWindow) -> list[TimeWindow]:
        """Return the windows that a window of the same key would merge with, in order."""
        first = stop = bisect_left(self._ordered, window.start, key=_END)
        while stop < len(self._ordered) and self._ordered[stop].start <= window.end:
            stop += 1
        return self._ordered[first:stop]

    @staticmethod
    def _leave(waiting: dict[int, dict[TimeWindow, None]], times: Iterable[int], window: TimeWindow) -> None:
        for time in times:
            windows = waiting.get(time)
            if windows is not None and window in windows:
                del windows[window]
                if not windows:
                    del waiting[time]
