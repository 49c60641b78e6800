"""Explains what is slow in a job: its load, findings about it and its checkpoints, and the time of each finding.

Pure functions over the JobManager's views, called by `rest.diagnose.job_watch`. As in Flink, the bottleneck is a
busy vertex whose upstream vertex is back-pressured. The texts name the operator, the subtask and the waiting
neighbours.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.core.slow_calls import SLOW_CHECKPOINT_MS, slow_call_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.jobmanager.messages.views import CheckpointsView, CheckpointView, JobDetail, SubtaskView, VertexView

#: Number of samples in the charts; `rest.diagnose.job_watch` sets the interval.
KEPT = 150
#: A watermark below the first is not set yet; above the second, the input has ended.
_NO_WATERMARK_MS, _END_MS = -(1 << 62) // 1000, (1 << 62) // 1000
_BUSY = "busyTimeMsPerSecond"


@dataclass(frozen=True, slots=True)
class SubtaskLoad:
    """The load of a subtask over about a second, or a mean."""

    busy: float = 0.0
    back_pressured: float = 0.0
    rows_in: float = 0.0
    rows_out: float = 0.0
    #: Rows received since its start.
    rows_seen: float = 0.0
    #: Watermark of its output; None if not set yet or at the end of its input.
    watermark_ms: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class VertexLoad:
    """A vertex with its subtasks; `inputs` are its upstream vertices."""

    id: str
    name: str
    inputs: tuple[str, ...]
    subtasks: tuple[SubtaskLoad, ...]
    #: Operators of the chain in order (uid -> name), and their highest busy share in a subtask (uid -> share).
    operators: dict[str, str] = field(default_factory=dict)
    operator_busy: dict[str, float] = field(default_factory=dict)

    @property
    def busy(self) -> float:
        """The busy share of the busiest subtask."""
        return max((s.busy for s in self.subtasks), default=0.0)

    @property
    def back_pressured(self) -> float:
        """The back-pressured share of the most back-pressured subtask."""
        return max((s.back_pressured for s in self.subtasks), default=0.0)

    @property
    def watermark_ms(self) -> int | None:
        """The lowest watermark; None while a subtask that has not ended has none."""
        marks = [s.watermark_ms for s in self.subtasks if not s.ended]
        return min((m for m in marks if m is not None), default=None) if None not in marks else None


@dataclass(frozen=True, slots=True)
class JobLoad:
    """A sample of a job's load."""

    state: str
    error: str
    #: Missing resources of its start.
    waits_for: str
    vertices: tuple[VertexLoad, ...]
    #: Whether every subtask is running and has reported its time shares.
    measured: bool
    #: See `JobSummary.region_restart`.
    region_restart: str = ""


def load_of(detail: JobDetail) -> JobLoad:
    """Return a sample from the newest metrics of a job."""
    inputs: dict[str, list[str]] = {}
    for edge in detail.edges:
        inputs.setdefault(edge.target, []).append(edge.source)
    subtasks = [s for v in detail.vertices for s in v.subtasks]
    return JobLoad(
        state=detail.summary.state,
        error=detail.summary.error,
        waits_for=detail.summary.waits_for,
        vertices=tuple(_vertex(v, tuple(dict.fromkeys(inputs.get(v.id, ())))) for v in detail.vertices),
        measured=bool(subtasks) and all(_measured(s) for s in subtasks),
        region_restart=detail.summary.region_restart,
    )


def mean_of(loads: Sequence[JobLoad]) -> JobLoad:
    """Return the newest sample with times and rates averaged over the samples of the same shape."""
    newest = loads[-1]
    alike = [load for load in loads if load.measured and _shape(load) == _shape(newest)]
    if not newest.measured or len(alike) < 2:
        return newest
    vertices = tuple(_mean_vertex([load.vertices[i] for load in alike]) for i in range(len(newest.vertices)))
    return replace(newest, vertices=vertices)


