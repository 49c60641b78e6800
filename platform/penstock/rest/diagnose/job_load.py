"""The load of a job (time shares, rates, watermarks) for the web interface and `rest.diagnose.diagnosis`: plain values.

`load_of` reads the newest metrics from a view, `mean_of` averages the last few, and `LoadHistory` keeps the series of
the charts. Called by `rest.diagnose.job_watch`. Shares are 0 to 1, rates rows per second, times wall-clock
milliseconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.jobmanager.messages.views import JobDetail, SubtaskView, VertexView

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
                vertex_id: {name: [round(look[i], 3) for look in series] for i, name in enumerate(names)}
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


def _mean_vertex(looks: Sequence[VertexLoad]) -> VertexLoad:
    newest, count = looks[-1], len(looks)
    subtasks = tuple(
        SubtaskLoad(
            busy=sum(v.subtasks[i].busy for v in looks) / count,
            back_pressured=sum(v.subtasks[i].back_pressured for v in looks) / count,
            rows_in=sum(v.subtasks[i].rows_in for v in looks) / count,
            rows_out=sum(v.subtasks[i].rows_out for v in looks) / count,
            rows_seen=last.rows_seen,
            watermark_ms=last.watermark_ms,
            ended=last.ended,
        )
        for i, last in enumerate(newest.subtasks)
    )
    busy = {uid: sum(v.operator_busy.get(uid, 0.0) for v in looks) / count for uid in newest.operators}
    return VertexLoad(newest.id, newest.name, newest.inputs, subtasks, newest.operators, busy)
