"""The lines of `penstock story`, and the report of `penstock show`.

The latter has rows of sources and sinks, watermark, checkpoints, problems, and the last failure.
"""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from penstock.client.failures import (
    bad_records,
    implausible_times,
    next_attempt,
    repeated_row,
    resume_point,
    slow_calls,
    unreachable_sources,
)
from penstock.client.operation_progress import request_lines
from penstock.core.clock import duration_text, utc_text
from penstock.core.counts import counted
from penstock.core.errors import ALL_FRAMES, without_all_frames
from penstock.core.event_log import condensed

_MORE = "(all frames: penstock show --all)"

#: A watermark above this one (ms) is the end of all input.
_END_MS = (1 << 62) // 1000


def flow_table(summary: dict[str, Any]) -> Table:
    """Return a table of the sources and sinks: rows, rows per second, rows not read yet, bad records, place."""
    table = Table("", "uid", box=None)
    unread = summary.get("rows-unread", {})
    for heading in ("rows", "rows/s", *(["unread"] if unread else []), "bad records"):
        table.add_column(heading, justify="right")
    table.add_column("place", overflow="fold")
    bad, places = summary["bad-records"], summary["places"]
    for what, verb in (("source", "read"), ("sink", "written")):
        for uid, rows in summary[f"rows-{verb}"].items():
            rate = f"{summary[f'rows-{verb}-per-second'].get(uid, 0):,.0f}"
            rest = [_unread(unread, uid) if what == "source" else ""] if unread else []
            wrong = f"{bad.get(uid, 0):,}" if what == "source" else ""
            table.add_row(what, escape(uid), f"{rows:,}", rate, *rest, wrong, escape(places.get(uid, "")))
    return table


def _unread(unread: dict[str, int | None], uid: str) -> str:
    """Return the rows that a source has not read yet as text: "-" if they are not known yet."""
    count = unread.get(uid)
    return f"{count:,}" if count is not None else "-" * (uid in unread)


def state_text(details: dict[str, Any]) -> str:
    """Return a job's state with the time when it entered it (UTC), and the start of the job if that was earlier."""
    start = details["start-time"]
    entered = details["timestamps"].get(details["state"]) or start
    text = f"{details['state']} since {utc_text(entered)}"
    return text if utc_text(entered) == utc_text(start) else f"{text}, started {utc_text(start)}"


def version_line(summary: dict[str, Any]) -> list[str]:
    """Return the file of the version that runs, if the job was upgraded."""
    return [f"version: {summary['version']}"] if summary["version"] else []


def counted_line(summary: dict[str, Any]) -> list[str]:
    """Return from when on the rows of vertices are counted, if that is not the begin of the job."""
    restarted = summary["restarts"] or summary["jobmanagers-replaced"]["times"]
    since = summary["running-since"]
    return [f"rows of vertices are counted since the last start, at {utc_text(since)}"] if restarted and since else []


def watermark_lag_ms(summary: dict[str, Any], now_ms: int) -> int | None:
    """Return the clock less the watermark in ms, of an ended job at its end; None without one or after the input."""
    mark = summary["watermark"]
    return None if mark is None or mark >= _END_MS else (summary.get("ended") or now_ms) - int(mark)


def watermark_line(summary: dict[str, Any], now_ms: int) -> str:
    """Return the lowest watermark and its distance from the clock."""
    lag_ms = watermark_lag_ms(summary, now_ms)
    if lag_ms is None:
        since = " since the restart" if summary.get("restarts") else " yet"
        return f"watermark: none{since}" if summary["watermark"] is None else "watermark: end of input"
    lag = f"lag {duration_text(lag_ms)}" if lag_ms >= 0 else f"{duration_text(-lag_ms)} ahead of the clock"
    at_end = " when the job ended" if summary.get("ended") else ""
    return f"watermark: {utc_text(int(summary['watermark']))} UTC, {lag}{at_end}"


def load_lines(findings: list[dict[str, Any]]) -> list[str]:
    """Return a line for each finding about a slow operator, an event time that stands still, or a slow checkpoint."""
    return [
        f"{found['title']}: {found['text']} (since {utc_text(found['since'])} UTC)"
        for found in findings
        if found["level"] in ("bad", "warn") and (found["vertex"] or found["kind"] == "checkpoint-slow")
    ]


