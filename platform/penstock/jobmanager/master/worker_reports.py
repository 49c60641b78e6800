"""Keeps what workers report repeatedly: metrics, slow calls, and sources whose external system does not answer; pure.

`WorkerReports` is a member of `master.job_master`, the others are its members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from penstock.core.clock import utc_text
from penstock.core.slow_calls import ended_call_text, slow_call_text
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.messages.views import UNREACHABLE_MS
from penstock.rpc.messages import CheckpointAck, SlowCall, TaskState, WorkerMetrics


@dataclass(frozen=True, slots=True)
class OngoingCall:
    """A slow call in progress."""

    what: str
    since_ms: int
    #: Place in the user's code; empty for a call to an external system.
    at: str = ""


class SlowCallTracker:
    """The slow calls of one job's workers, to external systems and of the user's functions."""

    def __init__(self) -> None:
        """Start without calls."""
        self._known: dict[tuple[str, int], OngoingCall] = {}

    @property
    def ongoing(self) -> tuple[OngoingCall, ...]:
        """The calls in progress, the longest first."""
        return tuple(sorted(self._known.values(), key=lambda slow: slow.since_ms))

    def longest(self, now_ms: int) -> str:
        """Return the text of the call that has lasted longest, one of the user's functions first; empty without one."""
        calls = sorted(self._known.values(), key=lambda call: (not call.at, call.since_ms))
        return slow_call_text(calls[0].what, now_ms - calls[0].since_ms, calls[0].at) if calls else ""

    def in_user_code(self, worker_id: str, now_ms: int) -> str:
        """Return the text of a worker's longest call of a function of the user; empty without one."""
        calls = [call for (worker, _), call in self._known.items() if worker == worker_id and call.at]
        longest = min(calls, key=lambda call: call.since_ms, default=None)
        return "" if longest is None else slow_call_text(longest.what, now_ms - longest.since_ms, longest.at)

    def reported(self, worker_id: str, calls: tuple[SlowCall, ...], now_ms: int) -> list[str]:
        """Take a worker's current slow calls; return an event log line for each call that became slow or ended."""
        now = {(worker_id, call.number): call for call in calls}
        lines = []
        for key in [key for key in self._known if key[0] == worker_id and key not in now]:
            ended = self._known.pop(key)
            lines.append(ended_call_text(ended.what, now_ms - ended.since_ms, ended.at))
        for key, call in now.items():
            known = self._known.get(key)
            if known is None:
                lines.append(slow_call_text(call.what, call.for_ms, call.at))
            since_ms = now_ms - call.for_ms if known is None else known.since_ms
            self._known[key] = OngoingCall(call.what, since_ms, call.at)
        return lines

    def halted(self, worker_ids: Collection[str] | None = None) -> None:
        """Forget the calls of these workers, or of all: they were killed."""
        kept = {} if worker_ids is None else {k: call for k, call in self._known.items() if k[0] not in worker_ids}
        self._known = kept


