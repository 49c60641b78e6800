"""Converts the dispatcher's views to Flink's JSON; missing numbers are Flink's defaults, never null.

Pure functions, called by the routes in `rest.server.app` and `rest.server.fast_routes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import cause_of
from penstock.graph.operator_kinds import ENDS
from penstock.jobmanager.messages.views import UNREACHABLE_MS
from penstock.rest.flink.java_throwable import serialized_throwable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.jobmanager.messages.views import (
        AdaptiveView,
        CheckpointsView,
        CheckpointView,
        ClusterView,
        ExceptionView,
        JobDetail,
        JobSummary,
        OperationStatus,
        RestoredView,
        SubtaskView,
        TaskManagerView,
        VertexView,
    )

Json = dict[str, Any]
TASK_STATES = (
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "INITIALIZING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
)
#: A subtask counts as back-pressured from this time per second on.
_BACK_PRESSURED_MS = 500
_MIN_WATERMARK_MS = -(1 << 63) // 1000


def overview(cluster: ClusterView, version: str) -> Json:
    """Return the body of `/overview`."""
    states = [job.state for job in cluster.jobs]
    ended = sum(state in ("FINISHED", "CANCELED", "FAILED") for state in states)
    return {
        "taskmanagers": cluster.taskmanagers,
        "slots-total": cluster.slots,
        "slots-available": cluster.free_slots,
        "slots-pending": cluster.pending_slots,
        "jobs-running": len(states) - ended,
        "jobs-finished": states.count("FINISHED"),
        "jobs-cancelled": states.count("CANCELED"),
        "jobs-failed": states.count("FAILED"),
        "flink-version": version,
        "flink-commit": "",
        "jobmanager-pid": cluster.pid,
    }


def job_ids(jobs: Iterable[JobSummary]) -> Json:
    """Return the body of `/jobs`."""
    return {"jobs": [{"id": job.job_id, "status": job.state} for job in jobs]}


def jobs_overview(jobs: Iterable[JobSummary], now_ms: int) -> Json:
    """Return the body of `/jobs/overview`."""
    return {"jobs": [job_overview(job, now_ms) for job in jobs]}


def job_overview(job: JobSummary, now_ms: int) -> Json:
    """Return an entry of `/jobs/overview`."""
    return {
        "jid": job.job_id,
        "name": job.name,
        "state": job.state,
        "start-time": job.start_ms,
        "end-time": job.end_ms,
        "duration": _duration(job.start_ms, job.end_ms, now_ms),
        "last-modification": job.last_modified_ms,
        "job-type": "STREAMING",
        "schedulerType": "Adaptive" if job.adaptive else "Default",
        "pending-operators": 0,
        "tasks": {"total": sum(job.tasks.values()), **_task_counts(job.tasks)},
        # not Flink's
        "restarts": job.restarts,
        "stopped-with": job.stop_uri,
        "waits-for": job.waits_for,
        "region-restart": job.region_restart,
    }


def job_detail(detail: JobDetail, now_ms: int) -> Json:
    """Return the body of `/jobs/:id`."""
    summary = detail.summary
    counts: dict[str, int] = {}
    for vertex in detail.vertices:
        counts[vertex.state] = counts.get(vertex.state, 0) + 1
    return {
        "jid": summary.job_id,
        "name": summary.name,
        "isStoppable": False,
        "state": summary.state,
        "job-type": "STREAMING",
        "schedulerType": "Adaptive" if summary.adaptive else "Default",
        "application-id": summary.job_id,
        "pending-operators": 0,
        "start-time": summary.start_ms,
        "end-time": summary.end_ms,
        "duration": _duration(summary.start_ms, summary.end_ms, now_ms),
        "maxParallelism": detail.settings.key_groups,
        "now": now_ms,
        "timestamps": {
            state: detail.timestamps.get(state, 0)
            for state in (
                "INITIALIZING", "CREATED", "RUNNING", "FAILING", "FAILED", "CANCELLING", "CANCELED", "FINISHED",
                "RESTARTING", "SUSPENDED", "RECONCILING",
            )
        },
        "vertices": [vertex_overview(vertex, now_ms) for vertex in detail.vertices],
        "status-counts": {state: counts.get(state, 0) for state in TASK_STATES},
        "plan": plan(detail),
    }  # fmt: skip


def vertex_overview(vertex: VertexView, now_ms: int) -> Json:
    """Return a vertex of `/jobs/:id`."""
    counts: dict[str, int] = {}
    for subtask in vertex.subtasks:
        counts[subtask.state] = counts.get(subtask.state, 0) + 1
    return {
        "id": vertex.id,
        "slotSharingGroupId": "0" * 32,
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": vertex.state,
        "start-time": vertex.start_ms,
        "end-time": vertex.end_ms,
        "duration": _duration(vertex.start_ms, vertex.end_ms, now_ms),
        "tasks": {state: counts.get(state, 0) for state in TASK_STATES},
        "metrics": io_metrics([subtask.metrics for subtask in vertex.subtasks]),
    }


def io_metrics(metrics: list[dict[str, float]]) -> Json:
    """Return Flink's `metrics` object of a vertex or subtask, summed."""

    def total(name: str) -> int:
        return int(sum(m.get(name, 0) for m in metrics))

    return {
        "read-bytes": total("numBytesIn"),
        "read-bytes-complete": True,
        "write-bytes": total("numBytesOut"),
        "write-bytes-complete": True,
        "read-records": total("numRecordsIn"),
        "read-records-complete": True,
        "write-records": total("numRecordsOut"),
        "write-records-complete": True,
        "accumulated-backpressured-time": total("accumulatedBackPressuredTimeMs"),
        "accumulated-idle-time": total("accumulatedIdleTimeMs"),
        "accumulated-busy-time": float(total("accumulatedBusyTimeMs")),
    }


