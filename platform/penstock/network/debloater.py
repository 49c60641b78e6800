"""The bytes that may be in flight to one subtask, from the rows that it processes in a target time; pure.

Flink calls this buffer debloating. `input_gate` asks at each poll and announces the windows; `credit` keeps to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.clock import Clock

#: Busy time of the first measurement, of each later one, and of those that count for the rate.
_FIRST_PERIOD_MS, _PERIOD_MS, _SMOOTHING_MS = 20.0, 200.0, 2_000.0
#: The window of a channel before the first measurement, and the smallest one.
_FIRST_BYTES, _LEAST_BYTES = 4 << 10, 1 << 10
#: A smaller change of the window is not announced.
_CHANGE = 0.25


class Debloater:
    """Measures one gate and sizes the windows of its channels."""

    def __init__(self, target_ms: int, channels: int, most_bytes: int, clock: Clock) -> None:
        """Let rows of `target_ms` wait at both ends of `channels`, with at most `most_bytes` in flight on each."""
        self._target_ms = target_ms / 2  # as many rows wait at the sender
        self._channels = max(1, channels)
        self._most = most_bytes
        self._clock = clock
        #: The bytes that may be in flight on one channel.
        self.window = min(_FIRST_BYTES, most_bytes)
        #: Bytes of rows that the subtask processes in a busy millisecond; None before the first measurement.
        self.rate: float | None = None
        self._bytes_in = 0
        self._busy_ms = 0.0
        self._polled_ms = clock.monotonic_ms()
        self._idle = True

    def limit(self, most_bytes: int) -> int:
        """Change the most bytes in flight on a channel; return the window."""
        self._most, self.window = most_bytes, min(self.window, most_bytes)
        return self.window

    def polled(self, bytes_in: int, *, idle: bool) -> int | None:
        """Take the bytes that the subtask has processed since its start; return the new window if it changes.

        `idle`: the subtask waits for rows from now until the next poll. This time does not count.
        """
        now_ms = self._clock.monotonic_ms()
        if not self._idle:
            self._busy_ms += now_ms - self._polled_ms
        self._polled_ms, self._idle = now_ms, idle
        if self._busy_ms < (_FIRST_PERIOD_MS if self.rate is None else _PERIOD_MS):
            return None
        measured, weight = (bytes_in - self._bytes_in) / self._busy_ms, min(1.0, self._busy_ms / _SMOOTHING_MS)
        self.rate = measured if self.rate is None else self.rate + (measured - self.rate) * weight
        self._bytes_in, self._busy_ms = bytes_in, 0.0
        wanted = max(min(_LEAST_BYTES, self._most), min(self._most, int(self.rate * self._target_ms / self._channels)))
        if wanted == self.window or (abs(wanted - self.window) < self.window * _CHANGE and wanted < self._most):
            return None
        self.window = wanted
        return wanted
