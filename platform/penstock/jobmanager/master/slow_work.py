"""The slow calls that workers report (`task.chain.slow_calls`): lines for the event log, and those in progress; pure.

A member of `jobmanager.master.job_master`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.rpc.messages import SlowCall


@dataclass(frozen=True, slots=True)
class Slow:
    """A slow call in progress."""

    what: str
    since_ms: int


class SlowWork:
    """The slow calls of one job's workers."""

    def __init__(self) -> None:
        """Start without calls."""
        self._known: dict[tuple[str, int], Slow] = {}

    @property
    def going_on(self) -> tuple[Slow, ...]:
        """The calls in progress, the longest first."""
        return tuple(sorted(self._known.values(), key=lambda slow: slow.since_ms))

    def reported(self, worker_id: str, calls: tuple[SlowCall, ...], now_ms: int) -> list[str]:
        """Take a worker's current slow calls; return an event log line for each call that became slow or ended."""
        now = {(worker_id, call.number): call for call in calls}
        lines = []
        for key in [key for key in self._known if key[0] == worker_id and key not in now]:
            ended = self._known.pop(key)
            lines.append(f"slow call ended after {(now_ms - ended.since_ms) / 1000:.0f} s: {ended.what}")
        for key, call in now.items():
            if key not in self._known:
                self._known[key] = Slow(call.what, now_ms - call.for_ms)
                lines.append(f"slow call, {call.for_ms / 1000:.0f} s so far: {call.what}")
        return lines

    def halted(self) -> None:
        """Forget all calls: the workers were killed."""
        self._known.clear()
