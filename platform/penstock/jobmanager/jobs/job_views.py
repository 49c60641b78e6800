"""Builds the views of a job from its master and its record; called by the dispatcher for each query."""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock.checkpoint.ha_records import JobRecord
from penstock.graph.job_graph import JobGraph, JobVertex, KeyGroup, required_slots
from penstock.graph.rescale import declared_slots, is_adaptive, least_parallelism, least_slots
from penstock.jobmanager.change.decisions import Failure
from penstock.jobmanager.deploy.deployment import Deployment, publishing_sinks
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.jobs.recorded_jobs import start_options_of
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages.views import (
    AdaptiveView,
    CheckpointsView,
    EdgeView,
    ExceptionView,
    JobDetail,
    JobSummary,
    LastWorkerView,
    OpenRequestView,
    OperatorView,
    RestoredView,
    SlowCallView,
    SubtaskView,
    VertexView,
)

#: The state of a job that has no JobMaster yet.
_INITIALIZING = "INITIALIZING"
_ORDER = ("FAILED", "CANCELED", "CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING", "FINISHED")


def summary_of(
    record: JobRecord, graph: JobGraph, master: JobMaster | None, now_ms: int, waits_for: str = ""
) -> JobSummary:
    """Return the summary of a job; `master` is None if it ended under an earlier leader or has not begun.

    `waits_for` describes the slots that it has requested and not received.
    """
    if master is None:
        return JobSummary(
            job_id=record.job_id,
            name=record.name,
            state=record.ended or _INITIALIZING,
            run_id=record.run_id,
            start_ms=record.submitted_ms,
            end_ms=record.ended_ms,
            last_modified_ms=record.ended_ms if record.ended else record.submitted_ms,
            tasks={},
            restarts=0,
            error=record.error,
            stop_uri=record.stop_uri,
            version=_version(record),
            takeovers=record.takeovers,
            adaptive=_adaptive(graph),
        )
    history = master.checkpointing.history
    state = master.status.state
    return JobSummary(
        job_id=record.job_id,
        name=record.name,
        state=state.value,
        run_id=record.run_id,
        start_ms=record.submitted_ms,
        end_ms=master.status.entered_ms[state] if state.terminal else -1,
        last_modified_ms=master.status.entered_ms[state],
        tasks=dict(Counter(_states(graph, master))),
        restarts=master.restarts,
        checkpoint_id=history.latest_id,
        checkpoints_completed=history.completed,
        checkpoints_failed=history.failed,
        error=master.error if state is not JobStatus.RUNNING else "",
        waits_for=waits_for or (adapting.waiting_text(graph) if (adapting := master.job_change.adapting).waits else ""),
        adaptive=_adaptive(graph, master.job_change.adapting.wake_ms()),
        next_attempt_in_ms=max(0, at_ms - now_ms) if (at_ms := master.next_attempt_ms) >= 0 else -1,
        region_restart=master.region_restart,
        checkpoint_failure=history.last_failure,
        slow_calls=tuple(
            SlowCallView(what=slow.what, since_ms=slow.since_ms, at=slow.at)
            for slow in master.slow_call_tracker.ongoing
        ),
        open_requests=tuple(
            OpenRequestView(what=request.what, since_ms=request.since_ms, phase=request.phase)
            for request in master.checkpointing.open_requests
        ),
        restored=_restored(record, history.latest_restored),
        stop_uri=record.stop_uri,
        version=_version(record),
        takeovers=record.takeovers,
        taken_over_ms=master.status.entered_ms[JobStatus.CREATED] if record.takeovers else -1,
    )


def _version(record: JobRecord) -> str:
    return record.upgrade.running_file if record.upgrade is not None else ""


def detail_of(summary: JobSummary, graph: JobGraph, master: JobMaster | None, now_ms: int) -> JobDetail:
    """Return the detail view of a job: its summary, graph and subtasks."""
    entered = {} if master is None else master.status.entered_ms
    return JobDetail(
        summary=summary,
        vertices=tuple(_vertex(graph, vertex, master, now_ms, summary.state) for vertex in graph.vertices),
        edges=tuple(
            EdgeView(
                source=edge.source,
                target=edge.target,
                partitioner=str(edge.partitioner.__struct_config__.tag),
                columns=edge.partitioner.columns if isinstance(edge.partitioner, KeyGroup) else (),
                input_index=edge.input_index,
            )
            for edge in graph.edges
        ),
        settings=graph.settings,
        timestamps={_INITIALIZING: summary.start_ms} | {state.value: at_ms for state, at_ms in entered.items()},
        fingerprint=graph.fingerprint,
    )


def checkpoints_of(record: JobRecord, master: JobMaster | None) -> CheckpointsView:
    """Return the checkpoint history."""
    if master is None:
        return CheckpointsView(completed=0, failed=0, in_progress=0, restored=0, history=())
    uncommitted = master.checkpointing.pending.values()
    view = master.checkpointing.history.view(
        (len(uncommitted), sum(c.rows for c in uncommitted), sum(c.size_bytes for c in uncommitted))
    )
    totals, pending = master.checkpointing.history.newest_totals, Counter[str]()
    for committable in uncommitted:
        pending[committable.uid] += committable.rows
    last = {vertex.operators[-1].uid: vertex.id for vertex in master.graph.vertices}
    published = {
        uid: max(0, totals.get(last[uid], Counter[str]())["numRecordsOut"] - pending[uid])
        for uid in publishing_sinks(master.graph)
        if uid in last
    }
    restored = _restored(record, view.latest_restored)
    return msgspec.structs.replace(view, latest_restored=restored, rows_published=published)


