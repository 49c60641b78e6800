"""Flink's JSON below one job: its checkpoints with each vertex's part, and its vertices with their subtasks.

Pure functions; numbers are never null. Called by the routes in `rest.jobs.job_routes` and
`rest.jobs.metric_routes`.
"""

from __future__ import annotations

import statistics as st
from typing import TYPE_CHECKING, Any

from penstock.core.errors import NotFoundError
from penstock.rest.flink.documents import TASK_STATES, checkpoint, io_metrics, statistics, subtask

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.jobmanager.messages.views import (
        CheckpointsView,
        CheckpointView,
        JobDetail,
        SubtaskCheckpointView,
        SubtaskView,
        VertexView,
    )

Json = dict[str, Any]
#: Flink's value for "never": its largest interval.
_NEVER_MS = (1 << 63) - 1


def checkpoint_config(settings: JobSettings) -> Json:
    """Return the body of `/jobs/:id/checkpoints/config`."""
    interval_ms = settings.checkpoint_interval_ms
    return {
        "mode": settings.checkpoint_mode.replace("-", "_"),
        "interval": _NEVER_MS if interval_ms is None else interval_ms,
        "timeout": settings.checkpoint_timeout_ms,
        "min_pause": settings.checkpoint_min_pause_ms,
        "max_concurrent": settings.max_concurrent_checkpoints,
        "externalization": {"enabled": True, "delete_on_cancellation": False},
        "state_backend": settings.state_backend,
        "checkpoint_storage": settings.checkpoint_root,
        "unaligned_checkpoints": settings.unaligned_checkpoints,
        "tolerable_failed_checkpoints": settings.checkpoint_tolerated_failures,
        "aligned_checkpoint_timeout": settings.aligned_checkpoint_timeout_ms,
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "",
    }


def find_checkpoint(view: CheckpointsView, checkpoint_id: int) -> CheckpointView:
    """Return a checkpoint of the history, or the last one of its kind; raises NotFoundError."""
    for found in (*view.history, view.latest_completed, view.latest_savepoint, view.latest_failed):
        if found is not None and found.id == checkpoint_id:
            return found
    raise NotFoundError(f"no checkpoint {checkpoint_id}", hint="only the last hundred are kept")


def checkpoint_detail(view: CheckpointView, detail: JobDetail) -> Json:
    """Return the body of `/jobs/:id/checkpoints/details/:checkpoint`, with each vertex's part."""
    tasks = {vertex.id: _task(view, vertex.id, vertex.parallelism) for vertex in detail.vertices}
    return {**checkpoint(view), "tasks": tasks}


def checkpoint_task(view: CheckpointView, detail: JobDetail, vertex_id: str) -> Json:
    """Return the body of `/jobs/:id/checkpoints/details/:checkpoint/subtasks/:vertex`."""
    parallelism = next((v.parallelism for v in detail.vertices if v.id == vertex_id), 0)
    acks = _acks(view, vertex_id)
    if not parallelism and not acks:
        raise NotFoundError(f"checkpoint {view.id} has no vertex {vertex_id}", hint="see /jobs/:id for its vertices")
    known = {ack.subtask: ack for ack in acks}
    count = max(parallelism, max(known, default=-1) + 1)
    return {
        **_task(view, vertex_id, parallelism),
        "summary": _summary(view, acks),
        "subtasks": [_subtask(view, known[index]) if index in known else _missing(index) for index in range(count)],
    }


def _acks(view: CheckpointView, vertex_id: str) -> list[SubtaskCheckpointView]:
    return [subtask for subtask in view.subtasks if subtask.vertex_id == vertex_id]


def _task(view: CheckpointView, vertex_id: str, parallelism: int) -> Json:
    acks = _acks(view, vertex_id)
    last_ms = max((ack.ack_ms for ack in acks), default=-1)
    return {
        "id": view.id,
        "status": view.status,
        "latest_ack_timestamp": last_ms,
        "checkpointed_size": sum(ack.new_bytes for ack in acks),
        "state_size": sum(ack.state_bytes for ack in acks),
        "end_to_end_duration": last_ms - view.trigger_ms if acks else -1,
        "alignment_buffered": sum(ack.buffered_bytes for ack in acks),
        "processed_data": sum(ack.processed_bytes for ack in acks),
        "persisted_data": sum(ack.persisted_bytes for ack in acks),
        "num_subtasks": max(parallelism, len(acks)),
        "num_acknowledged_subtasks": len(acks),
    }


