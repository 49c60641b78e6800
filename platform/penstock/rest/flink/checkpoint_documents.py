"""Flink's JSON of a checkpoint's parts and of a job's checkpoint configuration; numbers are never null.

Pure functions, called by the routes in `rest.jobs.job_routes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import NotFoundError
from penstock.rest.flink.documents import checkpoint, statistics

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.jobmanager.messages.views import CheckpointsView, CheckpointView, JobDetail, SubtaskCheckpointView

Json = dict[str, Any]
#: Flink's value for "never": its largest interval.
_NEVER_MS = (1 << 63) - 1


def checkpoint_config(settings: JobSettings) -> Json:
    """Return the body of `/jobs/:id/checkpoints/config`."""
    interval_ms = settings.checkpoint_interval_ms
    return {
        "mode": "exactly_once",
        "interval": _NEVER_MS if interval_ms is None else interval_ms,
        "timeout": settings.checkpoint_timeout_ms,
        "min_pause": settings.checkpoint_min_pause_ms,
        "max_concurrent": 1,
        "externalization": {"enabled": True, "delete_on_cancellation": False},
        "state_backend": settings.state_backend,
        "checkpoint_storage": settings.checkpoint_root,
        "unaligned_checkpoints": False,
        "tolerable_failed_checkpoints": settings.checkpoint_tolerated_failures,
        "aligned_checkpoint_timeout": 0,
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
        "persisted_data": 0,
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
            "persisted": nothing,
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
            "persisted": 0,
            "duration": int(ack.alignment_ms),
        },
        "start_delay": 0,
        "unaligned_checkpoint": False,
        "aborted": False,
    }


def _missing(index: int) -> Json:
    return {"className": "pending", "index": index, "status": "pending_or_failed"}
