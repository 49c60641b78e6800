"""Runs a keyed process function over rows in order of event time, key by key instead of row by row.

A key's function sees only its own rows, state and timers, so that each key's order is enough. State is loaded and saved
once for all rows of a key. Called by `keyed_process` in a backfill, where rows are in order and none is late.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.functions.process_function import output_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.functions.process_function import ProcessContext
    from penstock.functions.state_handles import Current, TimerQueue
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.operators.rows.row_codec import ProcessOutput


@dataclass(frozen=True, slots=True)
class DueTimers:
    """The timers up to the end of a batch, by index of their key and then by time."""

    times: list[int]
    #: Index of a key: the place of its first timer; one more for the end.
    starts: list[int]

    @classmethod
    def of(cls, places: I32, times: I64, keys: int) -> DueTimers:
        """Sort timers of `keys` keys, given with the index of each one's key."""
        order = np.lexsort((times, places))
        starts = np.searchsorted(places[order], np.arange(keys + 1))
        return cls(times[order].tolist(), starts.tolist())

    def of_key(self, place: int) -> list[int]:
        """Return the times of one key's timers, in order."""
        return self.times[self.starts[place] : self.starts[place + 1]]


@dataclass(slots=True)
class KeyRuns:
    """Calls a function for the rows and event-time timers of one key after the other."""

    process: Callable[[Any, Any], Any]
    on_timer: Callable[[int, Any], Any]
    context: ProcessContext
    current: Current
    queue: TimerQueue
    output: ProcessOutput
    #: Event time before the rows and after them.
    before: int
    after: int
    due: DueTimers
    #: Emits the output so far if it has more rows than `most`, so that it does not fill memory.
    emit: Callable[[list[int]], None]
    most: int
    #: When each call with output was due, as in `ProcessOutput.times`: a timer of the past after the row that set it.
    moments: list[int] = field(default_factory=list)

    def run(self, rows: Iterable[Any], places: I32, times: I64) -> None:
        """Process rows, sorted by the index of their key and then by time, and all due timers.

        Before a row, its key's timers before the row's time fire. Event time is then just before the row.
        Every index has rows or timers.
        """
        process, context, output, heap = self.process, self.context, self.output, self.queue.heap
        emitted, ends, stamps, moments = output.rows, output.ends, output.times, self.moments
        # event time does not go beyond its value after the rows, nor back
        marks = np.clip(times - 1, self.before, self.after).tolist()
        given = zip(rows, times.tolist(), marks, strict=True)
        counts = np.bincount(places, minlength=len(self.due.starts) - 1).tolist()
        for place, count in enumerate(counts):
            self._begin(place)
            reached, size = self.before, len(emitted)
            for row, time, mark in itertools.islice(given, count):
                if mark > reached:
                    if heap and heap[0][0] <= mark:
                        self._fire(mark)
                        size = len(emitted)
                    context.watermark = reached = mark
                context.timestamp = time
                found = process(row, context)
                if found is not None:
                    emitted.extend(found)
                    if len(emitted) != size:
                        size = len(emitted)
                        ends.append(size)
                        stamps.append(time)
                        moments.append(time)
            if self.after > reached and heap and heap[0][0] <= self.after:
                self._fire(self.after)
            self.queue.end_key()
            if len(emitted) > self.most:
                self.emit(moments)
                moments.clear()
        context.watermark = self.after

    def _begin(self, place: int) -> None:
        self.current.at = place
        self.queue.begin_key(self.due.of_key(place), place, self.after)
        self.context.timestamp = self.context.watermark = self.before

    def _fire(self, until: int) -> None:
        """Fire the key's timers up to a time; event time passes each one's time."""
        context, output = self.context, self.output
        emitted, size, moment = output.rows, len(output.rows), context.timestamp
        context.time_domain = "event"
        for time, _ in self.queue.fire_until(until):
            context.timestamp = time
            if time > context.watermark:
                context.watermark = time
                moment = max(moment, time)
            found = self.on_timer(time, context)
            if found is not None:
                emitted.extend(found)
                if len(emitted) != size:
                    size = len(emitted)
                    output.ends.append(size)
                    output.times.append(output_time(context))
                    self.moments.append(moment)
        context.time_domain = None