def _summary(view: CheckpointView, acks: list[SubtaskCheckpointView]) -> Json:
    nothing = statistics([])
    return {
        "checkpointed_size": statistics([ack.new_bytes for ack in acks]),
        "state_size": statistics([ack.state_bytes for ack in acks]),
        "end_to_end_duration": statistics([ack.ack_ms - view.trigger_ms for ack in acks]),
        "checkpoint_duration": {
            "sync": statistics([int(ack.sync_ms) for ack in acks]),
            "async": statistics([int(ack.async_ms) for ack in acks]),
        },
        "alignment": {
            "buffered": statistics([ack.buffered_bytes for ack in acks]),
            "processed": statistics([ack.processed_bytes for ack in acks]),
            "persisted": statistics([ack.persisted_bytes for ack in acks]),
            "duration": statistics([int(ack.alignment_ms) for ack in acks]),
        },
        "start_delay": nothing,
    }


def _subtask(view: CheckpointView, ack: SubtaskCheckpointView) -> Json:
    return {
        "className": "completed",
        "index": ack.subtask,
        "status": "completed",
        "ack_timestamp": ack.ack_ms,
        "end_to_end_duration": ack.ack_ms - view.trigger_ms,
        "checkpointed_size": ack.new_bytes,
        "state_size": ack.state_bytes,
        "checkpoint": {"sync": int(ack.sync_ms), "async": int(ack.async_ms)},
        "alignment": {
            "buffered": ack.buffered_bytes,
            "processed": ack.processed_bytes,
            "persisted": ack.persisted_bytes,
            "duration": int(ack.alignment_ms),
        },
        "start_delay": 0,
        "unaligned_checkpoint": ack.unaligned,
        "aborted": False,
    }


def _missing(index: int) -> Json:
    return {"className": "pending", "index": index, "status": "pending_or_failed"}


#: Ratios above which Flink calls back-pressure low, and high.
_LOW, _HIGH = 0.1, 0.5
#: Flink's watermark of a subtask that has received none.
_NO_WATERMARK = -(1 << 63)
_AGGREGATED = (
    "read-bytes", "write-bytes", "read-records", "write-records", "accumulated-backpressured-time",
    "accumulated-idle-time", "accumulated-busy-time",
)  # fmt: skip


def find_vertex(detail: JobDetail, vertex_id: str) -> VertexView:
    """Return a vertex of a job; raises NotFoundError."""
    for vertex in detail.vertices:
        if vertex.id == vertex_id:
            return vertex
    raise NotFoundError(f"job {detail.summary.job_id} has no vertex {vertex_id}", hint="see /jobs/:id for its vertices")


def find_subtask(vertex: VertexView, index: int) -> SubtaskView:
    """Return a subtask of a vertex; raises NotFoundError."""
    for found in vertex.subtasks:
        if found.subtask == index:
            return found
    raise NotFoundError(f"vertex {vertex.id} has no subtask {index}", hint=f"it has {vertex.parallelism}")


def vertex_detail(vertex: VertexView, now_ms: int) -> Json:
    """Return the body of `/jobs/:id/vertices/:vertex`."""
    subtasks = [subtask(view, now_ms) for view in vertex.subtasks]
    return {
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": vertex.max_parallelism,
        "now": now_ms,
        "subtasks": subtasks,
        "aggregated": _aggregated(subtasks),
    }


def back_pressure(vertex: VertexView, now_ms: int) -> Json:
    """Return the body of `/jobs/:id/vertices/:vertex/backpressure`, with ratios of the last second."""
    subtasks = [_back_pressure_of(view) for view in vertex.subtasks]
    worst = _level(max((entry["ratio"] for entry in subtasks), default=0.0))
    return {
        "status": "ok",
        "backpressureLevel": worst,
        "backpressure-level": worst,
        "end-timestamp": now_ms,
        "subtasks": subtasks,
    }


def watermarks(vertex: VertexView) -> list[Json]:
    """Return the body of `/jobs/:id/vertices/:vertex/watermarks`: milliseconds as text."""
    return [{"id": f"{view.subtask}.currentInputWatermark", "value": str(_watermark(view))} for view in vertex.subtasks]


def subtask_times(vertex: VertexView, now_ms: int) -> Json:
    """Return the body of `/jobs/:id/vertices/:vertex/subtasktimes`."""
    return {
        "id": vertex.id,
        "name": vertex.name,
        "now": now_ms,
        "subtasks": [
            {
                "subtask": view.subtask,
                "endpoint": view.host,
                "duration": subtask(view, now_ms)["duration"],
                "timestamps": {state: _state_since(view, state) for state in TASK_STATES},
            }
            for view in vertex.subtasks
        ],
    }


