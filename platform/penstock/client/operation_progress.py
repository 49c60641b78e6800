"""Prints why a stop or savepoint lasts: a line for each change, the first one after two seconds.

Used by the commands of the command line; `JobHandle` calls it while it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.failures import slow_calls, unreachable_sources
from penstock.core.clock import Clock, SystemClock

#: Time without a line after the request, and between two looks at the job.
_QUIET_MS = 2_000.0
_EVERY_MS = 1_000.0
_MOST_MISSING = 4


def waiting_text(summary: dict[str, Any]) -> str:
    """Return what a job's oldest open checkpoint waits for; the argument is `RestClient.summary`."""
    entry = summary.get("checkpoint-in-progress")
    if entry is None:
        text = f"waiting for the next checkpoint of the job, which is {summary['state']}"
    else:
        kind = "checkpoint" if entry["kind"] == "checkpoint" else f"{entry['kind']}, checkpoint"
        text = f"waiting for {kind} {entry['id']}: {entry['acknowledged']} of {entry['total']} subtasks acknowledged"
        text += f"; missing: {_missing(entry['missing'])}" if entry["missing"] else "; its manifest is not written yet"
    outside = [*unreachable_sources(summary).values(), *slow_calls(summary).values()]
    return "; ".join([text, *outside])


def _missing(subtasks: list[dict[str, Any]]) -> str:
    names = [
        f"{one['name']} {one['subtask'] + 1}/{one['parallelism']}" + (" (back-pressured)" * one["back-pressured"])
        for one in subtasks
    ]
    more = len(names) - _MOST_MISSING
    return ", ".join(names[:_MOST_MISSING]) + (f" and {more} more" if more > 0 else "")


class OperationProgress:
    """Prints a line for each change of what an operation waits for."""

    def __init__(self, say: Callable[[str], None], clock: Clock | None = None) -> None:
        """Print with `say`; the time counts from here."""
        self._say = say
        self._clock = clock or SystemClock()
        self._next_ms = self._clock.monotonic_ms() + _QUIET_MS
        self.newest = ""

    def poll(self, summary: Callable[[], dict[str, Any]]) -> None:
        """Look at the job if it is time to; `summary` asks for it. Raises what `summary` raises."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + _EVERY_MS
        text = waiting_text(summary())
        if text != self.newest:
            self._say(text)
        self.newest = text
