"""What happens to a row, or when a timer is due, in windows that keep their rows: Flink's rules, row by row.

A row goes into its windows that are not yet over, sessions grow together first; the trigger then says whether a window
is computed, and whether its rows are forgotten. A window is forgotten when its allowed lateness is over. Driven by
`operators.window_rows`; knows of no columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.eventtime.windows import TimeWindow
from penstock.operators.timer_queue import TimerQueue
from penstock.operators.triggers import TriggerResult
from penstock.operators.window_buffer import BufferedWindow

if TYPE_CHECKING:
    from penstock.operators.evictors import Evictor, WindowElement
    from penstock.operators.triggers import Trigger
    from penstock.operators.window_assigners import WindowAssigner
    from penstock.operators.window_buffer import KeyWindows, WindowBuffer


class WindowSink(Protocol):
    """What computes windows."""

    def fire(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow, elements: list[WindowElement]) -> None:
        """Compute a window of these rows."""

    def clear(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        """The window is over."""


class _Context:
    """What the trigger is given, for one window after another."""

    def __init__(self) -> None:
        self.events, self.processings = TimerQueue(), TimerQueue()
        self.state: dict[str, Any] = {}
        self.watermark, self.processing_time = MIN_TIMESTAMP, MIN_TIMESTAMP
        self.place = 0
        self.known = BufferedWindow()

    def event(self, timestamp: int) -> None:
        if timestamp not in self.known.event:
            self.known.event.add(timestamp)
            self.register(timestamp, self.place, processing=False)

    def processing(self, timestamp: int) -> None:
        if timestamp not in self.known.processing:
            self.known.processing.add(timestamp)
            self.register(timestamp, self.place, processing=True)

    def delete(self, timestamp: int, *, processing: bool = False) -> None:
        (self.known.processing if processing else self.known.event).discard(timestamp)

    def register(self, timestamp: int, place: int, *, processing: bool) -> None:
        """Let the key's timer of that time become due; which window waits for it is found then."""
        queue = self.processings if processing else self.events
        if timestamp <= queue.horizon:
            queue.add_now(timestamp, place)
        else:
            queue.times.append(timestamp)
            queue.places.append(place)


class WindowEngine:
    """The rules."""

    def __init__(
        self,
        assigner: WindowAssigner,
        trigger: Trigger,
        evictor: Evictor | None,
        buffer: WindowBuffer,
        sink: WindowSink,
    ) -> None:
        """`buffer` is told what has changed."""
        self.assigner = assigner
        self._trigger = trigger
        self._evictor = evictor
        self._buffer = buffer
        self._sink = sink
        self.context = _Context()
        #: Time of the row or timer that is being looked at.
        self.time = MIN_TIMESTAMP

    def add(self, key: KeyWindows, element: WindowElement, time: int) -> bool:
        """Take a row whose windows are those of `time`; False: it is late."""
        self.time = element.timestamp
        windows = self.assigner.windows_of(time)
        if self.assigner.merges:
            return self._add_merging(key, element, windows[0])
        taken = not windows
        for window in windows:
            if not self.assigner.is_late(window, key.watermark):
                taken = True
                known = key.windows.get(window)
                self._put(key, window, known or self._new(key, window), element)
        return taken

    def timer(self, key: KeyWindows, time: int, *, processing: bool) -> None:
        """A timer of the key is due."""
        self.time = time
        trigger = self._trigger
        hook = trigger.on_processing_time if processing else trigger.on_event_time
        for window in sorted(key.windows):
            known = key.windows[window]
            times = known.processing if processing else known.event
            if time in times:
                times.discard(time)
                self._bind(key, known)
                self._act(hook(time, window, self.context), key, window, known)
            if processing == self.assigner.processing and time == self.assigner.cleanup_time(window):
                self._drop(key, window)

    # --- windows ----------------------------------------------------------------------------------------------------

    def _add_merging(self, key: KeyWindows, element: WindowElement, window: TimeWindow) -> bool:
        touched = sorted(w for w in key.windows if w.start <= window.end and w.end >= window.start)
        merged = TimeWindow(
            min([window.start, *(w.start for w in touched)]), max([window.end, *(w.end for w in touched)])
        )
        if self.assigner.is_late(merged, key.watermark):
            return False
        if touched == [merged]:
            self._put(key, merged, key.windows[merged], element)
            return True
        parts = [key.windows.pop(w) for w in touched]
        for gone in touched:
            self._buffer.changed(key, gone)
        known = self._new(key, merged)
        if parts:
            known.rows = sorted(number for part in parts for number in part.rows)
            self._bind(key, known)
            self._trigger.on_merge(merged, self.context, [part.trigger for part in parts])
        self._put(key, merged, known, element)
        return True

    def _new(self, key: KeyWindows, window: TimeWindow) -> BufferedWindow:
        known = key.windows[window] = BufferedWindow()
        cleanup = self.assigner.cleanup_time(window)
        if cleanup < MAX_TIMESTAMP:
            self.context.register(cleanup, key.at, processing=self.assigner.processing)
        return known

    def _put(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow, element: WindowElement) -> None:
        known.rows.append(element.number)
        element.references += 1
        key.rows[element.number] = element
        self._bind(key, known)
        result = self._trigger.on_element(element.value, element.timestamp, window, self.context)
        self._act(result, key, window, known)

    def _bind(self, key: KeyWindows, known: BufferedWindow) -> None:
        context = self.context
        context.known, context.state, context.place = known, known.trigger, key.at
        context.watermark = key.watermark

    def _act(self, result: TriggerResult, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        self._buffer.changed(key, window)
        if TriggerResult.FIRE in result and known.rows:
            self._fire(key, window, known)
        if TriggerResult.PURGE in result:
            self._buffer.forget(key, known.rows)
            known.rows = []
            if self.assigner.is_global and known == BufferedWindow():
                del key.windows[window]

    def _fire(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        elements = [key.rows[number] for number in known.rows]
        if self._evictor is None:
            self._sink.fire(key, window, known, elements)
            return
        seen = list(self._evictor.evict_before(elements, window))
        self._sink.fire(key, window, known, seen)
        stay = [element.number for element in self._evictor.evict_after(seen, window)]
        left = set(stay)
        self._buffer.forget(key, [number for number in known.rows if number not in left])
        known.rows = stay

    def _drop(self, key: KeyWindows, window: TimeWindow) -> None:
        known = key.windows.pop(window)
        self._buffer.forget(key, known.rows)
        self._buffer.changed(key, window)
        self._sink.clear(key, window, known)