def exceptions_of(
    record: JobRecord, master: JobMaster | None, earlier: tuple[Failure, ...] = ()
) -> tuple[ExceptionView, ...]:
    """Return the failures, newest first; `earlier` are those under earlier drivers, which a master also has."""
    failures = earlier if master is None else tuple(master.failures)
    rejected = {} if master is None else master.job_change.upgrading.rejected
    views = tuple(
        ExceptionView(
            at_ms=f.at_ms,
            error=f.error,
            detail=f.detail,
            task=f.task,
            worker_id=f.worker_id,
            taskmanager_id=f.taskmanager_id,
            rolled_back_ms=rejected.get(f.run_id, -1),
        )
        for f in failures
    )
    if master is None and record.error and not (views and views[0].error.endswith(record.error)):
        return (ExceptionView(at_ms=record.ended_ms, error=record.error), *views)
    return views


def last_workers_of(master: JobMaster) -> tuple[LastWorkerView, ...]:
    """Return the worker that failed last if it is of the last deployment, otherwise all workers of that deployment."""
    newest = master.failures[0].worker_id if master.failures else ""
    workers = master.last_workers
    found = [worker for worker in workers if worker.worker_id == newest] or workers
    return tuple(LastWorkerView(worker_id=w.worker_id, taskmanager_id=w.slot.taskmanager_id) for w in found)


def _adaptive(graph: JobGraph, rescale_ms: int | None = None) -> AdaptiveView | None:
    if not is_adaptive(graph):
        return None
    slots, most = required_slots(graph), declared_slots(graph)
    return AdaptiveView(
        slots=slots, least=least_slots(graph), most=most, rescale_ms=-1 if rescale_ms is None else rescale_ms
    )


def _restored(record: JobRecord, restored: RestoredView | None) -> RestoredView | None:
    """Add the URI of a savepoint that a user started the job from."""
    if restored is None or not restored.savepoint or restored.uri:
        return restored
    return msgspec.structs.replace(restored, uri=start_options_of(record).from_uri)


def _states(graph: JobGraph, master: JobMaster) -> list[str]:
    if master.deployment is not None:
        return [e.state for e in master.deployment.executions.values()]
    last = {JobStatus.FINISHED: "FINISHED", JobStatus.CANCELED: "CANCELED", JobStatus.FAILED: "FAILED"}
    return [last.get(master.status.state, "CREATED")] * sum(v.parallelism for v in graph.vertices)


def _vertex(graph: JobGraph, vertex: JobVertex, master: JobMaster | None, now_ms: int, job_state: str) -> VertexView:
    """Return the view of a vertex of a job in that state."""
    if master is None:
        subtasks = tuple(_undeployed(index, job_state, {}) for index in range(vertex.parallelism))
    else:
        subtasks = tuple(_subtask(vertex, index, master, master.deployment) for index in range(vertex.parallelism))
    states = {s.state for s in subtasks}
    started = [s.start_ms for s in subtasks if s.start_ms >= 0]
    ended = [s.end_ms for s in subtasks if s.end_ms >= 0]
    return VertexView(
        id=vertex.id,
        name=vertex.name,
        parallelism=vertex.parallelism,
        max_parallelism=graph.settings.key_groups,
        bounds=(min(least_parallelism(graph), vertex.wanted) if is_adaptive(graph) else 1, vertex.wanted),
        state=next((state for state in _ORDER if state in states), "CREATED"),
        operators=tuple(OperatorView(uid=o.uid, name=o.name, kind=o.kind, place=o.place) for o in vertex.operators),
        subtasks=subtasks,
        start_ms=min(started, default=-1),
        end_ms=min(max(ended), now_ms) if len(ended) == len(subtasks) else -1,
        carried={} if master is None else dict(master.checkpointing.history.totals.get(vertex.id, {})),
    )


def _undeployed(index: int, job_state: str, metrics: dict[str, float]) -> SubtaskView:
    """Return a subtask without a worker: it has ended with its job, or not begun."""
    state = job_state if job_state in {"FINISHED", "CANCELED", "FAILED"} else "CREATED"
    return SubtaskView(subtask=index, state=state, attempt=0, metrics=metrics)


def _subtask(vertex: JobVertex, index: int, master: JobMaster, deployment: Deployment | None) -> SubtaskView:
    name = f"{vertex.id}/{index}"
    metrics, texts = master.metrics.get(name, {}), master.texts.get(name, {})
    if deployment is None:
        return msgspec.structs.replace(_undeployed(index, master.status.state.value, metrics), texts=texts)
    execution = deployment.executions[vertex.id, index]
    worker = deployment.workers.get(execution.worker_id)
    return SubtaskView(
        subtask=index,
        state=execution.state,
        # The upper bits are the leader's generation, which makes attempts unique in a run.
        attempt=execution.id.attempt & 0xFFFF,
        worker_id=execution.worker_id,
        taskmanager_id=worker.slot.taskmanager_id if worker is not None else "",
        host=worker.slot.host if worker is not None else "",
        start_ms=execution.start_ms,
        end_ms=execution.end_ms,
        input_ended=execution.input_ended,
        metrics=metrics,
        texts=texts,
    )