class LoadHistory:
    """The last `KEPT` samples by vertex: means of the subtasks' shares, sums of their rates."""

    def __init__(self) -> None:
        """Start without samples."""
        self._times: deque[int] = deque(maxlen=KEPT)
        self._vertices: dict[str, deque[tuple[float, ...]]] = {}

    def add(self, load: JobLoad, now_ms: int) -> None:
        """Add a sample."""
        self._times.append(now_ms)
        for vertex in load.vertices:
            series = self._vertices.setdefault(vertex.id, deque([_NOTHING] * (len(self._times) - 1), maxlen=KEPT))
            count = len(vertex.subtasks) or 1
            series.append(
                (
                    sum(s.busy for s in vertex.subtasks) / count,
                    sum(s.back_pressured for s in vertex.subtasks) / count,
                    sum(s.rows_in for s in vertex.subtasks),
                    sum(s.rows_out for s in vertex.subtasks),
                )
            )

    def document(self) -> dict[str, Any]:
        """Return the series as JSON values: `times`, and four lists for each of `vertices`."""
        names = ("busy", "back-pressured", "rows-in", "rows-out")
        return {
            "times": list(self._times),
            "vertices": {
                vertex_id: {name: [round(sample[i], 3) for sample in series] for i, name in enumerate(names)}
                for vertex_id, series in self._vertices.items()
            },
        }


_NOTHING = (0.0, 0.0, 0.0, 0.0)


def _measured(subtask: SubtaskView) -> bool:
    return subtask.state == "FINISHED" or (subtask.state == "RUNNING" and _BUSY in subtask.metrics)


def _vertex(view: VertexView, inputs: tuple[str, ...]) -> VertexLoad:
    busy = {
        o.uid: max((s.metrics.get(f"operator/{o.uid}/{_BUSY}", 0.0) / 1000 for s in view.subtasks), default=0.0)
        for o in view.operators
    }
    names = {o.uid: o.name or o.uid for o in view.operators}
    return VertexLoad(view.id, view.name, inputs, tuple(_subtask(s) for s in view.subtasks), names, busy)


def _subtask(view: SubtaskView) -> SubtaskLoad:
    metrics = view.metrics
    watermark = metrics.get("currentOutputWatermark", _NO_WATERMARK_MS)
    return SubtaskLoad(
        busy=metrics.get(_BUSY, 0.0) / 1000,
        back_pressured=metrics.get("backPressuredTimeMsPerSecond", 0.0) / 1000,
        rows_in=metrics.get("numRecordsInPerSecond", 0.0),
        rows_out=metrics.get("numRecordsOutPerSecond", 0.0),
        rows_seen=metrics.get("numRecordsIn", 0.0),
        watermark_ms=int(watermark) if _NO_WATERMARK_MS < watermark < _END_MS else None,
        ended=view.state == "FINISHED" or view.input_ended or watermark >= _END_MS,
    )


def _shape(load: JobLoad) -> list[tuple[str, int]]:
    return [(vertex.id, len(vertex.subtasks)) for vertex in load.vertices]


def _mean_vertex(samples: Sequence[VertexLoad]) -> VertexLoad:
    newest, count = samples[-1], len(samples)
    subtasks = tuple(
        SubtaskLoad(
            busy=sum(v.subtasks[i].busy for v in samples) / count,
            back_pressured=sum(v.subtasks[i].back_pressured for v in samples) / count,
            rows_in=sum(v.subtasks[i].rows_in for v in samples) / count,
            rows_out=sum(v.subtasks[i].rows_out for v in samples) / count,
            rows_seen=last.rows_seen,
            watermark_ms=last.watermark_ms,
            ended=last.ended,
        )
        for i, last in enumerate(newest.subtasks)
    )
    busy = {uid: sum(v.operator_busy.get(uid, 0.0) for v in samples) / count for uid in newest.operators}
    return VertexLoad(newest.id, newest.name, newest.inputs, subtasks, newest.operators, busy)