def subtask(view: SubtaskView, now_ms: int) -> Json:
    """Return a subtask of `/jobs/:id/vertices/:vertex`."""
    duration = _duration(view.start_ms, view.end_ms, now_ms)
    return {
        "subtask": view.subtask,
        "status": view.state,
        "attempt": view.attempt,
        "endpoint": view.host,
        "start-time": view.start_ms,
        "start_time": view.start_ms,
        "end-time": view.end_ms,
        "duration": duration,
        "metrics": io_metrics([view.metrics]),
        "taskmanager-id": view.taskmanager_id,
        "status-duration": {
            state: duration if state == "RUNNING" and view.start_ms >= 0 else -1
            for state in ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")
        },
    }


def plan(detail: JobDetail) -> Json:
    """Return the `plan` of `/jobs/:id/plan`."""
    nodes = []
    for vertex in detail.vertices:
        inputs = [
            {
                "num": edge.input_index,
                "id": edge.source,
                "ship_strategy": {"key_group": "HASH"}.get(edge.partitioner, edge.partitioner.upper()),
                "exchange": "pipelined_bounded",
            }
            for edge in detail.edges
            if edge.target == vertex.id
        ]
        node: Json = {
            "id": vertex.id,
            "parallelism": vertex.parallelism,
            "operator": "",
            "operator_strategy": "",
            "description": vertex.name,
            "optimizer_properties": {},
        }
        nodes.append({**node, "inputs": inputs} if inputs else node)
    return {"jid": detail.summary.job_id, "name": detail.summary.name, "type": "STREAMING", "nodes": nodes}


def checkpoints(view: CheckpointsView) -> Json:
    """Return the body of `/jobs/:id/checkpoints`."""
    completed = [entry for entry in view.history if entry.status == "COMPLETED"]
    restored = None
    if view.latest_restored is not None:
        restored = {
            "id": view.latest_restored.checkpoint_id,
            "restore_timestamp": view.latest_restored.restored_ms,
            "is_savepoint": view.latest_restored.savepoint,
            "external_path": view.latest_restored.uri,
        }
    return {
        "counts": {
            "restored": view.restored,
            "total": view.completed + view.failed + view.in_progress,
            "in_progress": view.in_progress,
            "completed": view.completed,
            "failed": view.failed,
        },
        "summary": {
            "checkpointed_size": statistics([entry.new_bytes for entry in completed]),
            "state_size": statistics([entry.state_bytes for entry in completed]),
            "end_to_end_duration": statistics([entry.duration_ms for entry in completed]),
            "alignment_buffered": statistics([entry.buffered_bytes for entry in completed]),
            "processed_data": statistics([entry.processed_bytes for entry in completed]),
            "persisted_data": statistics([entry.persisted_bytes for entry in completed]),
        },
        "latest": {
            "completed": checkpoint(view.latest_completed) if view.latest_completed else None,
            "savepoint": checkpoint(view.latest_savepoint) if view.latest_savepoint else None,
            "failed": checkpoint(view.latest_failed) if view.latest_failed else None,
            "restored": restored,
        },
        "history": [checkpoint(entry) for entry in view.history],
    }


