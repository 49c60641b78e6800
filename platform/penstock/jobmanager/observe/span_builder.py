"""Builds spans from a job's events, commands and state; pure, and without effect on the `JobMaster`.

Called by `jobmanager.jobs.job_driver` after each event. Names and attributes are Flink's where it has them:
`Checkpoint`, `JobInitialization`. A span is created when it ends, so work in progress at a JobManager's crash has no
span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.jobmanager.change.steps import Step
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.observe.checkpoint_spans import cut_spans
from penstock.jobmanager.observe.spans import Span, SpanContext, Value, context_of

if TYPE_CHECKING:
    from penstock.jobmanager.deploy.deployment import Deployment
    from penstock.jobmanager.master.job_master import JobMaster
    from penstock.jobmanager.messages.views import CheckpointView

#: Checkpoint kinds that belong to a user's request, by its name.
_CUTS = {
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
    cut_ms: int | None = None


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
        spans = self._cuts(job)
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
        if command.uri and operation.cut_ms is not None:
            copy = context_of(f"{operation.context.span_id} copy", operation.context)
            yield _span("Copy", (copy, operation.context), (operation.cut_ms, now_ms), self._job)
        times = operation.start_ms, now_ms
        yield _span(operation.name, (operation.context, None), times, attributes, command.error)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def _cuts(self, job: JobMaster) -> list[Span]:
        history = job.checkpointing.history
        ended = history.completed + history.failed
        if ended == self._ended:
            return []
        views = history.ended(ended - self._ended)
        self._ended = ended
        return [span for view in views for span in self._cut(view, job)]

    def _cut(self, view: CheckpointView, job: JobMaster) -> list[Span]:
        idle = "Rescale" if job.in_place.waits_for_slots else ""  # its own checkpoint comes after the slots
        mine = (o for o in self._operations.values() if view.kind in _CUTS[o.name] and view.end_ms >= o.start_ms)
        operation = next((o for o in mine if o.name != idle), None)
        if operation is not None:
            operation.cut_ms = view.end_ms
        parent = operation.context if operation is not None else None
        context = self._context(job, f"Checkpoint {view.id} {view.trigger_ms}", parent)
        append_ms = self._appending.pop(f"{view.kind}:{view.id}", None)
        return cut_spans(view, (context, parent), append_ms, self._job)

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
