"""Reports new failures of a job as text, each once: restarts, failed checkpoints, missing slots, slow calls.

Used by `penstock run` (`cli.progress`) and by `client.executors`, which logs them for a plain `python job.py`.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

from penstock.client.handle import TERMINAL
from penstock.core.clock import utc_text
from penstock.core.counts import counted
from penstock.core.errors import PenstockError, without_all_frames
from penstock.core.slow_calls import slow_call_since_text

if TYPE_CHECKING:
    from penstock.client.handle import JobHandle

#: Workers report a call of a function after 5 s, with their next report.
LEAST_TIMEOUT_MS = 10_000.0
#: The text of a job after a failure, by its state.
_AFTER = {
    "RUNNING": "it runs again",
    "FINISHED": "it has finished since",
    "CANCELLING": "it is being cancelled",
    "CANCELED": "it was cancelled since",
    "FAILED": "the job has failed",
    "FAILING": "its tasks are ending",
    "RESTARTING": "it is restarting",
    "RECONCILING": "a new leader looks for its workers",
}
_SECONDS = (
    "if they are seconds, declare the field as int and set unit='s' on the watermark strategy"
    " (KafkaSource and FileSource also take timestamp_unit='s')"
)
#: Entry of the summary, the times, and the remedy.
_IMPLAUSIBLE = (
    ("doubtful-times", "before 1990", _SECONDS),
    ("distant-times", "after 2100", "check the field and its unit (unit= of the watermark strategy)"),
)


def implausible_times(summary: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Return, by kind and source, a warning about implausible event times in a `RestClient.summary`."""
    warnings = {
        (entry, uid): f"{found['rows']:,} rows of {uid} have event times {when}{_such_as(found['example'])}: {way}"
        for entry, when, way in _IMPLAUSIBLE
        for uid, found in summary.get(entry, {}).items()
    }
    ahead = "are ahead of the clock by more than the future limit, so that they do not move the watermark"
    for uid, rows in summary.get("future-times", {}).items():
        warnings["future-times", uid] = (
            f"{rows:,} rows of {uid} {ahead}: check their times, or set with_future_limit(...)"
        )
    return warnings


def _such_as(example_ms: int | None) -> str:
    return "" if example_ms is None else f", such as {utc_text(example_ms)}"


def unreachable_sources(summary: dict[str, Any]) -> dict[str, str]:
    """Return, by source, a line about an external system that does not answer."""
    return {
        uid: f"source {uid}: no answer from {_place(away)}{_since(away)}; it resumes with the next answer"
        for uid, away in sorted(summary.get("sources-unreachable", {}).items())
    }


def _place(away: dict[str, Any]) -> str:
    return str(away["place"] or "its external system")


def _since(away: dict[str, Any]) -> str:
    return f" since {utc_text(away['since'])} UTC" if away["since"] else f" for {away['for-ms'] / 1000:.0f} s"


def bad_records(summary: dict[str, Any]) -> dict[str, str]:
    """Return, by source, a line about its bad records with the first one.

    A restart keeps the count and drops the example; another JobManager begins with the count at zero.
    """
    counts, examples = summary.get("bad-records", {}), summary.get("bad-record-examples", {})
    replaced = (summary.get("jobmanagers-replaced") or {}).get("times", 0)
    since = " since its JobManager was replaced" if replaced else ""
    first_since = first_bad_record(restarted=bool(replaced or summary.get("restarts")))
    first = {uid: f"; {first_since}: {example}" for uid, example in examples.items()}
    return {
        uid: f"source {uid}: {counted(count, 'bad record')}{since}{first.get(uid, '')}"
        for uid, count in sorted(counts.items())
    }


def first_bad_record(*, restarted: bool) -> str:
    """Return what the example of bad records is: workers keep the first one that they read."""
    return "the first since the last restart" if restarted else "the first"


def slow_calls(summary: dict[str, Any], now_ms: int | None = None) -> dict[str, str]:
    """Return, by call, a line about a call that takes long; with `now_ms`, for how long.

    It is a call to an external system, or of the user's function.
    """
    return {what: _slow_call(call, now_ms) for what, call in sorted(_oldest_calls(summary).items())}