def vertex_taskmanagers(vertex: VertexView, now_ms: int) -> Json:
    """Return the body of `/jobs/:id/vertices/:vertex/taskmanagers`: the subtasks grouped by TaskManager."""
    by_manager: dict[str, list[SubtaskView]] = {}
    for view in vertex.subtasks:
        by_manager.setdefault(view.taskmanager_id, []).append(view)
    return {
        "id": vertex.id,
        "name": vertex.name,
        "now": now_ms,
        "taskmanagers": [_at(name, views, now_ms) for name, views in sorted(by_manager.items())],
    }


def no_accumulators(vertex: VertexView) -> Json:
    """Return the body of `/jobs/:id/vertices/:vertex/accumulators`, which is always empty."""
    return {"id": vertex.id, "user-accumulators": []}


def no_subtask_accumulators(vertex: VertexView) -> Json:
    """Return the body of `/jobs/:id/vertices/:vertex/subtasks/accumulators`, which is always empty."""
    listed = [
        {"subtask": view.subtask, "attempt": view.attempt, "endpoint": view.host, "user-accumulators": []}
        for view in vertex.subtasks
    ]
    return {"id": vertex.id, "parallelism": vertex.parallelism, "subtasks": listed}


def _back_pressure_of(view: SubtaskView) -> Json:
    def ratio(state: str) -> float:
        return round(min(1.0, max(0.0, view.metrics.get(f"{state}TimeMsPerSecond", 0.0) / 1000)), 4)

    level = _level(ratio("backPressured"))
    return {
        "subtask": view.subtask,
        "attempt-number": view.attempt,
        "backpressureLevel": level,
        "backpressure-level": level,
        "ratio": ratio("backPressured"),
        "idleRatio": ratio("idle"),
        "busyRatio": ratio("busy"),
    }


def _level(ratio: float) -> str:
    return "ok" if ratio <= _LOW else "low" if ratio <= _HIGH else "high"


def _watermark(view: SubtaskView) -> int:
    return max(_NO_WATERMARK, int(view.metrics.get("currentInputWatermark", _NO_WATERMARK)))


def _state_since(view: SubtaskView, state: str) -> int:
    """Return the time at which the subtask entered a state, if known; else 0 as in Flink."""
    if state == view.state and state in ("FINISHED", "CANCELED", "FAILED"):
        return max(0, view.end_ms)
    return max(0, view.start_ms) if state == "DEPLOYING" else 0


def _at(name: str, views: list[SubtaskView], now_ms: int) -> Json:
    shown = [subtask(view, now_ms) for view in views]
    counts = {state: sum(view.state == state for view in views) for state in TASK_STATES}
    started = [view.start_ms for view in views if view.start_ms >= 0]
    ended = [view.end_ms for view in views if view.end_ms >= 0]
    start_ms = min(started, default=-1)
    end_ms = max(ended) if len(ended) == len(views) else -1
    return {
        "endpoint": views[0].host,
        "status": next((state for state in ("FAILED", "RUNNING") if counts[state]), views[0].state),
        "start-time": start_ms,
        "end-time": end_ms,
        "duration": -1 if start_ms < 0 else (end_ms if end_ms >= 0 else now_ms) - start_ms,
        "metrics": io_metrics([view.metrics for view in views]),
        "status-counts": counts,
        "taskmanager-id": name,
        "aggregated": _aggregated(shown),
    }


def _aggregated(subtasks: list[Json]) -> Json:
    return {
        "metrics": {name: _spread([float(entry["metrics"][name]) for entry in subtasks]) for name in _AGGREGATED},
        "status-duration": {
            state: _spread([float(entry["status-duration"][state]) for entry in subtasks])
            for state in ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")
        },
    }


def _spread(values: list[float]) -> Json:
    ordered = sorted(values) or [0.0]

    def part(fraction: float) -> int:
        return int(ordered[min(len(ordered) - 1, int(fraction * len(ordered)))])

    return {
        "min": int(ordered[0]),
        "max": int(ordered[-1]),
        "avg": int(sum(ordered) / len(ordered)),
        "sum": int(sum(ordered)),
        "median": int(st.median(ordered)),
        "p25": part(0.25),
        "p75": part(0.75),
        "p95": part(0.95),
    }