def _format(view: CheckpointView) -> str:
    return "NATIVE" if view.native else "CANONICAL"


def checkpoint(view: CheckpointView) -> Json:
    """Return an entry of the checkpoint history."""
    document: Json = {
        "className": {"COMPLETED": "completed", "FAILED": "failed"}.get(view.status, "in_progress"),
        "id": view.id,
        "status": view.status,
        "is_savepoint": view.kind in ("savepoint", "stop", "drain"),
        "savepointFormat": _format(view) if view.kind in ("savepoint", "stop", "drain") else None,
        "trigger_timestamp": view.trigger_ms,
        "latest_ack_timestamp": view.end_ms,
        "checkpointed_size": view.new_bytes,
        "state_size": view.state_bytes,
        "end_to_end_duration": view.duration_ms,
        "alignment_buffered": view.buffered_bytes,
        "processed_data": view.processed_bytes,
        "persisted_data": view.persisted_bytes,
        "num_subtasks": view.total,
        "num_acknowledged_subtasks": view.acknowledged,
        "checkpoint_type": "CHECKPOINT" if view.kind in ("checkpoint", "final") else "SAVEPOINT",
        "tasks": {},
        # not Flink's: the longest synchronous phase of a subtask, the number of objects stored, and whether barriers
        # could overtake rows, whose bytes are `persisted_data`
        "max_sync_duration": view.max_sync_ms,
        "objects_written": view.objects,
        "unaligned": view.unaligned,
    }
    if view.status == "COMPLETED":
        document |= {"external_path": view.path, "discarded": False}
    if view.status == "FAILED":
        document |= {"failure_timestamp": view.end_ms, "failure_message": view.failure}
    return document


def exceptions(views: tuple[ExceptionView, ...]) -> Json:
    """Return the body of `/jobs/:id/exceptions`."""
    newest = views[0] if views else None
    return {
        "root-exception": (newest.detail or newest.error) if newest else None,
        "timestamp": newest.at_ms if newest else None,
        "all-exceptions": [],
        "truncated": False,
        "exceptionHistory": {
            "entries": [
                {
                    "exceptionName": view.error,
                    "stacktrace": view.detail or view.error,
                    "timestamp": view.at_ms,
                    "taskName": view.task or None,
                    "endpoint": view.worker_id or None,
                    "taskManagerId": view.taskmanager_id or None,
                    # as set by Flink's failure enrichers: `permanent`, `user code` or `transient`
                    "failureLabels": {
                        "cause": cause_of(view.error).value,
                        **({"version": "rejected"} if view.rolled_back_ms >= 0 else {}),
                    },
                    "concurrentExceptions": [],
                    # not Flink's: when the version that failed was rolled back
                    "rolled-back": _time(view.rolled_back_ms),
                }
                for view in views
            ],
            "truncated": False,
        },
    }


def savepoint_status(status: OperationStatus) -> Json:
    """Return the body of `/jobs/:id/savepoints/:request`."""
    if status.status == "IN_PROGRESS":
        return {"status": {"id": "IN_PROGRESS"}, "operation": None}
    if status.status == "FAILED":
        cause = failure_cause(status.error, status.error_class or "PenstockError")
        return {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}}
    return {"status": {"id": "COMPLETED"}, "operation": {"location": status.uri}}


def checkpoint_status(status: OperationStatus) -> Json:
    """Return the body of `/jobs/:id/checkpoints/:request`."""
    shown = savepoint_status(status)
    if status.status == "FAILED":
        shown["operation"] = {"checkpointId": -1, "failureCause": shown["operation"]["failure-cause"]}
    elif status.status == "COMPLETED":
        shown["operation"] = {"checkpointId": -1 if status.checkpoint_id is None else status.checkpoint_id}
    return shown


def failure_cause(error: str, name: str = "PenstockError") -> Json:
    """Return an error in the format of Flink's clients."""
    return {"class": name, "stack-trace": error, "serialized-throwable": serialized_throwable(name, error, error)}


def rescaling_status(status: OperationStatus) -> Json:
    """Return the body of `/jobs/:id/rescaling/:request`."""
    shown = savepoint_status(status)
    if status.status == "COMPLETED":
        shown["operation"] = {}
    return shown