def _oldest_calls(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the slow calls; of several with the same text the oldest."""
    oldest: dict[str, dict[str, Any]] = {}
    for call in summary.get("slow-calls", ()):
        if call["what"] not in oldest or call["since"] < oldest[call["what"]]["since"]:
            oldest[call["what"]] = call
    return oldest


def _slow_call(call: dict[str, Any], now_ms: int | None) -> str:
    return slow_call_since_text(call["what"], int(call["since"]), call.get("at", ""), now_ms)


def function_in_call(summary: dict[str, Any], now_ms: int) -> str:
    """Return a line about the function of the user that has been in one call for longest; empty if there is none."""
    calls = [call for call in summary.get("slow-calls", ()) if call.get("at")]
    return _slow_call(min(calls, key=lambda call: int(call["since"])), now_ms) if calls else ""


def did_not_end(handle: JobHandle, timeout_ms: float) -> PenstockError:
    """Return the error of a job that did not end in time, with what it does; asks the cluster."""
    text = f"job {handle.name} did not end within {timeout_ms / 1000:g} s"
    try:
        summary = handle.client.summary(handle.job_id)
    except PenstockError as error:
        return PenstockError(f"{text}: {error.message}", hint=error.hint)
    if in_call := function_in_call(summary, handle.clock.now_ms()):
        return PenstockError(f"{text}: {in_call}", hint="change the function so that it returns, or raise timeout=")
    waits = [f"it is waiting for {summary['waits-for']}"] if summary.get("waits-for") else []
    waits += [*unreachable_sources(summary).values(), *slow_calls(summary).values()]
    read = counted(sum(summary["rows-read"].values()), "row")
    does = "; ".join(waits) or f"it is {summary['state']} and has read {read}"
    hint = "raise timeout=, or lower limit="
    if timeout_ms < LEAST_TIMEOUT_MS:
        hint += f"; with at least {LEAST_TIMEOUT_MS / 1000:g} s the error names a function that does not return"
    return PenstockError(f"{text}: {does}", hint=hint)


def repeated_row(entries: list[dict[str, Any]], summary: dict[str, Any]) -> str:
    """Return a line about one row that caused the newest failures, if there are several; `entries`: newest first."""
    rows = [_row_of(entry) for entry in entries]
    times = next((n for n, row in enumerate(rows) if row is None or row != rows[0]), len(rows))
    if times < 2:
        return ""
    most = summary.get("restarts-of-user-code")
    ended = summary["state"] == "FAILED"
    counted = f"{times} restarts" if most is None else f"{times} of {most} restarts"
    told = f"the same row failed {times} times" if ended else f"{counted}, the same row each time"
    cancel = "" if ended else "cancel the job, "
    way = f"{cancel}correct the function or catch the error in it, and run the file again"
    return f"{told}: {way}; it resumes from the newest checkpoint"


#: The place in the batch differs at each restart.
_ROW = re.compile(r"^row [\d,]+ of a batch of [\d,]+: (.*)", re.MULTILINE)


def _row_of(entry: dict[str, Any]) -> tuple[str, str] | None:
    """Return the task and the row at which a failure was raised; None without a row."""
    row = _ROW.search(without_all_frames(entry.get("stacktrace") or ""))
    return (entry.get("taskName") or "", row[1]) if row and not entry.get("rolled-back") else None


def next_attempt(summary: dict[str, Any]) -> str:
    """Return the time until the next start after a failure as text; empty if no restart is pending."""
    soon_ms = summary["next-attempt-in-ms"]
    return "" if soon_ms is None else f"next attempt in {soon_ms / 1000:.1f} s"


def resume_point(summary: dict[str, Any]) -> str:
    """Return what a job was last restored from as text; empty for an empty start."""
    restored = summary.get("restored")
    if restored is None:
        return ""
    taken = f"checkpoint {restored['id']}, taken {utc_text(restored['taken'])} UTC"
    return f"{_name_of(restored)} ({taken})" if restored["uri"] else taken


def _start_after_failure(summary: dict[str, Any]) -> str:
    """Return what the attempt after the newest failure starts from; empty for an empty start and an ended job."""
    if summary["state"] in TERMINAL:
        return ""
    # until the job runs again, `restored` is what the failed attempt started from
    if summary["state"] != "RUNNING" and summary["checkpoints-completed"]:
        return "its newest checkpoint"
    return _name_of(summary["restored"]) if summary.get("restored") else ""


def _name_of(restored: dict[str, Any]) -> str:
    return f"savepoint {restored['uri']}" if restored["uri"] else f"checkpoint {restored['id']}"


def _see(handle: JobHandle, summary: dict[str, Any]) -> str:
    """Return the command that shows the job, as the end of a line; empty if it ended with its cluster."""
    if handle.embedded and summary["state"] in TERMINAL:
        return ""
    return f"; see `{handle.command('show')}`{' while it runs' if handle.embedded else ''}"


def _version_and_error(entry: dict[str, Any]) -> tuple[bool, str]:
    """Return whether a failure is one of a version that was rolled back, and its text."""
    return bool(entry.get("rolled-back")), str(entry["exceptionName"])


class _WaitWatch:
    """Remembers which external systems a job waits for."""

    def __init__(self) -> None:
        #: The begin of each reported slow call.
        self._slow: dict[str, int] = {}
        self._unreachable: dict[str, dict[str, Any]] = {}
        #: Restarts and JobManagers at the last look.
        self._starts = (0, 0)

    def poll(self, summary: dict[str, Any]) -> list[str]:
        """Return a line for each system that stopped or began to answer."""
        starts = summary["restarts"], (summary.get("jobmanagers-replaced") or {}).get("times", 0)
        calls = _oldest_calls(summary)
        if starts != self._starts or summary["state"] != "RUNNING":  # its workers ended: nothing is known of answers
            self._starts, self._unreachable = starts, {}
            # calls of a recovery, and those that outlast the job's tasks, continue
            self._slow = {w: s for w, s in self._slow.items() if w in calls and int(calls[w]["since"]) == s}
        slow, unreachable = slow_calls(summary), unreachable_sources(summary)
        away = summary.get("sources-unreachable", {})
        lines = [line for what, line in slow.items() if what not in self._slow]
        lines += [line for uid, line in unreachable.items() if uid not in self._unreachable]
        lines += [f"slow call ended: {what}" for what in sorted(self._slow.keys() - slow.keys())]
        lines += [
            f"source {uid}: {_place(last)} answers again, after about {last['for-ms'] / 1000:.0f} s"
            for uid, last in sorted(self._unreachable.items())
            if uid not in away
        ]
        self._slow = {what: int(call["since"]) for what, call in calls.items()}
        self._unreachable = dict(away)
        return lines


class FailureWatch:
    """Remembers the reported failures of one job."""

    def __init__(self, *, attached: bool = False) -> None:
        """Start without reports; `attached`: the job may have failed before, and such failures get their time."""
        #: Whether the failures of the next report may be old.
        self._old = attached
        self._restarts = 0
        #: How often the JobManager was replaced at the last look.
        self._replaced: int | None = None
        self._reported_ms = -1
        #: The lines of the user's code, and the row, of the last reported failure.
        self._reported_own = ""
        self._failed_checkpoints = 0
        self._waits_for = ""
        self._reported_times: set[tuple[str, str]] = set()
        self._waits = _WaitWatch()
        self._with_bad_records: set[str] = set()

    def poll(self, handle: JobHandle, summary: dict[str, Any]) -> list[str]:
        """Return a line for each new problem in a `RestClient.summary`, oldest first."""
        lines = []
        replaced = (summary.get("jobmanagers-replaced") or {}).get("times", 0)
        started = summary.get("restored") is not None or summary["state"] == "RUNNING"
        if self._replaced is not None and replaced > self._replaced and started:
            start = resume_point(summary)
            how = f"the job resumed from {start}; " if start else ""
            counted = "restarts, checkpoints and rows are counted from there"
            lines.append(f"{handle.name}: a new JobManager leads the job; {how}{counted}")
        if self._replaced is None or started:
            self._replaced = replaced
        # a new JobManager counts from zero
        self._restarts = min(self._restarts, summary["restarts"])
        self._old = self._old and summary["restarts"] > self._restarts
        self._failed_checkpoints = min(self._failed_checkpoints, summary["checkpoints-failed"])
        if summary["restarts"] > self._restarts and (failures := self._failures(handle, summary)):
            lines += failures
            self._restarts, self._old = summary["restarts"], False
        if summary["checkpoints-failed"] > self._failed_checkpoints:
            self._failed_checkpoints = summary["checkpoints-failed"]
            _, _, reason = summary["checkpoint-failure"].partition(": ")
            if not any(reason in line for line in lines):  # else it is why the job failed
                lines.append(f"{handle.name}: a checkpoint failed: {summary['checkpoint-failure']}")
        if summary["waits-for"] and summary["waits-for"] != self._waits_for:
            lines.append(f"{handle.name} is waiting for slots: it needs {summary['waits-for']}")
        self._waits_for = summary["waits-for"]
        lines += [f"{handle.name}: {line}" for line in self._waits.poll(summary)]
        bad = summary.get("bad-records", {})
        lines += [
            f"{handle.name}: {line}{_see(handle, summary)}"
            for uid, line in bad_records(summary).items()
            if uid not in self._with_bad_records
        ]
        self._with_bad_records |= bad.keys()
        implausible = implausible_times(summary)
        lines += [warning for odd, warning in implausible.items() if odd not in self._reported_times]
        self._reported_times |= implausible.keys()
        return lines

    def _failures(self, handle: JobHandle, summary: dict[str, Any]) -> list[str]:
        try:
            entries = handle.client.exceptions(handle.job_id)["exceptionHistory"]["entries"]
        except PenstockError:  # the JobManager is restarting: the next look reports them
            return []
        new = [entry for entry in entries if entry["timestamp"] > self._reported_ms]
        if not new:
            return []
        self._reported_ms = new[0]["timestamp"]
        lines = []
        for (rejected, error), group in groupby(reversed(new), _version_and_error):
            alike = list(group)
            what = f"the rejected version of {handle.name}" if rejected else handle.name
            times = f" {len(alike)} times" if len(alike) > 1 else ""
            last = f"{', last' if times else ''} at {utc_text(alike[-1]['timestamp'])} UTC" if self._old else ""
            lines.append(f"{what} failed{times}{last}: {error}")
        after = next_attempt(summary) or _AFTER.get(summary["state"], f"it is {summary['state']} now")
        start = _start_after_failure(summary)
        after += f", from {start}" if start else ""
        lines[-1] += f" (restart {summary['restarts']}, {after}{_see(handle, summary)})"
        own = without_all_frames(new[0].get("stacktrace", ""))
        if own and own != self._reported_own:  # the same row fails at each restart
            lines.append(own)
        self._reported_own = own
        return lines
