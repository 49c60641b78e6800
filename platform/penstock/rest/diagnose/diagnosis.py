"""What is slow in a job and why, in words: pure functions over its load and its checkpoints; what holds since when.

Called by `rest.diagnose.job_watch`. A vertex that works, while one before it is back-pressured, is the bottleneck, as
in Flink; the operator, the subtask and the waiting neighbours are named, so that nobody has to know that rule. What
waits for a barrier holds back those before it too, for moments: it is named only where nothing works.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.jobmanager.messages.views import CheckpointsView, CheckpointView, JobDetail
    from penstock.rest.diagnose.job_load import JobLoad, VertexLoad

#: A vertex that waits for output this share of its time is held back.
HELD_BACK = 0.25
#: One that works this share of its time can take hardly more.
AT_ITS_LIMIT = 0.9
#: Below it, one that holds others back is waiting rather than working.
_WORKING = 0.5
#: A subtask that is this busy while each of the others is half as busy at most, and has had so many times the rows that
#: they had, has more than its share of the keys.
_SKEWED, _SKEWED_ROWS = 0.6, 1.5
#: Event time that stands still for so long while rows come is worth a word.
STANDS_STILL_MS = 30_000
#: So long may a checkpoint take before somebody is told.
_LONG_CHECKPOINT_MS = 20_000
#: A finding that was not seen for so long is over; when it comes back it began anew.
FORGET_MS = 15_000
BAD, WARN, GOOD, NEUTRAL = "bad", "warn", "good", "neutral"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to be said; `since_ms` is 0 until `Since` has filled it in."""

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
        """Return what makes it the same finding at a later look: slow stays slow, in one subtask or in all."""
        if self.kind == "skew":
            return "slow", self.vertex, self.operator, -1
        return self.kind, self.vertex, self.operator, self.subtask

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
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
    """Return what is to be said of a job's load, the most important first; never empty."""
    if load.state != "RUNNING":
        return [_not_running(load)]
    if not load.measured:
        return [Finding("starting", NEUTRAL, "Starting", "Not all subtasks run and have been measured yet.")]
    culprits = [v for v in load.vertices if _waiting_for(v, load) and not _held_back(v)]
    if culprits:
        culprits.sort(key=lambda v: -v.busy)
        return [_slow(v, load) for v in culprits if v.busy >= _WORKING] or [_slow(v, load) for v in culprits]
    full = [v for v in load.vertices if v.busy >= AT_ITS_LIMIT and not _held_back(v)]
    if full:
        return [_limit(max(full, key=lambda v: v.busy))]
    busiest = max(load.vertices, key=lambda v: v.busy)
    if all(s.ended for v in load.vertices for s in v.subtasks):
        return [Finding("fine", GOOD, "All input was read", "The job is writing what is left.")]
    if not any(s.rows_in or s.rows_out for v in load.vertices for s in v.subtasks):
        return [Finding("idle", GOOD, "Waiting for input", "No rows come in; nothing is in the way.")]
    text = f"The busiest operator, {_operator_name(busiest)}, works {_percent(busiest.busy)} of its time."
    return [Finding("fine", GOOD, "Keeping up", text)]


def of_checkpoints(view: CheckpointsView, detail: JobDetail, now_ms: int) -> list[Finding]:
    """Return what is to be said of a running job's checkpoints."""
    found = []
    failed: list[CheckpointView] = []
    for entry in view.history:
        if entry.status == "COMPLETED":
            break
        if entry.status == "FAILED":
            failed.append(entry)
    if failed:
        many = f"The last {len(failed)} checkpoints failed" if len(failed) > 1 else "The last checkpoint failed"
        text = f"{failed[0].failure.rstrip('.')}. Until one succeeds, a restart has more and more input to replay."
        found.append(Finding("checkpoints", WARN, many, text, since_ms=failed[-1].end_ms))
    for entry in view.history:
        age_ms = now_ms - entry.trigger_ms
        if entry.status == "IN_PROGRESS" and age_ms > _LONG_CHECKPOINT_MS:
            title = f"Checkpoint {entry.id} is taking long"
            text = f"{entry.acknowledged} of {entry.total} subtasks are done; it waits for {_missing(entry, detail)}."
            found.append(Finding("checkpoint-slow", WARN, title, text, since_ms=entry.trigger_ms))
    return found


