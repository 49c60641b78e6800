"""The wording of slow calls: calls to external systems, and calls of the user's functions, which have a place in code.

Also the time after which a checkpoint is slow.

Used by workers for their logs, by the JobMaster for the event log, and by clients for `run`, `show` and `explain`.
"""

from __future__ import annotations

from penstock.core.clock import utc_text

#: A checkpoint that takes longer than this is reported.
SLOW_CHECKPOINT_MS = 20_000


def slow_call_text(what: str, for_ms: float, at: str = "") -> str:
    """Return the text of a call in progress; `at` is a place in the user's code, empty for an external call."""
    seconds = max(0.0, for_ms) / 1000
    if at:
        return f"{what} has been in one call for {seconds:.0f} s, at {at}"
    return f"slow call, {seconds:.0f} s so far: {what}"


def slow_call_since_text(what: str, since_ms: int, at: str = "", now_ms: int | None = None) -> str:
    """Return the text of a call in progress with its begin; with `now_ms`, for how long. Times are wall-clock ms."""
    since = f"since {utc_text(since_ms)} UTC"
    if now_ms is None:
        return f"{what} has been in one call {since}, at {at}" if at else f"slow call {since}: {what}"
    if at:
        return slow_call_text(what, now_ms - since_ms, at)
    return f"slow call {since}, {max(0, now_ms - since_ms) / 1000:.0f} s so far: {what}"


def ended_call_text(what: str, for_ms: float, at: str = "") -> str:
    """Return the text of a call that has ended; `at` is the last place that was seen.

    An external call may have ended without an answer, and may be repeated.
    """
    how = "" if at else ", answered or given up"
    return f"slow call ended after {max(0.0, for_ms) / 1000:.0f} s{how}: {what}{f', at {at}' if at else ''}"
