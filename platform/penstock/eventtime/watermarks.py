"""The minimum of watermarks over several channels, without idle channels: one decider for gates and unions.

Semantics of Flink's `StatusWatermarkValve`: a channel that becomes active again takes part only once its watermark has
caught up with the emitted one. When the last active channel becomes idle, the largest watermark is emitted. Called by
`penstock.task` (input gates) and by tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP


def initial_watermark(saved: int) -> int:
    """Return the initial watermark of a run whose snapshot has `saved`.

    The end of time ends one run: a job started from a drained savepoint may have more input, which is not late.
    """
    return MIN_TIMESTAMP if saved == MAX_TIMESTAMP else saved


@dataclass(frozen=True, slots=True)
class StatusChange:
    """The effect of a channel's status on the combined stream; None = no change."""

    #: New combined watermark, to emit before the status.
    watermark: int | None = None
    #: New combined status: True = idle.
    idle: bool | None = None


class WatermarkMerger:
    """Combines the watermarks and statuses of `channels` channels; the result never goes back."""

    def __init__(self, channels: int, restored: int = MIN_TIMESTAMP) -> None:
        """Start with every channel active.

        `restored` is the combined watermark of the restored checkpoint, as a floor.
        """
        self._watermarks = [MIN_TIMESTAMP] * channels
        self._idle = [False] * channels
        self._aligned = [True] * channels
        self._active = channels
        self._combined = restored

    @property
    def combined(self) -> int:
        """Return the combined watermark; `MIN_TIMESTAMP` before the first."""
        return self._combined

    @property
    def idle(self) -> bool:
        """Return whether every channel is idle."""
        return self._active == 0

    def channel_watermark(self, channel: int) -> int:
        """Return the newest watermark of one channel."""
        return self._watermarks[channel]

    def update(self, channel: int, timestamp: int) -> int | None:
        """Take a channel's watermark; return the new combined one, or None if it did not advance.

        Watermarks of idle channels and watermarks that go back are ignored.
        """
        if self._idle[channel] or timestamp <= self._watermarks[channel]:
            return None
        self._watermarks[channel] = timestamp
        if timestamp >= self._combined:
            self._aligned[channel] = True
        return self._advance_to_minimum()

    def status(self, channel: int, *, idle: bool) -> StatusChange:
        """Take a channel's status; return the changes of the combined stream."""
        if idle == self._idle[channel]:
            return StatusChange()
        self._idle[channel] = idle
        if idle:
            return self._now_idle(channel)
        self._active += 1
        self._aligned[channel] = self._watermarks[channel] >= self._combined
        return StatusChange(idle=False) if self._active == 1 else StatusChange()

    def _now_idle(self, channel: int) -> StatusChange:
        held_back = self._watermarks[channel] <= self._combined
        self._aligned[channel] = False
        self._active -= 1
        if self._active:
            return StatusChange(watermark=self._advance_to_minimum())
        watermark = self._advance(max(self._watermarks)) if held_back else None
        return StatusChange(watermark=watermark, idle=True)

    def _advance_to_minimum(self) -> int | None:
        aligned = [w for w, is_aligned in zip(self._watermarks, self._aligned, strict=True) if is_aligned]
        return self._advance(min(aligned)) if aligned else None

    def _advance(self, timestamp: int) -> int | None:
        if timestamp <= self._combined:
            return None
        self._combined = timestamp
        return timestamp
