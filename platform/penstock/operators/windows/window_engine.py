"""The handling of rows and timers in windows that keep their rows: Flink's rules, row by row.

A row is added to its windows that are not yet over; sessions are merged first. The trigger then decides whether a
window fires, and whether its rows are deleted. A window is deleted when its allowed lateness is over. Called by
`operators.windows.window_rows`; independent of columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.eventtime.windows import TimeWindow
from penstock.functions.state_handles import TimerQueue
from penstock.functions.triggers import TriggerResult
from penstock.operators.windows.window_buffer import BufferedWindow, KeyWindows, WindowIndex

if TYPE_CHECKING:
    from penstock.functions.evictors import Evictor, WindowElement
    from penstock.functions.triggers import Trigger
    from penstock.operators.windows.window_assigners import WindowAssigner
    from penstock.operators.windows.window_buffer import WindowBuffer


class WindowSink(Protocol):
    """A receiver of windows that computes results."""

    def fire(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow, elements: list[WindowElement]) -> None:
        """Compute a window of these rows."""

    def clear(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        """Handle the deletion of a window."""


class _Context:
    """The context of the trigger, reused for each window."""

    def __init__(self, no_key: KeyWindows) -> None:
        self.events, self.processings = TimerQueue(), TimerQueue()
        self.state: dict[str, Any] = {}
        self.watermark, self.processing_time = MIN_TIMESTAMP, MIN_TIMESTAMP
        self.known = BufferedWindow()
        #: The current window's `known`, and its key.
        self.key = no_key
        self.window = TimeWindow(0, 0)

    def event(self, timestamp: int) -> None:
        if timestamp not in self.known.event:
            self.known.event.add(timestamp)
            self.register(timestamp, processing=False)

    def processing(self, timestamp: int) -> None:
        if timestamp not in self.known.processing:
            self.known.processing.add(timestamp)
            self.register(timestamp, processing=True)

    def delete(self, timestamp: int, *, processing: bool = False) -> None:
        times = self.known.processing if processing else self.known.event
        if timestamp in times:
            times.discard(timestamp)
            self.key.windows.cancel(timestamp, self.window, processing=processing)

    def register(self, timestamp: int, *, processing: bool) -> None:
        """Register a timer of the key, and a call of the window at that time."""
        queue, key = self.processings if processing else self.events, self.key
        key.windows.wait(timestamp, self.window, processing=processing)
        if timestamp <= queue.horizon:
            queue.add_now(timestamp, key.at)
        else:
            queue.times.append(timestamp)
            queue.places.append(key.at)


class WindowEngine:
    """Flink's rules for rows and timers of windows."""

    def __init__(
        self,
        assigner: WindowAssigner,
        trigger: Trigger,
        evictor: Evictor | None,
        buffer: WindowBuffer,
        sink: WindowSink,
    ) -> None:
        """Make an engine; changes are reported to `buffer`."""
        self.assigner = assigner
        self._trigger = trigger
        self._evictor = evictor
        self._buffer = buffer
        self._sink = sink
        self.context = _Context(KeyWindows(0, {}, WindowIndex(assigner), MIN_TIMESTAMP))
        #: Time of the current row or timer.
        self.time = MIN_TIMESTAMP

    def add(self, key: KeyWindows, element: WindowElement, time: int) -> bool:
        """Add a row to the windows of `time` (the assigner's time); return False if it is late."""
        self.time = element.timestamp
        windows = self.assigner.windows_of(time)
        if self.assigner.merges:
            return self._add_merging(key, element, windows[0])
        # Flink's rule: between windows with gaps, a row in none of them is late once the watermark has passed it
        taken = not windows and not self.assigner.is_past(element.timestamp, key.watermark)
        for window in windows:
            if not self.assigner.is_late(window, key.watermark):
                taken = True
                known = key.windows.get(window)
                self._put(key, window, known or self._new(key, window), element)
        return taken

    def timer(self, key: KeyWindows, time: int, *, processing: bool) -> None:
        """Handle a timer of the key."""
        self.time = time
        trigger = self._trigger
        hook = trigger.on_processing_time if processing else trigger.on_event_time
        for window in key.windows.due(time, processing=processing):
            known = key.windows[window]
            times = known.processing if processing else known.event
            over = processing == self.assigner.processing and time == self.assigner.cleanup_time(window)
            if over or time in times:  # the trigger is called once more when the window is over
                times.discard(time)
                self._bind(key, window, known)
                self._act(hook(time, window, self.context), key, window, known)
            if over:
                self._drop(key, window)

    # --- windows ----------------------------------------------------------------------------------------------------

    def _add_merging(self, key: KeyWindows, element: WindowElement, window: TimeWindow) -> bool:
        overlapping = key.windows.overlapping(window)
        merged = window
        if overlapping:
            merged = TimeWindow(min(window.start, overlapping[0].start), max(window.end, overlapping[-1].end))
        if self.assigner.is_late(merged, key.watermark):
            return False
        if overlapping == [merged]:
            self._put(key, merged, key.windows[merged], element)
            return True
        parts = [key.windows.take(w) for w in overlapping]
        for removed in overlapping:
            self._buffer.changed(key, removed)
        known = self._new(key, merged)
        if parts:
            known.rows = sorted(number for part in parts for number in part.rows)
            self._bind(key, merged, known)
            self._trigger.on_merge(merged, self.context, [part.trigger for part in parts])
        self._put(key, merged, known, element)
        return True

    def _new(self, key: KeyWindows, window: TimeWindow) -> BufferedWindow:
        known = BufferedWindow()
        key.windows.put(window, known)
        cleanup = self.assigner.cleanup_time(window)
        if cleanup < MAX_TIMESTAMP:
            self._bind(key, window, known)
            self.context.register(cleanup, processing=self.assigner.processing)
        return known

    def _put(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow, element: WindowElement) -> None:
        known.rows.append(element.number)
        element.references += 1
        key.rows[element.number] = element
        self._bind(key, window, known)
        result = self._trigger.on_element(element.value, element.timestamp, window, self.context)
        self._act(result, key, window, known)

    def _bind(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        context = self.context
        context.known, context.state, context.key, context.window = known, known.trigger, key, window
        context.watermark = key.watermark

    def _act(self, result: TriggerResult, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        self._buffer.changed(key, window)
        if TriggerResult.FIRE in result and known.rows:
            self._fire(key, window, known)
        if TriggerResult.PURGE in result:
            self._buffer.forget(key, known.rows)
            known.rows = []
            if self.assigner.is_global and known == BufferedWindow():
                key.windows.take(window)

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
        known = key.windows.take(window)
        self._buffer.forget(key, known.rows)
        self._buffer.changed(key, window)
        self._sink.clear(key, window, known)