#: A vertex that waits for output for this share of its time is held back.
BACK_PRESSURED = 0.25
#: A vertex that is busy for this share of its time is near its limit.
SATURATED = 0.9
#: A vertex that holds others back and is less busy than this is waiting rather than working.
_WORKING = 0.5
#: Key skew: one subtask is this busy, each other at most half as busy, and it received this multiple of their mean
#: rows.
_SKEWED, _SKEWED_ROWS = 0.6, 1.5
#: Event time that stands still for this long while rows arrive is reported.
STALLED_MS = 30_000
#: A finding not seen for this long is over; if it returns, it is new.
FORGET_MS = 15_000
BAD, WARN, GOOD, NEUTRAL = "bad", "warn", "good", "neutral"
#: Kind of a finding: a function of the user has not returned for long. It comes first: it explains others.
IN_CALL = "function-in-call"
SLOW_CALL = "slow-call"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a job; `FindingHistory` sets `since_ms`, which is 0 before."""

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
    if load.region_restart:
        return [
            Finding("region-restart", BAD, "A region restarts", f"{load.region_restart}. The other regions continue.")
        ]
    if not load.measured:
        return [Finding("starting", NEUTRAL, "Starting", "Some subtasks are not running or have no metrics yet.")]
    culprits = [v for v in load.vertices if _waiting_for(v, load) and not _is_back_pressured(v)]
    if culprits:
        culprits.sort(key=lambda v: -v.busy)
        return [_slow(v, load) for v in culprits if v.busy >= _WORKING] or [_slow(v, load) for v in culprits]
    full = [v for v in load.vertices if v.busy >= SATURATED and not _is_back_pressured(v)]
    if full:
        return [_saturated(max(full, key=lambda v: v.busy))]
    busiest = max(load.vertices, key=lambda v: v.busy)
    if all(s.ended for v in load.vertices for s in v.subtasks):
        return [Finding("fine", GOOD, "All input is read", "The job is writing its remaining output.")]
    if not any(s.rows_in or s.rows_out for v in load.vertices for s in v.subtasks):
        return [Finding("idle", GOOD, "Waiting for input", "No rows arrive, and no operator is slow.")]
    text = f"The busiest operator, {_operator_name(busiest)}, is busy {_percent(busiest.busy)} of the time."
    return [Finding("fine", GOOD, "Keeping up", text)]


def checkpoint_findings(view: CheckpointsView, detail: JobDetail, now_ms: int) -> list[Finding]:
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
        if entry.status == "IN_PROGRESS" and age_ms > SLOW_CHECKPOINT_MS:
            title = f"Checkpoint {entry.id} is slow"
            text = f"{entry.acknowledged} of {entry.total} subtasks are done; waiting for {_missing(entry, detail)}."
            found.append(Finding("checkpoint-slow", WARN, title, text, since_ms=entry.trigger_ms))
    return found


#: Entry of the summary, kind of finding, the times, and the unit that they probably have.
_IMPLAUSIBLE = (
    ("doubtful-times", "old-times", "before 1990", "seconds", "s"),
    ("distant-times", "distant-times", "after 2100", "microseconds", "us"),
)


def row_findings(summary: dict[str, Any], now_ms: int) -> list[Finding]:
    """Return the findings about slow calls and about dropped or odd rows, from `flink_json.progress`."""
    found = []
    for number, call in enumerate(summary.get("slow-calls", ())):
        kind, title = SLOW_CALL, f"Slow call: {call['what']}"
        text = "Output or a checkpoint waits for this call. Check that the external system is reachable."
        if call["at"]:
            kind, title = IN_CALL, slow_call_text(call["what"], now_ms - call["since"], call["at"])
            title = title[0].upper() + title[1:]
            text = "Its rows, and those of all operators in its thread, wait until the function returns."
        found.append(Finding(kind, WARN, title, text, subtask=number, since_ms=call["since"]))
    for uid, away in summary.get("sources-unreachable", {}).items():
        title = f"Source {uid}: no answer for {away['for-ms'] / 1000:.0f} s"
        place = away["place"] or "its external system"
        text = f"It waits for {place} and resumes with the next answer. Check that the system runs and is reachable."
        found.append(Finding("source-unreachable", WARN, title, text, operator=uid, since_ms=int(away["since"] or 0)))
    for uid, count in summary["bad-records"].items():
        example = summary.get("bad-record-examples", {}).get(uid, "")
        text = f"The first one: {example}. " if example else "They could not be decoded. "
        text += "on_bad_record='dead-letter' sends them to a side output."
        found.append(Finding("bad-records", WARN, f"{count:,} bad records in source {uid}", text, operator=uid))
    for times, kind, when, units, unit in _IMPLAUSIBLE:
        for uid, doubt in summary.get(times, {}).items():
            title = f"{doubt['rows']:,} rows of {uid} have event times {when}"
            text = f"If they are {units}, declare the field as int and set unit={unit!r} on the watermark strategy."
            found.append(Finding(kind, WARN, title, text, operator=uid))
    for name, count in summary["late-records"].items():
        text = "They arrived after the watermark. Increase the out-of-orderness bound, or keep them with .late_to(tag)."
        found.append(Finding("late-rows", NEUTRAL, f"{count:,} late rows were dropped at {name}", text, operator=name))
    return found


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, problems first, calls before all; a job that waits is not said to keep up.

    Nor is an operator said to be at its limit: the time of a call in the subtask's thread counts as busy.
    """
    kinds = {finding.kind for finding in findings}
    calls = {IN_CALL, SLOW_CALL}
    untrue = {"fine", "idle"} if kinds & {"source-unreachable", *calls} else set()
    untrue |= {"limit"} if kinds & calls else set()
    left = [finding for finding in findings if finding.kind not in untrue]
    return sorted(left, key=lambda finding: (finding.level == GOOD, finding.kind not in calls))


