"""What the workers' reports make a job do, as steps; nothing of the job is changed here but its parts' own state.

Called by `jobmanager.job_master`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.graph.deployment import ExecutionId
from penstock.jobmanager.failover import cause_of
from penstock.jobmanager.job_state import ChangeStep, Failed, Failure, Step
from penstock.rpc import messages as msg

if TYPE_CHECKING:
    from penstock.jobmanager.deployment import Deployment
    from penstock.jobmanager.job_master import JobMaster


def steps_of(job: JobMaster, worker_id: str, report: msg.WorkerReport, now_ms: int) -> Sequence[ChangeStep]:
    """Return what follows from a report; nothing from a worker that is not of the present deployment."""
    deployment, checkpointing = job.deployment, job.checkpointing
    if deployment is None or worker_id not in deployment.workers:
        return []
    match report:
        case msg.WorkerReady():
            return deployment.worker_ready(worker_id, report.endpoint, report.pid)
        case msg.WorkerMetrics():
            job.metrics.update(report.tasks)
            for line in job.slow_work.reported(worker_id, report.slow, now_ms):
                job.story.add(now_ms, "slow", line)
            return job.alignment.limits(job.metrics, deployment, now_ms)
        case msg.TaskState():
            return _task_state(job, deployment, (worker_id, report), now_ms)
        case msg.PendingResolved():
            return _resolved(job, deployment, report, now_ms)
        case msg.InputEnded():
            where = (report.vertex_id, report.subtask)
            deployment.executions[where].input_ended = True
            return checkpointing.input_ended(ExecutionId(*where, report.attempt), now_ms)
        case msg.CheckpointAck():
            return checkpointing.acked(report, now_ms)
        case msg.CheckpointDeclined():
            return checkpointing.declined(report, now_ms)
        case msg.OutputPublished():
            return checkpointing.published(report.committable_ids)
        case msg.SavepointWritten():
            return checkpointing.savepoint_written(report)


def _task_state(
    job: JobMaster, deployment: Deployment, told: tuple[str, msg.TaskState], now_ms: int
) -> Sequence[ChangeStep]:
    worker_id, report = told
    if report.attempt != deployment.ids.attempt:
        return []
    if report.metrics:
        job.metrics[f"{report.vertex_id}/{report.subtask}"] = report.metrics
    commands = deployment.task_state(report.vertex_id, report.subtask, report.state, now_ms)
    if report.state != "FAILED" or job.step not in (Step.RUNNING, Step.STARTING):
        return commands
    task = f"{job.graph.vertex(report.vertex_id).name} ({report.subtask + 1})"
    return [Failed(Failure(now_ms, report.error, report.detail, task, worker_id), cause_of(report.error))]


def _resolved(job: JobMaster, deployment: Deployment, report: msg.PendingResolved, now_ms: int) -> Sequence[ChangeStep]:
    commands, problem = deployment.pending_resolved(report)
    job.checkpointing.resolved(deployment.pending)
    job.story.add(now_ms, "resolved", f"{len(report.published)} committables published before the start")
    return [Failed(Failure(now_ms, problem), cause_of(report.error))] if problem else commands
