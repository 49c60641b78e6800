"""Builds the spans of one checkpoint: the whole, each subtask's steps, and the commit; pure.

Called by `jobmanager.observe.span_builder`. Subtasks report durations, not times. The steps are laid out backwards from
the time at which the JobManager received the subtask's ack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jobmanager.observe.spans import Span, SpanContext, Value, context_of

if TYPE_CHECKING:
    from penstock.jobmanager.messages.views import CheckpointView, SubtaskCheckpointView

#: With more subtasks, only the last ones to acknowledge get spans.
MOST_SUBTASKS = 50
_TYPES = {"checkpoint": "Checkpoint", "final": "Checkpoint"}


def cut_spans(
    view: CheckpointView,
    which: tuple[SpanContext, SpanContext | None],
    append_ms: int | None,
    job: dict[str, Value],
) -> list[Span]:
    """Return the spans of a checkpoint.

    `which` holds the span's context and its parent's. `append_ms` is the time just before the manifest append.
    """
    context, parent = which
    attributes: dict[str, Value] = {
        **job,
        "checkpointId": view.id,
        "checkpointStatus": view.status,
        "checkpointType": _TYPES.get(view.kind, "Savepoint"),
        "isUnaligned": False,
        "fullSize": view.state_bytes,
        "checkpointedSize": view.new_bytes,
        "subtasks": view.total,
        "subtasksAcknowledged": view.acknowledged,
    }
    if view.path:
        attributes["location"] = view.path
    whole = Span(
        name="Checkpoint",
        context=context,
        parent=parent,
        start_ms=view.trigger_ms,
        end_ms=view.end_ms,
        attributes=attributes,
        error=view.failure,
    )
    last = sorted(view.subtasks, key=lambda subtask: subtask.ack_ms, reverse=True)[:MOST_SUBTASKS]
    spans = [whole, *(span for subtask in last for span in _subtask(subtask, whole, job))]
    if append_ms is not None:
        commit = context_of(f"{context.span_id} Commit", context)
        spans.append(
            Span(
                name="Commit",
                context=commit,
                parent=context,
                start_ms=append_ms,
                end_ms=view.end_ms,
                attributes={**job, "checkpointId": view.id},
                error=view.failure,
            )
        )
    return spans


def _subtask(subtask: SubtaskCheckpointView, whole: Span, job: dict[str, Value]) -> list[Span]:
    about = f"{whole.context.span_id} {subtask.vertex_id} {subtask.subtask}"
    own = context_of(about, whole.context)
    where: dict[str, Value] = {**job, "vertex.id": subtask.vertex_id, "subtask": subtask.subtask}
    upload_ms = max(0.0, subtask.async_ms - subtask.sync_ms)
    steps, end_ms = list[Span](), float(subtask.ack_ms)
    for name, duration_ms in (
        ("Upload", upload_ms), ("Synchronous", subtask.sync_ms), ("Alignment", subtask.alignment_ms)
    ):  # fmt: skip
        # Worker and JobManager clocks differ: no step may begin before the whole.
        start_ms = max(float(whole.start_ms), end_ms - duration_ms)
        context = context_of(f"{about} {name}", whole.context)
        attributes: dict[str, Value] = {**where, "durationMs": duration_ms}
        steps.append(
            Span(name=name, context=context, parent=own, start_ms=start_ms, end_ms=end_ms, attributes=attributes)
        )
        end_ms = start_ms
    sizes: dict[str, Value] = {
        "fullSize": subtask.state_bytes,
        "checkpointedSize": subtask.new_bytes,
        "processedData": subtask.processed_bytes,
        "alignmentBuffered": subtask.buffered_bytes,
    }
    return [
        Span(
            name="Checkpoint_Subtask",
            context=own,
            parent=whole.context,
            start_ms=whole.start_ms,
            end_ms=subtask.ack_ms,
            attributes={**where, **sizes},
        ),
        *steps,
    ]