class FindingHistory:
    """Remembers when each finding was first seen, and when each source's event time last advanced."""

    def __init__(self) -> None:
        """Start without findings."""
        self._seen: dict[tuple[str, str, str, int], tuple[int, int]] = {}
        self._marks: dict[str, tuple[int | None, int]] = {}
        self._looked_ms = 0

    def stalled_sources(self, load: JobLoad, now_ms: int) -> list[Finding]:
        """Return the sources whose event time stands still while rows arrive."""
        found = []
        for vertex in load.vertices:
            mark, moved_ms = self._marks.get(vertex.id, (None, now_ms))
            rows = sum(s.rows_out for s in vertex.subtasks)
            if vertex.watermark_ms != mark or not rows or vertex.id not in self._marks:
                self._marks[vertex.id] = vertex.watermark_ms, now_ms
            elif not vertex.inputs and mark is not None and now_ms - moved_ms >= STALLED_MS:
                found.append(_stalled(vertex, moved_ms))
        return found

    def stamped(self, findings: Sequence[Finding], now_ms: int, running_ms: int = 0) -> list[Finding]:
        """Return the findings with the time of their first occurrence.

        A problem may be absent for a short time; a good state ends with its first absence, and with a restart.
        `running_ms`: when the job last began to run.
        """
        stamped = []
        for finding in findings:
            first_ms, seen_ms = self._seen.get(finding.identity, (finding.since_ms or now_ms, now_ms))
            if finding.level == GOOD and (seen_ms < self._looked_ms or first_ms < running_ms):
                first_ms = now_ms
            self._seen[finding.identity] = first_ms, now_ms
            stamped.append(replace(finding, since_ms=finding.since_ms or first_ms))
        self._seen = {key: times for key, times in self._seen.items() if now_ms - times[1] <= FORGET_MS}
        self._looked_ms = now_ms
        return stamped


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
    return [v for v in load.vertices if v.id in vertex.inputs and v.back_pressured >= BACK_PRESSURED]


def _is_back_pressured(vertex: VertexLoad) -> bool:
    """Return whether a vertex mostly waits for its downstream vertices."""
    return vertex.back_pressured >= BACK_PRESSURED and vertex.back_pressured > vertex.busy


def _slow(vertex: VertexLoad, load: JobLoad) -> Finding:
    waiting = _waiting_for(vertex, load)
    names = " and ".join(f"{_tail(v)} ({_percent(v.back_pressured)} of its time)" for v in waiting)
    held = f"It holds back {names}."
    uid, name = _busiest_operator(vertex)
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


def _saturated(vertex: VertexLoad) -> Finding:
    uid, name = _busiest_operator(vertex)
    text = f"{_busy_text(vertex, uid)} No vertex waits for it yet, but it has hardly any capacity left."
    return Finding("limit", WARN, f"{name} is at its limit", text, vertex.id, uid)


def _busy_text(vertex: VertexLoad, uid: str) -> str:
    text = f"It is busy {_percent(vertex.busy)} of the time."
    if len(vertex.operators) > 1 and vertex.busy:
        share = min(1.0, vertex.operator_busy.get(uid, 0.0) / vertex.busy)
        text = f"Its chain is busy {_percent(vertex.busy)} of the time, {_percent(share)} of that in {uid}."
    return text


def _stalled(vertex: VertexLoad, since_ms: int) -> Finding:
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


def _busiest_operator(vertex: VertexLoad) -> tuple[str, str]:
    """Return uid and name of the operator of the chain that takes the most time."""
    if not vertex.operators:
        return "", vertex.name
    uid = max(vertex.operators, key=lambda uid: vertex.operator_busy.get(uid, 0.0))
    return uid, vertex.operators[uid]


def _operator_name(vertex: VertexLoad) -> str:
    return _busiest_operator(vertex)[1]


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
