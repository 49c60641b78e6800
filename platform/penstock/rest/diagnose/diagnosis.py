"""Explains what is slow in a job and why: pure functions over its load and checkpoints, and the time of each finding.

Called by `rest.diagnose.job_watch`. As in Flink, the bottleneck is a busy vertex whose upstream vertex is
back-pressured. The texts name the operator, the subtask and the waiting neighbours, so that users need not know that
rule. A vertex that waits for a barrier also holds back its upstream for moments; it is named only if no vertex is busy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.jobmanager.messages.views import CheckpointsView, CheckpointView, JobDetail
    from penstock.rest.diagnose.job_load import JobLoad, VertexLoad

#: A vertex that waits for output for this share of its time is held back.
HELD_BACK = 0.25
#: A vertex that is busy for this share of its time is near its limit.
AT_ITS_LIMIT = 0.9
#: A vertex that holds others back and is less busy than this is waiting rather than working.
_WORKING = 0.5
#: Key skew: one subtask is this busy, each other at most half as busy, and it received this multiple of their mean
#: rows.
_SKEWED, _SKEWED_ROWS = 0.6, 1.5
#: Event time that stands still for this long while rows arrive is reported.
STANDS_STILL_MS = 30_000
#: A checkpoint that takes longer than this is reported.
_LONG_CHECKPOINT_MS = 20_000
#: A finding not seen for this long is over; if it returns, it is new.
FORGET_MS = 15_000
BAD, WARN, GOOD, NEUTRAL = "bad", "warn", "good", "neutral"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a job; `Since` sets `since_ms`, which is 0 before."""

    #: `slow`, `limit`, `skew`, `watermark`, `checkpoints`, `failing`, `fine`, ...
    kind: str
    level: str
    title: str
    text: str = ""
    vertex: str = ""
    operator: str = ""
    subtask: int = -1
    since_ms: int = 0

    @property
    def identity(self) -> tuple[str, str, str, int]:
        """The key that identifies a finding over time: slow and skewed are the same finding."""
        if self.kind == "skew":
            return "slow", self.vertex, self.operator, -1
        return self.kind, self.vertex, self.operator, self.subtask

    def document(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {
            "kind": self.kind,
            "level": self.level,
            "title": self.title,
            "text": self.text,
            "vertex": self.vertex,
            "operator": self.operator,
            "subtask": self.subtask,
            "since": self.since_ms,
        }


def diagnose(load: JobLoad) -> list[Finding]:
    """Return the findings of a job's load, the most important first; never empty."""
    if load.state != "RUNNING":
        return [_not_running(load)]
    if not load.measured:
        return [Finding("starting", NEUTRAL, "Starting", "Some subtasks are not running or have no metrics yet.")]
    culprits = [v for v in load.vertices if _waiting_for(v, load) and not _held_back(v)]
    if culprits:
        culprits.sort(key=lambda v: -v.busy)
        return [_slow(v, load) for v in culprits if v.busy >= _WORKING] or [_slow(v, load) for v in culprits]
    full = [v for v in load.vertices if v.busy >= AT_ITS_LIMIT and not _held_back(v)]
    if full:
        return [_limit(max(full, key=lambda v: v.busy))]
    busiest = max(load.vertices, key=lambda v: v.busy)
    if all(s.ended for v in load.vertices for s in v.subtasks):
        return [Finding("fine", GOOD, "All input is read", "The job is writing its remaining output.")]
    if not any(s.rows_in or s.rows_out for v in load.vertices for s in v.subtasks):
        return [Finding("idle", GOOD, "Waiting for input", "No rows arrive, and no operator is slow.")]
    text = f"The busiest operator, {_operator_name(busiest)}, is busy {_percent(busiest.busy)} of the time."
    return [Finding("fine", GOOD, "Keeping up", text)]


def of_checkpoints(view: CheckpointsView, detail: JobDetail, now_ms: int) -> list[Finding]:
    """Return the findings about a running job's checkpoints."""
    found = []
    failed: list[CheckpointView] = []
    for entry in view.history:
        if entry.status == "COMPLETED":
            break
        if entry.status == "FAILED":
            failed.append(entry)
    if failed:
        many = f"The last {len(failed)} checkpoints failed" if len(failed) > 1 else "The last checkpoint failed"
        text = f"{failed[0].failure.rstrip('.')}. Until one succeeds, a restart must replay more and more input."
        found.append(Finding("checkpoints", WARN, many, text, since_ms=failed[-1].end_ms))
    for entry in view.history:
        age_ms = now_ms - entry.trigger_ms
        if entry.status == "IN_PROGRESS" and age_ms > _LONG_CHECKPOINT_MS:
            title = f"Checkpoint {entry.id} is slow"
            text = f"{entry.acknowledged} of {entry.total} subtasks are done; waiting for {_missing(entry, detail)}."
            found.append(Finding("checkpoint-slow", WARN, title, text, since_ms=entry.trigger_ms))
    return found


def of_rows(summary: dict[str, Any]) -> list[Finding]:
    """Return the findings about external calls and about dropped or odd rows, from `flink_json.progress`."""
    found = []
    for number, call in enumerate(summary.get("slow-calls", ())):
        text = "Output or a checkpoint waits for this call. Check that the external system is reachable."
        found.append(
            Finding("slow-call", WARN, f"Slow call: {call['what']}", text, subtask=number, since_ms=call["since"])
        )
    for uid, ms in summary.get("sources-unreachable", {}).items():
        title = f"Source {uid}: no answer for {ms / 1000:.0f} s"
        text = "It resumes when its external system answers. Check that the system is reachable."
        found.append(Finding("source-unreachable", WARN, title, text, operator=uid))
    for uid, count in summary["bad-records"].items():
        text = "They could not be decoded. Set on_bad_record='dead-letter' to send them to a side output."
        found.append(Finding("bad-records", WARN, f"{count:,} bad records in source {uid}", text, operator=uid))
    for uid, doubt in summary["doubtful-times"].items():
        title = f"{doubt['rows']:,} rows of {uid} have event times before 1990"
        text = "If they are seconds, set timestamp_unit='s' on the source or unit='s' on the watermark strategy."
        found.append(Finding("old-times", WARN, title, text, operator=uid))
    for name, count in summary["late-records"].items():
        text = "They arrived after the watermark. Increase the out-of-orderness bound, or keep them with .late_to(tag)."
        found.append(Finding("late-rows", NEUTRAL, f"{count:,} late rows were dropped at {name}", text, operator=name))
    return found


class Since:
    """Remembers when each finding was first seen, and when each source's event time last advanced."""

    def __init__(self) -> None:
        """Start without findings."""
        self._seen: dict[tuple[str, str, str, int], tuple[int, int]] = {}
        self._marks: dict[str, tuple[int | None, int]] = {}

    def still(self, load: JobLoad, now_ms: int) -> list[Finding]:
        """Return the sources whose event time stands still while rows arrive."""
        found = []
        for vertex in load.vertices:
            mark, moved_ms = self._marks.get(vertex.id, (None, now_ms))
            rows = sum(s.rows_out for s in vertex.subtasks)
            if vertex.watermark_ms != mark or not rows or vertex.id not in self._marks:
                self._marks[vertex.id] = vertex.watermark_ms, now_ms
            elif not vertex.inputs and mark is not None and now_ms - moved_ms >= STANDS_STILL_MS:
                found.append(_still(vertex, moved_ms))
        return found

    def told(self, findings: Sequence[Finding], now_ms: int) -> list[Finding]:
        """Return the findings with the time of their first occurrence."""
        told = []
        for finding in findings:
            first_ms, _ = self._seen.get(finding.identity, (finding.since_ms or now_ms, now_ms))
            self._seen[finding.identity] = first_ms, now_ms
            told.append(replace(finding, since_ms=finding.since_ms or first_ms))
        self._seen = {key: times for key, times in self._seen.items() if now_ms - times[1] <= FORGET_MS}
        return told


def _not_running(load: JobLoad) -> Finding:
    state = load.state.capitalize()
    if load.waits_for and load.state in ("CREATED", "RESTARTING"):
        text = f"It needs {load.waits_for}. It starts when jobs end, or when a TaskManager is added."
        return Finding("slots", WARN, "Waits for slots", text)
    if load.state in ("FAILED", "FAILING"):
        return Finding("failed", BAD, state, load.error)
    if load.state == "RESTARTING":
        return Finding("restarting", BAD, state, load.error or "The old workers are stopped and the job starts again.")
    return Finding("state", NEUTRAL, state, load.error)


def _waiting_for(vertex: VertexLoad, load: JobLoad) -> list[VertexLoad]:
    return [v for v in load.vertices if v.id in vertex.inputs and v.back_pressured >= HELD_BACK]


def _held_back(vertex: VertexLoad) -> bool:
    """Return whether a vertex mostly waits for its downstream vertices."""
    return vertex.back_pressured >= HELD_BACK and vertex.back_pressured > vertex.busy


def _slow(vertex: VertexLoad, load: JobLoad) -> Finding:
    waiting = _waiting_for(vertex, load)
    names = " and ".join(f"{_tail(v)} ({_percent(v.back_pressured)} of its time)" for v in waiting)
    held = f"It holds back {names}."
    uid, name = _culprit(vertex)
    if vertex.busy < _WORKING:
        text = f"It is busy only {_percent(vertex.busy)} of the time: it waits for an external system or for a barrier."
        return Finding("waiting", WARN, f"{name} is waiting", f"{text} {held}", vertex.id, uid)
    skewed = _skewed(vertex)
    if skewed >= 0:
        others = max(s.busy for i, s in enumerate(vertex.subtasks) if i != skewed)
        text = (
            f"Its subtask {skewed} is busy {_percent(vertex.busy)} of the time, the others at most {_percent(others)}: "
            f"a few keys have most of the rows (see the hot keys). {held}"
        )
        return Finding("skew", BAD, f"{name} is slow in one subtask", text, vertex.id, uid, skewed)
    return Finding("slow", BAD, f"{name} is slow", f"{_busy_text(vertex, uid)} {held}", vertex.id, uid)


def _limit(vertex: VertexLoad) -> Finding:
    uid, name = _culprit(vertex)
    text = f"{_busy_text(vertex, uid)} No vertex waits for it yet, but it has hardly any capacity left."
    return Finding("limit", WARN, f"{name} is at its limit", text, vertex.id, uid)


def _busy_text(vertex: VertexLoad, uid: str) -> str:
    text = f"It is busy {_percent(vertex.busy)} of the time."
    if len(vertex.operators) > 1 and vertex.busy:
        share = min(1.0, vertex.operator_busy.get(uid, 0.0) / vertex.busy)
        text = f"Its chain is busy {_percent(vertex.busy)} of the time, {_percent(share)} of that in {uid}."
    return text


def _still(vertex: VertexLoad, since_ms: int) -> Finding:
    marks = [s.watermark_ms for s in vertex.subtasks]
    lowest = min(range(len(marks)), key=lambda i: (marks[i] is None, marks[i] or 0, i))
    title = f"Event time of {_tail(vertex)} stands still"
    text = f"Rows arrive, but the watermark of subtask {lowest} does not advance: downstream windows stay open."
    return Finding("watermark", WARN, title, text, vertex.id, subtask=lowest, since_ms=since_ms)


def _missing(entry: CheckpointView, detail: JobDetail) -> str:
    acknowledged = {(s.vertex_id, s.subtask) for s in entry.subtasks}
    missing = [
        f"subtask {subtask.subtask} of {vertex.name}"
        for vertex in detail.vertices
        for subtask in vertex.subtasks
        if (vertex.id, subtask.subtask) not in acknowledged
    ]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (", ".join(missing[:3]) + more) or "the manifest"


def _culprit(vertex: VertexLoad) -> tuple[str, str]:
    """Return uid and name of the operator of the chain that takes the most time."""
    if not vertex.operators:
        return "", vertex.name
    uid = max(vertex.operators, key=lambda uid: vertex.operator_busy.get(uid, 0.0))
    return uid, vertex.operators[uid]


def _operator_name(vertex: VertexLoad) -> str:
    return _culprit(vertex)[1]


def _tail(vertex: VertexLoad) -> str:
    """Return the name that users know a vertex by: its last operator's, or the first one's for a source."""
    names = list(vertex.operators.values())
    if not names:
        return vertex.name
    return names[-1] if vertex.inputs else names[0]


def _skewed(vertex: VertexLoad) -> int:
    """Return the subtask that does nearly all the work of a vertex, or -1."""
    if len(vertex.subtasks) < 2:
        return -1
    busiest = max(range(len(vertex.subtasks)), key=lambda i: vertex.subtasks[i].busy)
    others = [s for i, s in enumerate(vertex.subtasks) if i != busiest]
    most = vertex.subtasks[busiest]
    alone = most.busy >= _SKEWED and max(s.busy for s in others) <= most.busy / 2
    # At a barrier a subtask is idle for a while too, but then all subtasks received similar numbers of rows.
    fed = most.rows_seen >= _SKEWED_ROWS * max(sum(s.rows_seen for s in others) / len(others), 1)
    return busiest if alone and fed else -1


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
