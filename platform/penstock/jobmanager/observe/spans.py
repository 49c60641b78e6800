"""Spans of a job: values, ids, and `SpanBuilder`, which builds them from events, commands and state; pure.

Called by `jobs.job_driver` after each event; `observe.otlp` sends them. Ids are derived from the subject of a span,
so that a replay of the same events gives the same spans.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev

if TYPE_CHECKING:
    from penstock.jobmanager.deploy.deployment import Deployment
    from penstock.jobmanager.master.job_master import JobMaster
    from penstock.jobmanager.messages.views import CheckpointView, SubtaskCheckpointView

#: An attribute value, with OpenTelemetry's types.
Value = str | int | float | bool
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The ids of a span: 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A timed operation; times are wall-clock milliseconds."""

    name: str
    context: SpanContext
    #: The parent span; None for the root of a trace.
    parent: SpanContext | None
    start_ms: float
    end_ms: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    #: The error; empty on success.
    error: str = ""


class SpanSink(Protocol):
    """Receives ended spans."""

    @property
    def counts(self) -> tuple[int, int]:
        """Number of spans sent, and dropped."""

    def put(self, spans: Sequence[Span]) -> None:
        """Take spans; never blocks, never raises."""


def context_of(about: str, parent: SpanContext | None) -> SpanContext:
    """Return the ids of a span; `about` is a text unique to it."""
    digest = hashlib.blake2b(about.encode(), digest_size=24).hexdigest()
    return SpanContext(digest[:32] if parent is None else parent.trace_id, digest[32:])


def parse_traceparent(text: str) -> SpanContext | None:
    """Return the span that a W3C `traceparent` names; None if it is invalid."""
    match = _TRACEPARENT.fullmatch(text.strip().lower())
    if match is None or text.startswith("ff") or not match[1].strip("0") or not match[2].strip("0"):
        return None
    return SpanContext(match[1], match[2])


#: With more subtasks, only the last ones to acknowledge get spans.
MOST_SUBTASKS = 50
_TYPES = {"checkpoint": "Checkpoint", "final": "Checkpoint"}