def taskmanager(view: TaskManagerView) -> Json:
    """Return an entry of `/taskmanagers`; sizes of `memoryConfiguration` are bytes."""
    memory = view.memory
    return {
        "id": view.taskmanager_id,
        "path": view.host,
        "dataPort": 0,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": view.last_heartbeat_ms,
        "slotsNumber": view.slots,
        "freeSlots": view.free_slots,
        "totalResource": slots_resource(view, view.slots),
        "freeResource": slots_resource(view, view.free_slots),
        "hardware": {
            "cpuCores": 0,
            "physicalMemory": int(view.process.get("Status.JVM.Memory.Heap.Max", 0)),
            "freeMemory": 0,
            "managedMemory": memory.managed_bytes,
        },
        "memoryConfiguration": {
            "frameworkHeap": memory.framework_bytes,
            "taskHeap": memory.task_bytes,
            "frameworkOffHeap": 0,
            "taskOffHeap": 0,
            "networkMemory": memory.network_bytes,
            "managedMemory": memory.managed_bytes,
            "jvmMetaspace": 0,
            "jvmOverhead": 0,
            "totalFlinkMemory": memory.total_bytes,
            "totalProcessMemory": memory.total_bytes,
        },
        "networkMemory": network_memory(view),
        "blocked": view.drained,
        "pid": view.pid,
    }


def network_memory(view: TaskManagerView) -> dict[str, int]:
    """Return the bytes of a TaskManager's network memory by part.

    `guaranteed`: to its slots in equal parts. `shared`: the rest, of which workers have `lent`. `used`: arrived rows
    that no subtask has taken yet.
    """
    shared = view.memory.network_shared_bytes
    return {
        "guaranteed": view.memory.network_bytes - shared,
        "shared": shared,
        "lent": view.network_lent_bytes,
        "used": int(sum(worker.metrics.get("networkMemoryUsed", 0.0) for worker in view.workers)),
    }


def slots_resource(view: TaskManagerView, slots: int) -> Json:
    """Return the resources of some of a TaskManager's slots, which are equal; memory in MiB, as Flink gives it."""

    def megabytes(size: int) -> int:
        return size * slots // max(1, view.slots) >> 20

    return {
        "cpuCores": view.cpu_cores * slots / max(1, view.slots) if view.cpu_cores else float(slots),
        "taskHeapMemory": megabytes(view.memory.task_bytes),
        "taskOffHeapMemory": 0,
        "managedMemory": megabytes(view.memory.managed_bytes),
        "networkMemory": megabytes(view.memory.network_bytes),
    }