def of_rows(summary: dict[str, Any]) -> list[Finding]:
    """Return what a job waits for outside, and what was left out or is odd of its rows, from `flink_json.progress`."""
    found = []
    for number, call in enumerate(summary.get("slow-calls", ())):
        text = "Output or a checkpoint waits for this call. Check that the outside system is reachable."
        found.append(
            Finding("slow-call", WARN, f"Slow call: {call['what']}", text, subtask=number, since_ms=call["since"])
        )
    for uid, ms in summary.get("sources-unreachable", {}).items():
        title = f"Source {uid}: no answer for {ms / 1000:.0f} s"
        text = "It resumes when its outside system answers. Check that this is reachable."
        found.append(Finding("source-unreachable", WARN, title, text, operator=uid))
    for uid, count in summary["bad-records"].items():
        text = "They could not be decoded. With on_bad_record='dead-letter' they go to a side output."
        found.append(Finding("bad-records", WARN, f"{count:,} bad records in source {uid}", text, operator=uid))
    for uid, doubt in summary["doubtful-times"].items():
        title = f"{doubt['rows']:,} rows of {uid} have event times before 1990"
        text = "If they are seconds, set timestamp_unit='s' on the source or unit='s' on the watermark strategy."
        found.append(Finding("old-times", WARN, title, text, operator=uid))
    for name, count in summary["late-records"].items():
        text = (
            "They came after the watermark. A larger bound out of orderness waits for them, .late_to(tag) keeps them."
        )
        found.append(Finding("late-rows", NEUTRAL, f"{count:,} late rows were dropped at {name}", text, operator=name))
    return found


class Since:
    """Remembers when a finding was first seen, and how long event time has not moved."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._seen: dict[tuple[str, str, str, int], tuple[int, int]] = {}
        self._marks: dict[str, tuple[int | None, int]] = {}

    def still(self, load: JobLoad, now_ms: int) -> list[Finding]:
        """Return the sources whose event time stands still while rows come."""
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
        """Return the findings with the time since when they hold."""
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
        return Finding("restarting", BAD, state, load.error or "The job leaves its old workers and starts again.")
    return Finding("state", NEUTRAL, state, load.error)


def _waiting_for(vertex: VertexLoad, load: JobLoad) -> list[VertexLoad]:
    return [v for v in load.vertices if v.id in vertex.inputs and v.back_pressured >= HELD_BACK]


def _held_back(vertex: VertexLoad) -> bool:
    """Whether a vertex mostly waits for those behind it."""
    return vertex.back_pressured >= HELD_BACK and vertex.back_pressured > vertex.busy


def _slow(vertex: VertexLoad, load: JobLoad) -> Finding:
    waiting = _waiting_for(vertex, load)
    names = " and ".join(f"{_tail(v)} ({_percent(v.back_pressured)} of its time)" for v in waiting)
    held = f"It holds back {names}."
    uid, name = _culprit(vertex)
    if vertex.busy < _WORKING:
        text = f"It works only {_percent(vertex.busy)} of its time: it waits for something outside, or for a barrier."
        return Finding("waiting", WARN, f"{name} is waited for", f"{text} {held}", vertex.id, uid)
    skewed = _skewed(vertex)
    if skewed >= 0:
        others = max(s.busy for i, s in enumerate(vertex.subtasks) if i != skewed)
        text = (
            f"Its subtask {skewed} is busy {_percent(vertex.busy)} of the time, the others {_percent(others)} at most: "
            f"few keys have most of the rows (see the hot keys). {held}"
        )
        return Finding("skew", BAD, f"{name} is slow in one subtask", text, vertex.id, uid, skewed)
    return Finding("slow", BAD, f"{name} is slow", f"{_busy_text(vertex, uid)} {held}", vertex.id, uid)


def _limit(vertex: VertexLoad) -> Finding:
    uid, name = _culprit(vertex)
    text = f"{_busy_text(vertex, uid)} Nothing waits for it yet, but it can take hardly more."
    return Finding("limit", WARN, f"{name} works at its limit", text, vertex.id, uid)


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
    text = f"Rows come, but the watermark of subtask {lowest} does not move: downstream windows stay open."
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
    """Return uid and name of the operator of the chain that takes most time."""
    if not vertex.operators:
        return "", vertex.name
    uid = max(vertex.operators, key=lambda uid: vertex.operator_busy.get(uid, 0.0))
    return uid, vertex.operators[uid]


def _operator_name(vertex: VertexLoad) -> str:
    return _culprit(vertex)[1]


def _tail(vertex: VertexLoad) -> str:
    """Return the name of the operator a vertex ends with, or begins with for a source: what a person knows it by."""
    names = list(vertex.operators.values())
    if not names:
        return vertex.name
    return names[-1] if vertex.inputs else names[0]


def _skewed(vertex: VertexLoad) -> int:
    """Return the subtask that does the work of a vertex nearly alone, -1 if none does."""
    if len(vertex.subtasks) < 2:
        return -1
    busiest = max(range(len(vertex.subtasks)), key=lambda i: vertex.subtasks[i].busy)
    others = [s for i, s in enumerate(vertex.subtasks) if i != busiest]
    most = vertex.subtasks[busiest]
    alone = most.busy >= _SKEWED and max(s.busy for s in others) <= most.busy / 2
    # One that waits at a barrier is idle for a while too: then all have had as many rows.
    fed = most.rows_seen >= _SKEWED_ROWS * max(sum(s.rows_seen for s in others) / len(others), 1)
    return busiest if alone and fed else -1


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