def checkpoint_spans(
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
        "isUnaligned": view.unaligned,
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
        "persistedData": subtask.persisted_bytes,
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


#: Checkpoint kinds that belong to a user's request, by its name.
_CHECKPOINT_KINDS = {
    "Savepoint": ("savepoint",),
    "Stop": ("stop", "drain"),
    "Rescale": ("checkpoint",),
    "Upgrade": ("checkpoint", "stop", "final"),
}
_RESTARTING = ("Rescale", "Upgrade")


@dataclass(slots=True)
class _Operation:
    """A user request that has not ended."""

    name: str
    context: SpanContext
    start_ms: int
    #: When its checkpoint was complete; the copy follows.
    checkpoint_ms: int | None = None


@dataclass(slots=True)
class _Start:
    """A deployment that does not run yet."""

    deployment: Deployment
    context: SpanContext
    parent: SpanContext | None
    start_ms: int
    #: The milestones reached, with their times.
    reached: dict[str, int] = field(default_factory=dict)


class SpanBuilder:
    """The spans of one job under one leader."""

    def __init__(self, job: tuple[str, str], submitted_ms: int, parent: SpanContext | None) -> None:
        """Create a builder; `job` is id and name, `parent` the span of the submission's caller."""
        self._job: dict[str, Value] = {"job.id": job[0], "job.name": job[1]}
        self._submitted_ms = submitted_ms
        self._parent = parent
        #: The span of the submission, until the job runs for the first time.
        self._submit: SpanContext | None = None
        self._operations: dict[str, _Operation] = {}
        self._start: _Start | None = None
        self._started = 0
        self._ended = 0
        #: When the append of each manifest started, by its tag.
        self._appending: dict[str, int] = {}

    def observe(
        self, event: ev.Event, commands: Sequence[cmd.Command], job: JobMaster, now_ms: int
    ) -> list[Span]:  # fmt: skip
        """Return the spans that ended with this event; `commands` are the job's answer to it."""
        self._asked(event, job, now_ms)
        for command in commands:
            if isinstance(command, cmd.AppendManifest):
                self._appending[command.tag] = now_ms
        spans = self._ended_checkpoints(job)
        spans += self._deployed(event, job, now_ms)
        for command in commands:
            if isinstance(command, cmd.OperationEnded):
                spans += self._operation_ended(command, now_ms)
            elif isinstance(command, cmd.JobTerminal) and self._submit is not None:
                spans += self._submitted(now_ms, command.error or command.state)
        return spans

    # --- user requests ---------------------------------------------------------------------------------------------

    def _asked(self, event: ev.Event, job: JobMaster, now_ms: int) -> None:
        match event:
            case ev.SavepointRequested():
                name = "Savepoint"
            case ev.StopRequested():
                name = "Stop"
            case ev.RescaleRequested():
                name = "Rescale"
            case ev.UpgradeRequested():
                name = "Upgrade"
            case _:
                return
        if event.request_id not in self._operations:
            context = self._context(job, f"{name} {event.request_id}", None)
            self._operations[event.request_id] = _Operation(name, context, now_ms)

    def _operation_ended(self, command: cmd.OperationEnded, now_ms: int) -> Iterable[Span]:
        operation = self._operations.pop(command.request_id, None)
        if operation is None:
            return
        attributes = dict(self._job)
        if command.uri:
            attributes["location"] = command.uri
        if command.checkpoint_id is not None:
            attributes["checkpointId"] = command.checkpoint_id
        if command.uri and operation.checkpoint_ms is not None:
            copy = context_of(f"{operation.context.span_id} copy", operation.context)
            yield _span("Copy", (copy, operation.context), (operation.checkpoint_ms, now_ms), self._job)
        times = operation.start_ms, now_ms
        yield _span(operation.name, (operation.context, None), times, attributes, command.error)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def _ended_checkpoints(self, job: JobMaster) -> list[Span]:
        history = job.checkpointing.history
        ended = history.completed + history.failed
        if ended == self._ended:
            return []
        views = history.ended(ended - self._ended)
        self._ended = ended
        return [span for view in views for span in self._checkpoint_spans(view, job)]

    def _checkpoint_spans(self, view: CheckpointView, job: JobMaster) -> list[Span]:
        idle = "Rescale" if job.job_change.waits_for_slots else ""  # its own checkpoint comes after the slots
        mine = (
            o for o in self._operations.values() if view.kind in _CHECKPOINT_KINDS[o.name] and view.end_ms >= o.start_ms
        )
        operation = next((o for o in mine if o.name != idle), None)
        if operation is not None:
            operation.checkpoint_ms = view.end_ms
        parent = operation.context if operation is not None else None
        context = self._context(job, f"Checkpoint {view.id} {view.trigger_ms}", parent)
        append_ms = self._appending.pop(f"{view.kind}:{view.id}", None)
        return checkpoint_spans(view, (context, parent), append_ms, self._job)

    # --- starts ----------------------------------------------------------------------------------------------------

    def _deployed(self, event: ev.Event, job: JobMaster, now_ms: int) -> list[Span]:
        spans: list[Span] = []
        if self._start is not None and job.deployment is not self._start.deployment:
            spans += self._start_ended(self._start, job, now_ms, job.error or "the start was abandoned")
        if self._start is None and job.step is Step.STARTING and job.deployment is not None:
            self._start = self._begin(job.deployment, job, now_ms)
        start = self._start
        if start is None:
            return spans
        if isinstance(event, ev.LogRead) and self._is_first(event, job):
            self._submit = self._context(job, "Submit", self._parent)
            start.parent = self._submit
            start.context = SpanContext(self._submit.trace_id, start.context.span_id)
        deployment = start.deployment
        for what, reached in (
            ("log", deployment.recovered is not None),
            ("workers", deployment.ready),
            ("resolved", deployment.resolved),
            ("deployed", deployment.deployed),
        ):
            if reached:
                start.reached.setdefault(what, now_ms)
        if job.step is Step.RUNNING:
            spans += self._start_ended(start, job, now_ms, "")
        return spans

    def _begin(self, deployment: Deployment, job: JobMaster, now_ms: int) -> _Start:
        self._started += 1
        parent = next((o.context for o in self._operations.values() if o.name in _RESTARTING), None)
        context = self._context(job, f"JobInitialization {self._started}", parent)
        return _Start(deployment, context, parent, now_ms)

    def _is_first(self, event: ev.LogRead, job: JobMaster) -> bool:
        """Return whether the job was submitted to this leader and has not run before."""
        mine = job.identity
        before = any(
            entry.manifest.job_id == mine.job_id and entry.manifest.generation < mine.generation
            for entry in event.entries
        )
        return self._started == 1 and not before

    def _start_ended(self, start: _Start, job: JobMaster, now_ms: int, error: str) -> list[Span]:
        self._start = None
        deployment, reached = start.deployment, start.reached
        attributes: dict[str, Value] = {
            **self._job,
            "initializationStatus": "FAILED" if error else "COMPLETED",
            "run.id": deployment.ids.run_id,
            "generation": deployment.ids.generation,
            "subtasks": len(deployment.executions),
            "restarts": job.restarts,
        }
        if job.failures and job.restarts and not error:
            attributes["restart.cause"] = job.failures[0].error
        recovered = deployment.recovered
        if recovered is not None and recovered.plan.restored is not None:
            attributes["checkpointId"] = recovered.plan.restored.checkpoint_id or 0
            attributes["fullSize"] = recovered.restore.read_bytes if recovered.restore is not None else 0
        parts = [
            ("ReadLog", start.start_ms, reached.get("log")),
            ("StartWorkers", start.start_ms, reached.get("workers")),
            ("PublishPending", reached.get("log"), reached.get("resolved") if deployment.fenced else None),
            ("RestoreState", reached.get("deployed"), None if error else now_ms),
        ]
        spans = [_span("JobInitialization", (start.context, start.parent), (start.start_ms, now_ms), attributes, error)]
        for name, begun, ended in parts:
            if begun is not None and ended is not None:
                context = context_of(f"{start.context.span_id} {name}", start.context)
                spans.append(_span(name, (context, start.context), (begun, ended), self._job))
        if self._submit is not None and not error:
            spans += self._submitted(now_ms, "")
        return spans

    def _submitted(self, now_ms: int, error: str) -> list[Span]:
        assert self._submit is not None  # noqa: S101 - the callers have looked
        context, self._submit = self._submit, None
        return [_span("Submit", (context, self._parent), (self._submitted_ms, now_ms), self._job, error)]

    def _context(self, job: JobMaster, about: str, parent: SpanContext | None) -> SpanContext:
        return context_of(f"{job.identity.job_id} {job.identity.generation} {about}", parent)


def _span(
    name: str,
    which: tuple[SpanContext, SpanContext | None],
    times: tuple[int, int],
    attributes: dict[str, Value],
    error: str = "",
) -> Span:
    context, parent = which
    return Span(
        name=name,
        context=context,
        parent=parent,
        start_ms=times[0],
        end_ms=times[1],
        attributes=attributes,
        error=error,
    )