def progress(detail: JobDetail, checkpoints: CheckpointsView) -> Json:
    """Return the metrics of a progress display, the body of `/penstock/jobs/:id/summary`.

    The watermark (ms) is the lowest of all subtasks.
    """
    sources = {edge.target for edge in detail.edges}
    heads = [vertex for vertex in detail.vertices if vertex.id not in sources]
    ends = [vertex for vertex in detail.vertices if vertex.operators[-1].kind in ENDS]
    read = {v.operators[0].uid: _total(v, "numRecordsIn") for v in heads}
    written = {v.operators[-1].uid: _total(v, "numRecordsOut") for v in ends}
    behind = [vertex for vertex in detail.vertices if vertex.id in sources] or heads
    subtasks = [subtask.metrics for vertex in behind for subtask in vertex.subtasks]
    summary, shown = detail.summary, detail.settings.show_values_in_errors
    return {
        "state": summary.state,
        "source-records": sum(read.values()),
        "records-out": sum(written.values()),
        # when the job ended, if it has, and when it last began to run (wall-clock ms)
        "ended": _time(summary.end_ms),
        "running-since": detail.timestamps.get("RUNNING"),
        # since the job's begin, or since its JobManager was replaced: by uid of source and sink; rows that were read
        # again after a restart count once
        "rows-read": read,
        "rows-written": written,
        # of sinks that publish with checkpoints: rows written that are not published yet, of `rows-written`
        "rows-unpublished": _unpublished(written, checkpoints.rows_published),
        "rows-read-per-second": {v.operators[0].uid: _rate(v, "numRecordsInPerSecond") for v in heads},
        "rows-written-per-second": {v.operators[-1].uid: _rate(v, "numRecordsOutPerSecond") for v in ends},
        # rows that sources have not read yet, by uid; only of those that report it; null: not known yet
        "rows-unread": {v.operators[0].uid: _lag(v) for v in heads if _reports_lag(v)},
        # where sources read and sinks write, by uid
        "places": {o.uid: o.place for v in detail.vertices for o in v.operators if o.place},
        "bad-records": _bad_records(heads),
        # the first bad record of a source: place, reason, value
        "bad-record-examples": _bad_record_examples(heads),
        # since when the external system of a source has not answered (wall-clock ms), for how long (ms), and its place
        "sources-unreachable": {} if summary.terminal else _unreachable(heads),
        # rows with an event time before 1990 and after 2100, and such a time (ms, null if values are hidden)
        "doubtful-times": _implausible_times(heads, "oldTimestamp", shown=shown),
        "distant-times": _implausible_times(heads, "distantTimestamp", shown=shown),
        # rows that do not move the watermark, because they are too far ahead of the clock
        "future-times": {v.operators[0].uid: count for v in heads if (count := _total(v, "futureTimestamps"))},
        "late-records": {v.name: count for v in detail.vertices if (count := _total(v, "numLateRecordsDropped"))},
        "watermark": _lowest(subtasks),
        "checkpoints-completed": summary.checkpoints_completed,
        "checkpoints-failed": summary.checkpoints_failed,
        # the oldest checkpoint in progress: id, kind, begin, which subtasks have acknowledged it and which have not
        "checkpoint-in-progress": _in_progress(detail, checkpoints),
        "checkpoint-interval": detail.settings.checkpoint_interval_ms,
        "restarts": summary.restarts,
        # that errors of the user's functions may cause in a row; null: they are not counted
        "restarts-of-user-code": detail.settings.restart.most_of_user_code,
        "error": summary.error,
        "waits-for": summary.waits_for,
        "adaptive": _adaptive(summary.adaptive),
        "next-attempt-in-ms": summary.next_attempt_in_ms if summary.next_attempt_in_ms >= 0 else None,
        "region-restart": summary.region_restart,
        "checkpoint-failure": summary.checkpoint_failure,
        "slow-calls": [{"what": call.what, "since": call.since_ms, "at": call.at} for call in summary.slow_calls],
        # savepoints and stops that are not complete: since when, and what they wait for (checkpoint, publish, copy)
        "open-requests": [{"what": r.what, "since": r.since_ms, "phase": r.phase} for r in summary.open_requests],
        # the restored checkpoint: id, time, and the URI if it is a savepoint
        "restored": _restored(summary.restored),
        # URI of the savepoint that a user stopped the job with
        "stopped-with": summary.stop_uri,
        # the file of the version that runs, as the user of `upgrade` named it; empty before the first upgrade
        "version": summary.version,
        # since the job's start; each one counts restarts and checkpoints from zero
        "jobmanagers-replaced": {"times": summary.takeovers, "newest": _time(summary.taken_over_ms)},
    }


def _adaptive(view: AdaptiveView | None) -> Json | None:
    """Return the slots of a job with the adaptive scheduler, and the time at which it rescales to the free ones."""
    if view is None:
        return None
    return {"slots": view.slots, "least": view.least, "most": view.most, "rescale-at": _time(view.rescale_ms)}


def _bad_records(heads: Sequence[VertexView]) -> Json:
    return {v.operators[0].uid: count for v in heads if (count := _total(v, "badRecords") + _total(v, "badTimestamps"))}


def _bad_record_examples(heads: Sequence[VertexView]) -> Json:
    return {
        v.operators[0].uid: text
        for v in heads
        if (text := next((s.texts["badRecord"] for s in v.subtasks if "badRecord" in s.texts), ""))
    }


def _unreachable(heads: Sequence[VertexView]) -> Json:
    return {
        v.operators[0].uid: {"since": _since(v), "for-ms": for_ms, "place": v.operators[0].place}
        for v in heads
        if (for_ms := _most(v, "sourceUnreachableMs")) >= UNREACHABLE_MS
    }


def _lowest(subtasks: Sequence[dict[str, float]]) -> float | None:
    """Return the lowest watermark (ms) of subtasks that are not idle; None while one has none.

    If all are idle, it is the one furthest ahead.
    """
    active = [_mark(metrics) for metrics in subtasks if not metrics.get("watermarkIdle")]
    if not active:
        return max((mark for metrics in subtasks if (mark := _mark(metrics)) is not None), default=None)
    known = [mark for mark in active if mark is not None]
    return min(known) if len(known) == len(active) else None


def _mark(metrics: dict[str, float]) -> float | None:
    mark = metrics.get("currentInputWatermark", _MIN_WATERMARK_MS)
    return mark if mark > _MIN_WATERMARK_MS else None


