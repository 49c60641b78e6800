"""Prints why a stop, savepoint, rescale or cancellation lasts (`wait_lines`), the first line after two seconds.

Used by the commands of the command line; `JobHandle` calls it while it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.failures import slow_calls, unreachable_sources
from penstock.client.wait_lines import WaitLines
from penstock.core.clock import Clock, SystemClock, utc_text
from penstock.core.counts import counted
from penstock.core.slow_calls import SLOW_CHECKPOINT_MS

#: Time without a line after the request, and between two looks at the job.
_QUIET_MS = 2_000.0
_EVERY_MS = 1_000.0
_MOST_MISSING = 4


def waiting_text(summary: dict[str, Any]) -> str:
    """Return what a job's oldest open request or checkpoint waits for; the argument is `RestClient.summary`."""
    return "; ".join([_awaited(summary), *_outside(summary)])


def _awaited(summary: dict[str, Any]) -> str:
    entry, requests = summary.get("checkpoint-in-progress"), summary.get("open-requests", ())
    phase = requests[0]["phase"] if requests else ""
    if phase == "publish":
        rows = [f"{counted(count, 'row')} of {uid}" for uid, count in summary["rows-unpublished"].items()]
        left = f": {', '.join(rows)} left" if rows else ""
        text = f"its checkpoint is complete; waiting for the sinks to publish{left}"
    elif phase == "copy":
        text = "its checkpoint is complete; waiting for the copy of it in the savepoint's folder"
    elif entry is None:
        text = f"waiting for the next checkpoint of the job, which is {summary['state']}"
    else:
        kind = "checkpoint" if entry["kind"] == "checkpoint" else f"{entry['kind']}, checkpoint"
        text = f"waiting for {kind} {entry['id']}: {_acknowledged(entry)}"
    return text


def _acknowledged(entry: dict[str, Any]) -> str:
    text = f"{entry['acknowledged']} of {entry['total']} subtasks acknowledged"
    return text + (
        f"; missing: {_missing(entry['missing'])}" if entry["missing"] else "; its manifest is not written yet"
    )


def slow_checkpoint(summary: dict[str, Any], now_ms: int) -> tuple[int, str]:
    """Return the id of the oldest checkpoint in progress and a line if it takes long; (0, "") otherwise."""
    entry = summary.get("checkpoint-in-progress")
    if entry is None or now_ms - entry["since"] <= SLOW_CHECKPOINT_MS:
        return 0, ""
    since = f"since {utc_text(entry['since'])} UTC"
    return entry["id"], f"checkpoint {entry['id']} is slow, {since}: {_acknowledged(entry)}"


def request_lines(summary: dict[str, Any]) -> list[str]:
    """Return a line for each savepoint and stop that is not complete, in a `RestClient.summary`."""
    requests = summary.get("open-requests", ())
    lines = [f"{r['what']} requested at {utc_text(r['since'])} UTC is not complete" for r in requests]
    return [f"{lines[0]}: {_awaited(summary)}", *lines[1:]] if lines else []


def cancelling_text(summary: dict[str, Any], workers: int) -> str:
    """Return what the end of a cancelled job waits for."""
    text = f"waiting for {counted(workers, 'worker')} to end; they are killed after 10 s"
    return "; ".join([text, *_outside(summary)])


def outside_text(summary: dict[str, Any]) -> str:
    """Return the slow calls and unreachable sources of a job in one line; empty if there are none."""
    return "; ".join(_outside(summary))


def _outside(summary: dict[str, Any]) -> list[str]:
    return [*unreachable_sources(summary).values(), *slow_calls(summary).values()]


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
        self._clock = clock or SystemClock()
        self._lines = WaitLines(say, self._clock, quiet_ms=_QUIET_MS)
        self._next_ms = self._clock.monotonic_ms() + _QUIET_MS

    @property
    def newest(self) -> str:
        """The reason for the wait at the last look at the job; empty before the first one."""
        return self._lines.newest

    def poll(
        self,
        summary: Callable[[], dict[str, Any]],
        text_of: Callable[[dict[str, Any]], str] = waiting_text,
    ) -> None:
        """Look at the job if it is time to; `summary` asks for it. Raises what `summary` raises."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + _EVERY_MS
        self._lines.note(text_of(summary()))