class UnreachableSources:
    """The sources of one job whose external system does not answer."""

    def __init__(self, graph: JobGraph) -> None:
        """Start with answering sources."""
        self._sources = {vertex.id: vertex.operators[0] for vertex in graph.vertices if vertex.is_source}
        self._away: dict[str, float] = {}

    def reported(self, metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
        """Take the latest metrics by subtask; return an event log line for each system that stopped or began to answer.

        A system counts as silent after `UNREACHABLE_MS`, and as answering when all subtasks of the source have answers.
        """
        silent: dict[str, float] = {}
        since: dict[str, int] = {}
        for name, values in metrics.items():
            vertex_id = name.partition("/")[0]
            silent_ms = values.get("sourceUnreachableMs", 0.0)
            if vertex_id in self._sources and silent_ms > 0:
                silent[vertex_id] = max(silent_ms, silent.get(vertex_id, 0.0))
                begun_ms = int(values.get("sourceUnreachableSince", 0.0))
                since[vertex_id] = min(begun_ms, since.get(vertex_id, begun_ms))
        lines = []
        for vertex_id, operator in self._sources.items():
            for_ms, place = silent.get(vertex_id, 0.0), operator.place or "its external system"
            if not for_ms and vertex_id in self._away:
                seconds = self._away.pop(vertex_id) / 1000
                lines.append(f"source {operator.uid}: {place} answers again, after about {seconds:.0f} s")
            elif for_ms >= UNREACHABLE_MS:
                if vertex_id not in self._away:
                    begun = utc_text(since[vertex_id])
                    lines.append(f"source {operator.uid}: no answer from {place} since {begun} UTC")
                self._away[vertex_id] = for_ms
        return lines

    def halted(self, vertices: Collection[str] | None = None) -> None:
        """Forget that these sources are silent, or all: their workers were killed."""
        self._away = {} if vertices is None else {v: ms for v, ms in self._away.items() if v not in vertices}


class WorkerReports:
    """The newest reports of one job's workers."""

    def __init__(self, graph: JobGraph) -> None:
        """Start without reports."""
        #: By `<vertex>/<subtask>`.
        self.metrics: dict[str, dict[str, float]] = {}
        self.texts: dict[str, dict[str, str]] = {}
        self.slow_calls = SlowCallTracker()
        self._unreachable_sources = UnreachableSources(graph)

    def at_barrier(self, acks: Iterable[CheckpointAck], is_present: Callable[[str, int, int], bool]) -> None:
        """Keep the counts at a barrier: a job that is stopped may end before any later metrics arrive.

        `is_present` decides by vertex, subtask and attempt whose counts are kept.
        """
        for ack in acks:
            if not is_present(ack.snapshot.vertex_id, ack.snapshot.subtask, ack.attempt):
                continue
            name = f"{ack.snapshot.vertex_id}/{ack.snapshot.subtask}"
            known = self.metrics.get(name, {})
            counts = {count: max(float(value), known.get(count, 0.0)) for count, value in ack.metrics.counts.items()}
            self.metrics[name] = {**known, **counts}

    def at_state(self, report: TaskState) -> None:
        """Keep the metrics that a subtask reports with its end."""
        if report.metrics:
            name = f"{report.vertex_id}/{report.subtask}"
            self.metrics[name], self.texts[name] = report.metrics, report.texts

    def measured(
        self, worker_id: str, report: WorkerMetrics, has_ended: Callable[[str], bool], now_ms: int
    ) -> list[tuple[str, str]]:
        """Take the newest metrics; return entries for the event log: kind and text."""
        slow = self.slow_calls.reported(worker_id, report.slow, now_ms)
        # older than what a subtask reported at its end, if it comes after that
        self.metrics.update({name: found for name, found in report.tasks.items() if not has_ended(name)})
        self.texts.update(report.texts)
        silent = self._unreachable_sources.reported(self.metrics)
        return [*(("slow", line) for line in slow), *(("source", line) for line in silent)]

    def redefined(self, graph: JobGraph) -> None:
        """Take another definition of the job."""
        self._unreachable_sources = UnreachableSources(graph)

    def deployed(self) -> None:
        """Forget the metrics of the deployment before."""
        self.metrics.clear()
        self.texts.clear()

    def halted(self) -> None:
        """Forget what is slow or silent: all workers were killed."""
        self.slow_calls.halted()
        self._unreachable_sources.halted()

    def part_halted(self, subtasks: Collection[tuple[str, int]], worker_ids: Collection[str]) -> None:
        """Forget these subtasks, whose workers were killed."""
        for vertex_id, subtask in subtasks:
            self.metrics.pop(f"{vertex_id}/{subtask}", None)
            self.texts.pop(f"{vertex_id}/{subtask}", None)
        self.slow_calls.halted(worker_ids)
        self._unreachable_sources.halted({vertex_id for vertex_id, _ in subtasks})