def _unpublished(written: dict[str, int], published: dict[str, int]) -> dict[str, int]:
    return {uid: count - published[uid] for uid, count in written.items() if published.get(uid, count) < count}


def _in_progress(detail: JobDetail, checkpoints: CheckpointsView) -> Json | None:
    entry = next((entry for entry in reversed(checkpoints.history) if entry.status == "IN_PROGRESS"), None)
    if entry is None:
        return None
    acknowledged = {(s.vertex_id, s.subtask) for s in entry.subtasks}
    missing = [
        {
            "name": vertex.operators[-1 if vertex.operators[-1].kind in ENDS else 0].uid or vertex.name,
            "subtask": subtask.subtask,
            "parallelism": vertex.parallelism,
            "back-pressured": subtask.metrics.get("backPressuredTimeMsPerSecond", 0.0) >= _BACK_PRESSURED_MS,
        }
        for vertex in detail.vertices
        for subtask in vertex.subtasks
        if (vertex.id, subtask.subtask) not in acknowledged
    ]
    return {
        "id": entry.id,
        "kind": entry.kind,
        "since": entry.trigger_ms,
        "acknowledged": entry.acknowledged,
        "total": entry.total,
        "missing": missing,
    }


def _time(at_ms: int) -> int | None:
    return at_ms if at_ms >= 0 else None


def _restored(view: RestoredView | None) -> Json | None:
    if view is None:
        return None
    return {"id": view.checkpoint_id, "taken": view.taken_ms, "uri": view.uri}


def _implausible_times(heads: Sequence[VertexView], metric: str, *, shown: bool) -> Json:
    return {
        vertex.operators[0].uid: {"rows": rows, "example": _most(vertex, f"{metric}Ms") if shown else None}
        for vertex in heads
        if (rows := _total(vertex, f"{metric}s"))
    }


def _since(vertex: VertexView) -> int | None:
    """Return when the first subtask of a source had no answer any more."""
    times = [int(at) for s in vertex.subtasks if (at := s.metrics.get("sourceUnreachableSince", 0))]
    return min(times, default=None)


def _most(vertex: VertexView, metric: str) -> int:
    """Return the maximum of a gauge over all subtasks."""
    return int(max((subtask.metrics.get(metric, 0) for subtask in vertex.subtasks), default=0))


def _rate(vertex: VertexView, metric: str) -> float:
    """Return the sum of a rate over the running subtasks."""
    running = (subtask.metrics for subtask in vertex.subtasks if subtask.state == "RUNNING")
    return round(sum(metrics.get(metric, 0.0) for metrics in running), 1)


def _reports_lag(vertex: VertexView) -> bool:
    running = (s.metrics for s in vertex.subtasks if s.state == "RUNNING")
    return any("recordsLag" in metrics or "recordsLagUnknown" in metrics for metrics in running)


def _lag(vertex: VertexView) -> int | None:
    """Return the rows that the running subtasks of a source have not read yet; None while one does not know it."""
    running = [s.metrics for s in vertex.subtasks if s.state == "RUNNING"]
    known = all("recordsLag" in metrics and not metrics.get("recordsLagUnknown") for metrics in running)
    return int(sum(metrics["recordsLag"] for metrics in running)) if known else None


def _total(vertex: VertexView, metric: str) -> int:
    """Return the total of a counter: up to the restored checkpoint, and of all subtasks since then."""
    return vertex.carried.get(metric, 0) + int(sum(subtask.metrics.get(metric, 0) for subtask in vertex.subtasks))


def _task_counts(tasks: dict[str, int]) -> dict[str, int]:
    return {state.lower(): tasks.get(state, 0) for state in TASK_STATES}


def _duration(start_ms: int, end_ms: int, now_ms: int) -> int:
    if start_ms < 0:
        return -1
    return (end_ms if end_ms >= 0 else now_ms) - start_ms


def statistics(values: list[int]) -> Json:
    """Return Flink's statistics object of a list of numbers."""
    ordered = sorted(values)

    def quantile(part: float) -> float:
        return float(ordered[min(len(ordered) - 1, int(part * len(ordered)))]) if ordered else 0.0

    return {
        "min": ordered[0] if ordered else 0,
        "max": ordered[-1] if ordered else 0,
        "avg": sum(ordered) // len(ordered) if ordered else 0,
        "p50": quantile(0.5),
        "p90": quantile(0.9),
        "p95": quantile(0.95),
        "p99": quantile(0.99),
        "p999": quantile(0.999),
    }
