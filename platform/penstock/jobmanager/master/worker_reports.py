"""Translates the workers' reports into steps of a job; tracks slow calls and sources without an answer; pure.

Called by `master.job_master`. It changes only the state of the job's parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.clock import utc_text
from penstock.core.slow_calls import ended_call_text, slow_call_text
from penstock.core.snapshot import pending_text
from penstock.graph.task_deployment import ExecutionId
from penstock.jobmanager.change.steps import ChangeStep, Failed, Failure, Note, StoreMetrics
from penstock.jobmanager.deploy.failover import cause_of, lost_peer
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages.views import UNREACHABLE_MS
from penstock.rpc import messages as msg
from penstock.rpc.messages import SlowCall

if TYPE_CHECKING:
    from penstock.graph.job_graph import JobGraph
    from penstock.jobmanager.checkpoints.checkpointing import Checkpointing
    from penstock.jobmanager.deploy.deployment import Deployment
    from penstock.jobmanager.deploy.watermark_alignment import WatermarkAlignment


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

    def halted(self) -> None:
        """Forget all calls: the workers were killed."""
        self._known.clear()


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

    def halted(self) -> None:
        """Forget what is silent: the workers were killed."""
        self._away.clear()


@dataclass(frozen=True, slots=True)
class DeployedJob:
    """A deployed job and its parts that reports are for."""

    graph: JobGraph
    step: Step
    #: The latest of all subtasks.
    metrics: Mapping[str, dict[str, float]]
    deployment: Deployment
    checkpointing: Checkpointing
    alignment: WatermarkAlignment
    slow_call_tracker: SlowCallTracker
    unreachable_sources: UnreachableSources


def handle_report(job: DeployedJob, worker_id: str, report: msg.WorkerReport, now_ms: int) -> Sequence[ChangeStep]:
    """Return what follows from a report; nothing from a worker that is not of the present deployment."""
    deployment, checkpointing = job.deployment, job.checkpointing
    if worker_id not in deployment.workers:
        return []
    match report:
        case msg.WorkerReady():
            return deployment.worker_ready(worker_id, report.endpoint, report.pid)
        case msg.WorkerMetrics():
            slow = [Note("slow", line) for line in job.slow_call_tracker.reported(worker_id, report.slow, now_ms)]
            # older than what a subtask reported at its end, if it comes after that
            tasks = {name: found for name, found in report.tasks.items() if not deployment.has_ended(name)}
            latest = {**job.metrics, **tasks}
            silent = [Note("source", line) for line in job.unreachable_sources.reported(latest)]
            limits = job.alignment.limits(latest, deployment, now_ms)
            return [StoreMetrics(tasks, report.texts), *slow, *silent, *limits]
        case msg.TaskState():
            return _task_state(job, worker_id, report, now_ms)
        case msg.PendingResolved():
            return _resolved(job, report, now_ms)
        case msg.InputEnded():
            where = (report.vertex_id, report.subtask)
            deployment.executions[where].input_ended = True
            return checkpointing.input_ended(ExecutionId(*where, report.attempt), now_ms)
        case msg.CheckpointAck():
            return [*_counted(job, report), *checkpointing.acked(report, now_ms)]
        case msg.CheckpointDeclined():
            return checkpointing.declined(report, now_ms)
        case msg.OutputPublished():
            return checkpointing.published(report.committable_ids)
        case msg.SavepointWritten():
            return checkpointing.savepoint_written(report)
        case msg.TasksReported():
            return []  # a late answer: the job runs, or restarts


def _counted(job: DeployedJob, ack: msg.CheckpointAck) -> Sequence[ChangeStep]:
    """Return the counts at a barrier: a job that is stopped may end before any later metrics arrive."""
    if ack.attempt != job.deployment.ids.attempt:
        return []
    name = f"{ack.snapshot.vertex_id}/{ack.snapshot.subtask}"
    known = job.metrics.get(name, {})
    counts = {count: max(float(value), known.get(count, 0.0)) for count, value in ack.metrics.counts.items()}
    return [StoreMetrics({name: {**known, **counts}}, {})]


def _task_state(job: DeployedJob, worker_id: str, report: msg.TaskState, now_ms: int) -> Sequence[ChangeStep]:
    if report.attempt != job.deployment.ids.attempt:
        return []
    name = f"{report.vertex_id}/{report.subtask}"
    measured = [StoreMetrics({name: report.metrics}, {name: report.texts})] if report.metrics else []
    commands = job.deployment.task_state(report.vertex_id, report.subtask, report.state, now_ms)
    if report.state != "FAILED" or job.step not in (Step.RUNNING, Step.STARTING):
        return [*measured, *commands]
    task = f"{job.graph.vertex(report.vertex_id).name} ({report.subtask + 1})"
    failure = Failure(now_ms, _with_taskmanager(report.error, job.deployment), report.detail, task, worker_id)
    return [*measured, Failed(failure, cause_of(report.error))]


def _with_taskmanager(error: str, deployment: Deployment) -> str:
    """Return an error about a lost connection with the TaskManager of the other worker; any other error unchanged."""
    peer = lost_peer(error)
    if (worker := deployment.workers.get(peer)) is None:
        return error
    return error.replace(f"worker {peer} ", f"worker {peer} of TaskManager {worker.slot.taskmanager_id} ", 1)


def _resolved(job: DeployedJob, report: msg.PendingResolved, now_ms: int) -> Sequence[ChangeStep]:
    published = [committable for committable in job.deployment.pending if committable.id in report.published]
    notes = [Note("recovery", f"published before the start: {pending_text(published)}")] if published else []
    commands, problem = job.deployment.pending_resolved(report)
    job.checkpointing.set_pending(job.deployment.pending)
    return [*notes, *([Failed(Failure(now_ms, problem), cause_of(report.error))] if problem else commands)]