def report_lines(
    checkpoints: dict[str, Any],
    failures: dict[str, Any],
    summary: dict[str, Any],
    now_ms: int,
    *,
    all_frames: bool = False,
) -> list[str]:
    """Return the lines; the arguments are answers of the `RestClient` and the clock (ms).

    Of the last failure they have the lines of the user's code and the row; `all_frames`: also penstock's.
    """
    entries = failures["exceptionHistory"]["entries"]
    lines = [_checkpoints(checkpoints)]
    for uid, count in summary.get("rows-unpublished", {}).items():
        lines.append(f"sink {uid}: {count:,} of {summary['rows-written'][uid]:,} rows are not published yet")
    lines += bad_records(summary).values()
    lines += [f"late rows dropped at {name}: {count:,}" for name, count in summary["late-records"].items()]
    lines += implausible_times(summary).values()
    lines += [*unreachable_sources(summary).values(), *slow_calls(summary, now_ms).values()]
    if failed := (checkpoints["latest"] or {}).get("failed"):
        at = utc_text(failed["failure_timestamp"])
        same = entries and entries[0]["timestamp"] == failed["failure_timestamp"]
        reason = "the last failure, below" if same else failed["failure_message"]
        lines.append(f"last failed checkpoint: {failed['id']} at {at}: {reason}")
    if start := resume_point(summary):
        lines.append(f"last started from {start}; restarts: {summary['restarts']}")
    if replaced := replaced_jobmanagers(summary):
        lines.append(replaced)
    if summary["stopped-with"] and summary["state"] == "FINISHED":
        lines.append(f"stopped with savepoint {summary['stopped-with']}")
    lines += request_lines(summary)
    if summary["waits-for"]:
        lines.append(f"waiting for slots: it needs {summary['waits-for']}")
    if (adaptive := summary["adaptive"]) and summary["state"] == "RUNNING":
        more = "; it takes more when they are free" if adaptive["slots"] < adaptive["most"] else ""
        lines.append(f"runs with {adaptive['slots']} of at most {counted(adaptive['most'], 'slot')}{more}")
    if summary["region-restart"]:
        lines.append(summary["region-restart"])
    rejected = [entry for entry in entries[:1] if entry["rolled-back"]]
    lines += [line for entry in rejected for line in _rejected_version(entry, all_frames=all_frames)]
    own = [entry for entry in entries if not entry["rolled-back"]]
    return lines + _last_failure(own, summary, all_frames=all_frames)


def story_lines(entries: list[dict[str, Any]]) -> list[str]:
    """Return the lines of an event log, with a line before each job, and before each JobManager's part of a job."""
    leaders: dict[str, set[int]] = {}
    for entry in entries:
        leaders.setdefault(entry["job_id"], set()).add(entry["generation"])
    lines, job, leader = list[str](), "", 0
    for entry in condensed(entries):
        job_id, generation = entry["job_id"], entry["generation"]
        if job_id != job and len(leaders) > 1:
            lines.append(f"--- job {job_id}")
        if (job_id, generation) != (job, leader) and len(leaders[job_id]) > 1:
            lines.append(f"--- leader of generation {generation}{' (a new JobManager)' if job_id == job else ''}")
        lines.append(f"{utc_text(entry['at_ms'])} {entry['kind']:<12} {entry['text']}")
        job, leader = job_id, generation
    return lines


def replaced_jobmanagers(summary: dict[str, Any]) -> str:
    """Return how often the job's JobManager was replaced, and when last; empty if it never was."""
    found = summary["jobmanagers-replaced"]
    times, newest = found["times"], found["newest"]
    if not times:
        return ""
    text = "JobManager replaced once" if times == 1 else f"JobManager replaced {times} times"
    if newest is None:  # the job has ended under an earlier one
        return text
    last = "" if times == 1 else "last "
    since = "rows, restarts and checkpoints are counted from there, and checkpoint ids skip 1,000 each time"
    return f"{text}, {last}at {utc_text(newest)}; {since}"


def _checkpoints(checkpoints: dict[str, Any]) -> str:
    counts = checkpoints["counts"]
    text = f"checkpoints: {counts['completed']} completed, {counts['failed']} failed"
    if latest := (checkpoints["latest"] or {}).get("completed"):
        at = utc_text(latest["latest_ack_timestamp"])
        text += f"; newest {latest['id']} at {at}, {latest['end_to_end_duration']} ms, {_alignment(latest)}"
        done = [entry for entry in checkpoints["history"] if entry["status"] == "COMPLETED"]
        unaligned = sum(entry["unaligned"] for entry in done)
        if 0 < unaligned < len(done):
            text += f"; {unaligned} of the last {len(done)} were unaligned"
    return text


def _alignment(checkpoint: dict[str, Any]) -> str:
    """Return whether barriers could overtake rows, and the bytes of those that became part of the checkpoint."""
    return (
        f"unaligned, {checkpoint['persisted_data']:,} bytes of rows in flight" if checkpoint["unaligned"] else "aligned"
    )


def _rejected_version(entry: dict[str, Any], *, all_frames: bool) -> list[str]:
    """Return the last failure of a version that was rolled back: history, because another version runs."""
    where = f" in {entry['taskName']}" if entry["taskName"] else ""
    head = f"history: a rejected version was rolled back at {utc_text(entry['rolled-back'])};"
    head += f" it failed at {utc_text(entry['timestamp'])}{where}: {entry['exceptionName']}"
    return _with_frames(head, entry, all_frames=all_frames)


def _last_failure(entries: list[dict[str, Any]], summary: dict[str, Any], *, all_frames: bool) -> list[str]:
    """Return the newest failure of the present version: place and time, the user's own lines, all frames."""
    if not entries:
        return []
    newest = entries[0]
    facts = [
        f"at {utc_text(newest['timestamp'])}",
        f"in {newest['taskName']}" if newest["taskName"] else "",
        f"restart {summary['restarts']}" if summary["restarts"] else "",
        next_attempt(summary),
    ]
    head = f"last failure ({', '.join(filter(None, facts))}): {newest['exceptionName']}"
    lines = _with_frames(head, newest, all_frames=all_frames)
    repeated = repeated_row(entries, summary)
    return [*lines, repeated] if repeated else lines


def _with_frames(head: str, entry: dict[str, Any], *, all_frames: bool) -> list[str]:
    """Return a line about a failure, followed by the user's own lines, or by all frames."""
    text = str(entry["stacktrace"])
    shortened = ALL_FRAMES in text and not all_frames
    text = without_all_frames(text) if shortened else text.strip()
    if shortened:
        text = f"{text}\n{_MORE}".lstrip()
    return [head] if text == entry["exceptionName"] else [head, text]
