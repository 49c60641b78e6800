"""Coordinates the checkpoints of one job over all deployments: manifests, pending output, savepoints, the end; pure.

A member of `master.job_master`. Output is pending from the ack that names it until a sink reports it published.
`WithheldOutput` is the output of a trial, `FinalCheckpoint` the last checkpoint of a deployment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from penstock.checkpoint.coordinator import (
    AbortCheckpoint,
    Ack,
    AppendCheckpoint,
    CheckpointCoordinator,
    CoordinatorCommand,
    CoordinatorSettings,
    FailJob,
    LetOvertake,
    PendingCheckpoint,
    RefuseRequest,
    TriggerBarrier,
)
from penstock.checkpoint.manifest_log import LogEntry, Manifest, key_of
from penstock.checkpoint.recovery import RecoveryPlan, Trial, without_pending_output
from penstock.checkpoint.retention import Sweeper, plan_retention
from penstock.core.clock import utc_text
from penstock.core.elements import BarrierKind
from penstock.core.errors import job_command
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable, pending_text
from penstock.graph.task_deployment import ExecutionId
from penstock.jobmanager.checkpoints.checkpoint_history import CheckpointHistory
from penstock.jobmanager.checkpoints.savepoint_copy import SavepointCopy
from penstock.jobmanager.deploy.deployment import Deployment, send_to_all
from penstock.jobmanager.messages.commands import (
    RESUME_HINT,
    AppendManifest,
    Command,
    DeleteEntries,
    OperationEnded,
)
from penstock.jobmanager.messages.events import (
    NO_COPY,
    BarrierRequested,
    CheckpointRequested,
    CopyTarget,
    barrier_of,
)
from penstock.rpc.messages import (
    CheckpointAborted,
    CheckpointAck,
    CheckpointCompleted,
    CheckpointDeclined,
    LetBarriersOvertake,
    SavepointPart,
    SavepointWritten,
    TriggerCheckpoint,
    WorkerCommand,
)


class WithheldOutput:
    """The withheld output of one deployment."""

    def __init__(self, plan: RecoveryPlan | None = None) -> None:
        """Take the trial state from the recovery plan."""
        self._trial = plan.trial if plan is not None else None
        #: Output withheld by earlier attempts, known from the restore.
        self.restored: tuple[Committable, ...] = plan.held if plan is not None else ()
        #: Log entries of trials that were rolled back; they do not count.
        self.abandoned = plan.abandoned if plan is not None else frozenset()
        #: The permit of this deployment's newest checkpoint.
        self.permit: CommitPermit | None = None

    @property
    def sinks(self) -> tuple[str, ...]:
        """The sinks that must withhold their output."""
        return self._trial.held if self._trial is not None and self._trial.open else ()

    @property
    def base(self) -> tuple[int, ...]:
        """The checkpoint (sequence) that is kept for a rollback."""
        return (self._trial.base,) if self._trial is not None and self._trial.open else ()

    def stamped(self, entry: Manifest) -> Manifest:
        """Return a checkpoint entry with the trial's base and the withholding sinks added."""
        if self._trial is None:
            return entry
        return msgspec.structs.replace(entry, upgrade_of=self._trial.base, held=self.sinks)

    def release(self) -> None:
        """Release all withheld output."""
        self.restored = ()
        if self._trial is not None:
            self._trial = Trial(self._trial.base, open=False)


#: A copy may be many times larger than a checkpoint's upload; a worker reports a failed copy at once.
_COPY_TIMEOUT_MS = 6 * 3_600_000


@dataclass(slots=True)
class FinalCheckpoint:
    """The final checkpoint in the log: its output is published, then it is copied, then the tasks close."""

    manifest: Manifest
    #: Where its copy is written; empty for the end of a bounded job.
    uri: str
    request_id: str
    deadline_ms: int
    #: The copy is being written.
    writing: bool = False
    saved: bool = False

    @property
    def answer(self) -> OperationEnded:
        """The reply to the stop request."""
        return OperationEnded(self.request_id, self.uri, self.manifest.checkpoint_id, kind="stop")

    def late(self, now_ms: int) -> str:
        """Return what was not done in time, or an empty string."""
        if now_ms < self.deadline_ms:
            return ""
        return "its savepoint was not copied" if self.writing else "the last output was not published"

    def copy(self) -> str:
        """Begin the copy, once all output is published; return its id."""
        self.writing, self.deadline_ms = True, self.deadline_ms + _COPY_TIMEOUT_MS
        return self.request_id or f"stop-{self.manifest.sequence}"


def _to_each_worker(deployment: Deployment, message: WorkerCommand) -> list[Command]:
    return send_to_all(deployment.workers.values(), message)


def trigger_commands(deployment: Deployment, pending: PendingCheckpoint) -> list[Command]:
    """Return the commands that make the sources emit the barrier."""
    message = TriggerCheckpoint(
        job_id=deployment.ids.job_id,
        run_id=deployment.ids.run_id,
        generation=deployment.ids.generation,
        checkpoint_id=pending.checkpoint_id,
        kind=pending.kind.value,
        overtakes=pending.overtakes,
    )
    return _to_each_worker(deployment, message)


def overtake_commands(deployment: Deployment, pending: PendingCheckpoint) -> list[Command]:
    """Return the commands that let the barriers of a checkpoint overtake rows."""
    message = LetBarriersOvertake(
        job_id=deployment.ids.job_id,
        run_id=deployment.ids.run_id,
        generation=deployment.ids.generation,
        checkpoint_id=pending.checkpoint_id,
    )
    return _to_each_worker(deployment, message)


def completed_commands(deployment: Deployment, permit: CommitPermit, held: tuple[str, ...]) -> list[Command]:
    """Return the commands that let all sinks publish except those in `held` (uids)."""
    message = CheckpointCompleted(permit=permit, held=held)
    return _to_each_worker(deployment, message)


def aborted_commands(deployment: Deployment, checkpoint_id: int) -> list[Command]:
    """Return the commands that tell all workers that a checkpoint is aborted."""
    ids = deployment.ids
    message = CheckpointAborted(
        job_id=ids.job_id, run_id=ids.run_id, generation=ids.generation, checkpoint_id=checkpoint_id
    )
    return _to_each_worker(deployment, message)


def checkpoint_entry(
    deployment: Deployment,
    pending: PendingCheckpoint,
    uncommitted: tuple[Committable, ...],
    noted: tuple[CopyTarget, int],
) -> Manifest:
    """Return the entry of a fully acknowledged checkpoint; `noted` holds its copy's target and the time (ms)."""
    graph, ids = deployment.graph, deployment.ids
    target, now_ms = noted
    return Manifest(
        kind="savepoint" if pending.kind is BarrierKind.SAVEPOINT else "checkpoint",
        sequence=0,
        job_id=ids.job_id,
        job_name=graph.name,
        run_id=ids.run_id,
        generation=ids.generation,
        nonce="",
        created_ms=now_ms,
        checkpoint_id=pending.checkpoint_id,
        graph_fingerprint=graph.fingerprint,
        key_groups=graph.settings.key_groups,
        operators={o.uid: (v.parallelism, v.id) for v in graph.vertices for o in v.operators},
        subtasks=tuple(ack.snapshot for _, ack in sorted(pending.acks.items())),
        pending=uncommitted,
        runs=(ids.run_id,),
        barrier=pending.label,
        note=target.uri,
        native=target.native,
        request=pending.request_id if pending.kind.ends_job else "",
    )


_SWEEP_GRACE_MS = 60_000
#: A permit that no output waits for goes with the next trigger if that is due within this time.
_TOGETHER_MS = 200
_ENDING = ("stop", "drain", "final")


@dataclass(frozen=True, slots=True)
class JobShouldFail:
    """Tells the job master to restart the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobCanFinish:
    """The final checkpoint is durable, published and, if requested, copied: the tasks can close."""


@dataclass(frozen=True, slots=True)
class ChangeCheckpoint:
    """The result of `request_for_change`, for the rescale or upgrade that made the request.

    The checkpoint is in the log; that of a stop is also published and copied.
    """

    request_id: str
    #: None: it failed.
    checkpoint: Manifest | None
    error: str = ""


def _subtask_name(deployment: Deployment, execution: ExecutionId) -> str:
    vertex = deployment.graph.vertex(execution.vertex_id)
    return f"{vertex.name} ({execution.subtask + 1}/{vertex.parallelism})"


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint that failed, for the event log."""

    tag: str
    reason: str


CheckpointCommand = Command | JobShouldFail | JobCanFinish | ChangeCheckpoint | CheckpointFailed


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A user's savepoint or stop that is not complete; see `OpenRequestView`."""

    what: str
    since_ms: int
    phase: str


@dataclass(frozen=True, slots=True)
class _Request:
    """A request without an answer: when it was made (-1: under an earlier leader), and the target of its copy."""

    asked_ms: int
    target: CopyTarget = NO_COPY
    #: A rescale or upgrade made it; its answer is a `ChangeCheckpoint`.
    for_change: bool = False
    #: The request of a user, if this leader received it.
    event: BarrierRequested | None = None


class Checkpointing:
    """Checkpointing of one job for its whole life; `begin` and `halt` bracket each deployment."""

    def __init__(
        self,
        checkpoint_root: str,
        metrics: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
        sweep_grace_ms: int = _SWEEP_GRACE_MS,
    ) -> None:
        """Start with an empty history; `metrics` are the newest ones by `<vertex>/<subtask>`."""
        self._root = checkpoint_root
        self._metrics = metrics
        self.history = CheckpointHistory()
        self.sweeper = Sweeper(sweep_grace_ms)
        self._deployment: Deployment | None = None
        #: The deployment is of an earlier leader.
        self._adopted = False
        self._coordinator: CheckpointCoordinator | None = None
        self._next_id = 1
        #: Manifests of the current history in the log, oldest first.
        self._manifests: tuple[Manifest, ...] = ()
        self.pending: dict[str, Committable] = {}
        #: Sequence of the newest checkpoint that `pending` reflects; 0 = none in this log.
        self.pending_as_of = 0
        #: Published output, and the newest checkpoint triggered before: acks up to that one may still name it.
        self._published: dict[str, int] = {}
        #: Requests without an answer, by id.
        self._requests: dict[str, _Request] = {}
        self._withheld = WithheldOutput()
        #: A permit that goes with the next trigger.
        self._unsent_permit: CommitPermit | None = None
        #: Sequence of the checkpoint that next workers load, which is kept meanwhile.
        self.loaded_sequence: int | None = None
        #: Savepoints being copied, by their ids.
        self._copying: dict[str, SavepointCopy] = {}
        #: The final checkpoint of this deployment, once it is in the log.
        self.final_checkpoint: FinalCheckpoint | None = None
        #: A stop whose append had no known outcome when the deployment failed: the log decides.
        self._undecided_stop = ""
        #: The reply to the stop that ended the job.
        self.stopped: OperationEnded | None = None

    # --- deployments -----------------------------------------------------------------------------------------------

    def begin(self, deployment: Deployment, plan: RecoveryPlan, now_ms: int) -> list[CheckpointCommand]:
        """Take over the recovery plan for a new deployment."""
        self._take(deployment, plan)
        self.set_pending(plan.pending)
        known = plan.restored if plan.restored in plan.history else None
        self.pending_as_of = known.sequence if known is not None else 0
        if plan.restored is not None:
            own = {m.sequence for m in plan.history if m.kind == "checkpoint"}
            self.history.was_restored(plan.restored, now_ms, savepoint=plan.restored.sequence not in own)
        return [] if plan.finishing else self.close("the job failed before its last checkpoint was durable")

    def adopt(self, deployment: Deployment, plan: RecoveryPlan) -> list[Command]:
        """Go on with a running deployment; repeat the permit of its newest checkpoint, which may not have been sent.

        Output that its sinks have not published is named by their next acknowledgements; until then `pending` is
        empty, and `pending_as_of` says that it does not count.
        """
        self._take(deployment, plan)
        self.pending, self.pending_as_of, self._adopted = {}, 0, True
        newest = plan.permit_entry
        if newest is None or newest.manifest.kind != "checkpoint" or newest.manifest.run_id != deployment.ids.run_id:
            return []
        self._withheld.permit = newest.permit
        return completed_commands(deployment, newest.permit, self._withheld.sinks)

    def skip_ids(self, newest: int) -> None:
        """Give no id up to `newest` to a checkpoint: an earlier leader may have used it."""
        self._next_id = max(self._next_id, newest + 1)

    def _take(self, deployment: Deployment, plan: RecoveryPlan) -> None:
        self._deployment, self._adopted = deployment, False
        self._next_id = max(self._next_id, plan.next_checkpoint_id)
        self._manifests = plan.history
        self._withheld = WithheldOutput(plan)
        self._published, self._unsent_permit = {}, None

    def set_pending(self, pending: tuple[Committable, ...], uids: Collection[str] | None = None) -> None:
        """All recovered output, or that of these sinks, is committed except `pending` and that of a trial."""
        others = [] if uids is None else [output for output in self.pending.values() if output.uid not in uids]
        self.pending = {c.id: c for c in (*others, *pending, *self._withheld.restored)}

    def released(self) -> list[Command]:
        """Let sinks publish the withheld output: the trial was accepted."""
        self._withheld.release()
        permit = self._withheld.permit
        if permit is None or self._deployment is None:
            return []
        return completed_commands(self._deployment, permit, ())

    def start(self, now_ms: int) -> list[CheckpointCommand]:
        """Start the coordinator, or end its pause: all subtasks run and the sources have their splits."""
        if self._coordinator is not None:
            return self._translate(self._coordinator.start(now_ms, resumed=True), now_ms)
        deployment = self._running()
        settings = deployment.graph.settings
        self._coordinator = CheckpointCoordinator(
            CoordinatorSettings(
                interval_ms=settings.checkpoint_interval_ms,
                timeout_ms=settings.checkpoint_timeout_ms,
                min_pause_ms=settings.checkpoint_min_pause_ms,
                tolerated_failures=settings.checkpoint_tolerated_failures,
                max_age_ms=settings.checkpoint_max_age_ms,
                max_concurrent=settings.max_concurrent_checkpoints,
                overtake_after_ms=settings.aligned_checkpoint_timeout_ms if settings.unaligned_checkpoints else None,
            ),
            [e.id for e in deployment.executions.values()],
            self._next_id,
            # One bounded source may have ended while another is still discovering splits.
            ended=[e.id for e in deployment.executions.values() if e.input_ended],
            name_of=lambda execution: _subtask_name(deployment, execution),
            processed=self._processed,
        )
        resumed = deployment.recovered is not None and deployment.recovered.plan.restored is not None
        return self._translate(self._coordinator.start(now_ms, resumed=resumed, adopted=self._adopted), now_ms)

    @property
    def is_ending(self) -> bool:
        """Whether the last checkpoint is under way or requested: its barriers end the sources of all regions."""
        return self._coordinator is None or self.final_checkpoint is not None or self._coordinator.is_ending

    def pause(self, lost: Collection[str], reason: str, now_ms: int) -> list[CheckpointCommand]:
        """Trigger no checkpoint until `start`: some regions restart, and their workers `lost` are killed."""
        assert self._coordinator is not None  # noqa: S101 - the job runs
        present = [execution.id for execution in self._running().executions.values()]
        commands = self._translate(self._coordinator.pause(present, reason), now_ms)
        for savepoint_id in [asked for asked, copy in self._copying.items() if copy.needs(lost)]:
            del self._copying[savepoint_id]
            commands.append(self._answer(OperationEnded(savepoint_id, error=reason)))
        return commands

    def knows_newest(self, plan: RecoveryPlan) -> bool:
        """Return whether the newest checkpoint of the log is the newest that this leader knows."""
        in_log = [manifest.sequence for manifest in plan.history if manifest.kind == "checkpoint"]
        known = [manifest.sequence for manifest in self._manifests if manifest.kind == "checkpoint"]
        return max(in_log, default=0) == max(known, default=0)

    def restored_part(self, restored: Manifest | None, vertices: Collection[str], now_ms: int) -> None:
        """Handle that some vertices go back to a checkpoint, the newest, which is None if there is no state yet."""
        if restored is not None:
            own = {manifest.sequence for manifest in self._manifests}
            self.history.was_restored(restored, now_ms, savepoint=restored.sequence not in own, vertices=vertices)

    def resume_ending(self, manifest: Manifest, now_ms: int, *, for_change: bool) -> list[CheckpointCommand]:
        """Copy and finish a final checkpoint that was durable before the failure and is published now.

        `for_change`: an upgrade requested it, perhaps under an earlier leader.
        """
        timeout = self._running().graph.settings.checkpoint_timeout_ms
        uri = manifest.note if manifest.barrier in ("stop", "drain") else ""
        request_id, self._undecided_stop = self._undecided_stop or manifest.request, ""
        if request_id:
            known = _Request(-1, CopyTarget(uri, native=manifest.native), for_change)
            self._requests.setdefault(request_id, known)
        self.final_checkpoint = FinalCheckpoint(manifest, uri, request_id, now_ms + timeout)
        return self._advance_ending()

    def halt(self, reason: str, now_ms: int) -> list[CheckpointCommand]:
        """End the deployment: abort everything in progress."""
        commands: list[CheckpointCommand] = []
        if self._coordinator is not None:
            self._next_id = self._coordinator.next_id
            stopped = self._translate(self._coordinator.stop(reason), now_ms)
            commands = [c for c in stopped if isinstance(c, OperationEnded | ChangeCheckpoint | CheckpointFailed)]
            self._coordinator = None
        for savepoint_id in self._copying:
            if self.final_checkpoint is None or savepoint_id != self.final_checkpoint.request_id:
                commands.append(self._answer(OperationEnded(savepoint_id, error=reason)))
        if self.final_checkpoint is not None:
            self._undecided_stop = self.final_checkpoint.request_id
        self._copying, self.final_checkpoint, self._deployment = {}, None, None
        return commands

    def close(self, reason: str) -> list[CheckpointCommand]:
        """Refuse a stop that can no longer be carried out: the job has ended."""
        request, self._undecided_stop = self._undecided_stop, ""
        return [self._answer(OperationEnded(request, error=reason, kind="stop"))] if request else []

    # --- requests --------------------------------------------------------------------------------------------------

    def request(self, event: BarrierRequested, now_ms: int) -> list[CheckpointCommand]:
        """Request a checkpoint, savepoint or stop for a user."""
        request_id, (kind, target) = event.request_id, barrier_of(event)
        if self.final_checkpoint is not None and self.final_checkpoint.request_id == request_id:
            return []  # repeated request; this leader is already carrying it out
        if self._coordinator is None or self.final_checkpoint is not None:
            return [OperationEnded(request_id, error=f"the job is not running {RESUME_HINT}")]
        self._requests[request_id] = _Request(now_ms, target, event=event)
        unaligned = event.unaligned if isinstance(event, CheckpointRequested) else None
        return self._translate(self._coordinator.request(kind, request_id, now_ms, unaligned=unaligned), now_ms)

    def request_for_change(self, request_id: str, now_ms: int, stop: CopyTarget = NO_COPY) -> list[CheckpointCommand]:
        """Request a checkpoint for a rescale or upgrade; `ChangeCheckpoint` is the result.

        It is the next checkpoint, also if that is already in progress. With `stop`, it is a stop with that savepoint.
        """
        if self._coordinator is None or self.final_checkpoint is not None:
            return [ChangeCheckpoint(request_id, None, f"the job is not running {RESUME_HINT}")]
        self._requests[request_id] = _Request(now_ms, stop, for_change=True)
        if stop.uri:
            return self._translate(self._coordinator.request(BarrierKind.STOP, request_id, now_ms), now_ms)
        return self._translate(self._coordinator.join(request_id, now_ms), now_ms)

    @property
    def busy(self) -> str:
        """Why the deployment cannot be ended now without breaking a user's request; empty if it can."""
        if self._coordinator is None:
            return "the job is not running"
        if self.final_checkpoint is not None:
            return "the job is about to end"
        if any(kind.ends_job for kind, _ in self._coordinator.requested):
            return "a stop of the job was requested"
        return "a savepoint is being written" if self._copying else ""

    @property
    def savepoint_obstacle(self) -> str:
        """Why a change of the job must not start yet; empty if it may.

        A change that has started postpones the request instead.
        """
        asked = next((r for r in self.open_requests if r.what == BarrierKind.SAVEPOINT.value), None)
        if asked is None or self._deployment is None:
            return ""
        name, limit_s = self._deployment.graph.name, self._deployment.graph.settings.checkpoint_timeout_ms // 1000
        return (
            f"a savepoint of the job, requested at {utc_text(asked.since_ms)} UTC, is not complete;"
            f" `{job_command('show', name)}` names what it waits for;"
            f" it fails {limit_s} s after its start, or `{job_command('cancel', name)}` ends the job"
        )

    @property
    def open_requests(self) -> tuple[OpenRequest, ...]:
        """The savepoints and stops that are not complete, the one under way first."""
        return tuple(
            OpenRequest(what, self._requests[asked].asked_ms if asked in self._requests else -1, phase)
            for what, asked, phase in self._open()
        )

    def _open(self) -> list[tuple[str, str, str]]:
        """Return kind, request id and phase of each open savepoint or stop."""
        ending = self.final_checkpoint
        found: list[tuple[str, str, str]] = []
        if ending is not None and ending.request_id:
            found.append((ending.manifest.barrier, ending.request_id, "copy" if ending.writing else "publish"))
        copied = [asked for asked in self._copying if ending is None or asked != ending.request_id]
        found += [(BarrierKind.SAVEPOINT.value, asked, "copy") for asked in copied]
        queued = self._coordinator.requested if self._coordinator is not None else ()
        return found + [
            (kind.value, asked, "checkpoint") for kind, asked in queued if kind is not BarrierKind.CHECKPOINT
        ]

    def withdraw(self) -> list[BarrierRequested]:
        """End the coordinator for a change of the job; return the user requests that are still unanswered."""
        taken = self._coordinator.withdraw() if self._coordinator is not None else ()
        found = [self._requests.pop(request_id) for _, request_id in taken]
        return [known.event for known in found if known.event is not None]

    @property
    def inputs_ended(self) -> bool:
        """Whether every subtask has processed all its input."""
        return self._coordinator is not None and self._coordinator.all_inputs_ended

    @property
    def newest_or_none(self) -> Manifest | None:
        """The newest checkpoint of this history, without those of abandoned trials."""
        counting = (m for m in reversed(self._manifests) if m.sequence not in self._withheld.abandoned)
        return next((m for m in counting if m.kind == "checkpoint"), None)

    # --- reports of tasks and log ----------------------------------------------------------------------------------

    def input_ended(self, execution: ExecutionId, now_ms: int) -> list[CheckpointCommand]:
        """Handle the end of a subtask's input."""
        if self._coordinator is None:
            return []
        return self._translate(self._coordinator.input_ended(execution, now_ms), now_ms)

    def acked(self, acks: Iterable[CheckpointAck], now_ms: int) -> list[CheckpointCommand]:
        """Handle acks: the parts of these subtasks are durable."""
        if self._coordinator is None:
            return []
        decided: list[CoordinatorCommand] = []
        for ack in acks:
            execution = ExecutionId(ack.snapshot.vertex_id, ack.snapshot.subtask, ack.attempt)
            decided += self._coordinator.ack(ack.checkpoint_id, execution, Ack(ack.snapshot, ack.metrics, now_ms))
        return self._translate(decided, now_ms)

    def declined(self, message: CheckpointDeclined, now_ms: int) -> list[CheckpointCommand]:
        """Handle a subtask that declined the checkpoint."""
        if self._coordinator is None:
            return []
        execution = ExecutionId(message.vertex_id, message.subtask, message.attempt)
        done = self._coordinator.decline(message.checkpoint_id, execution, message.reason, now_ms)
        return self._translate(done, now_ms)

    def published(self, ids: tuple[str, ...]) -> list[CheckpointCommand]:
        """Handle output that sinks have published."""
        newest = (self._coordinator.next_id if self._coordinator is not None else self._next_id) - 1
        for committable_id in ids:
            self._published[committable_id] = newest
            self.pending.pop(committable_id, None)
        return self._advance_ending()

    def appended(self, entry: LogEntry, now_ms: int) -> list[CheckpointCommand]:
        """Handle a manifest that is in the log: the checkpoint is complete."""
        manifest, coordinator = entry.manifest, self._coordinator
        current = coordinator.under_way(manifest.checkpoint_id) if coordinator is not None else None
        path = f"{self._root.rstrip('/')}/{manifest.job_name}/{key_of(manifest.sequence)}"
        self.history.appended(manifest.checkpoint_id or 0, manifest.sequence, path, now_ms)
        if coordinator is None or current is None:
            return []  # its deployment has ended; the next one finds it in the log
        self._manifests = (*self._manifests, *entry.found, manifest)
        self.pending = {c.id: c for c in manifest.pending if c.id not in self._published}
        if manifest.kind == "checkpoint":
            self.pending_as_of = manifest.sequence
        decided = coordinator.appended(current.checkpoint_id, now_ms)
        oldest = coordinator.oldest_id
        self._published = {known: newest for known, newest in self._published.items() if newest >= oldest}
        uri = self._target_of(current).uri
        commands: list[CheckpointCommand] = []
        if current.kind is BarrierKind.SAVEPOINT:
            commands += self._copy(manifest, current.request_id, uri)
        else:
            self._withheld.permit = self._unsent_permit = entry.permit
            if self.pending or not coordinator.triggers_by(now_ms + _TOGETHER_MS):
                commands += self._send_permit()
        if current.label in _ENDING or current.final:
            timeout = self._running().graph.settings.checkpoint_timeout_ms
            request = current.request_id if current.kind.ends_job else ""
            self.final_checkpoint = FinalCheckpoint(manifest, uri if request else "", request, now_ms + timeout)
        commands += self._retain(now_ms)
        commands += self._translate(decided, now_ms)
        if current.request_id and current.kind is BarrierKind.CHECKPOINT:
            answer = OperationEnded(current.request_id, path, current.checkpoint_id)
            commands.append(self._answer(answer, manifest))
        return commands + self._advance_ending()

    def append_failed(self, tag: str, reason: str, now_ms: int) -> list[CheckpointCommand]:
        """Handle a manifest append that failed or whose outcome is unknown; `tag` is that of the append."""
        checkpoint_id = int(tag.rpartition(":")[2])
        text = f"the manifest was not written: {reason}"
        self.history.aborted(checkpoint_id, text, now_ms)
        failed = CheckpointFailed(tag, text)
        if self._coordinator is None:
            return [failed]
        return [failed, *self._translate(self._coordinator.append_failed(checkpoint_id, text, now_ms), now_ms)]

    def copied(self, message: SavepointPart | SavepointWritten) -> list[CheckpointCommand]:
        """Handle a written part of a savepoint copy, or its end."""
        copying = self._copying.get(message.savepoint_id)
        if copying is None:
            return []
        if isinstance(message, SavepointPart) and not message.error:
            return [*copying.part_written(message)]
        del self._copying[message.savepoint_id]
        checkpoint_id = copying.manifest.checkpoint_id or 0
        if not message.error:
            self.history.saved(checkpoint_id, message.uri, native=copying.manifest.native)
        ending = self.final_checkpoint
        if ending is None or ending.manifest.checkpoint_id != checkpoint_id:
            return [self._answer(OperationEnded(message.savepoint_id, message.uri, checkpoint_id, message.error))]
        if message.error:
            return [JobShouldFail(f"savepoint {message.uri} could not be written: {message.error}")]
        ending.saved = True
        return self._advance_ending()

    def _processed(self, execution: ExecutionId) -> float:
        reported = self._metrics.get(f"{execution.vertex_id}/{execution.subtask}", {})
        return reported.get("numRecordsIn", 0.0) + reported.get("numRecordsOut", 0.0)

    def tick(self, now_ms: int) -> list[CheckpointCommand]:
        """Act on timeouts."""
        if self.final_checkpoint is not None and (late := self.final_checkpoint.late(now_ms)):
            return [JobShouldFail(f"{late} in time; pending output: {pending_text(self.pending.values())}")]
        return [] if self._coordinator is None else self._translate(self._coordinator.tick(now_ms), now_ms)

    def wake_ms(self) -> int | None:
        """Return the time at which `tick` is due."""
        times = [self._coordinator.wake_ms() if self._coordinator is not None else None]
        times.append(self.final_checkpoint.deadline_ms if self.final_checkpoint is not None else None)
        return min((t for t in times if t is not None), default=None)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _running(self) -> Deployment:
        assert self._deployment is not None  # noqa: S101 - between `begin` and `halt`
        return self._deployment

    def _translate(self, decided: list[CoordinatorCommand], now_ms: int) -> list[CheckpointCommand]:
        commands: list[CheckpointCommand] = []
        for command in decided:
            match command:
                case TriggerBarrier(pending):
                    commands += self._trigger(pending)
                case LetOvertake(pending):
                    commands += overtake_commands(self._running(), pending)
                case AppendCheckpoint(pending):
                    noted = self._target_of(pending), now_ms
                    draft = checkpoint_entry(self._running(), pending, self._uncommitted(pending), noted)
                    commands.append(AppendManifest(pending.tag, self._withheld.stamped(draft)))
                case AbortCheckpoint(pending, reason):
                    commands += self._abort(pending, reason, now_ms)
                case RefuseRequest(request_id, reason):
                    commands.append(self._answer(OperationEnded(request_id, error=reason)))
                case FailJob(reason):
                    commands.append(JobShouldFail(reason))
        return commands

    def _trigger(self, pending: PendingCheckpoint) -> list[CheckpointCommand]:
        self.history.triggered(pending)
        return [*self._send_permit(), *trigger_commands(self._running(), pending)]

    def _send_permit(self) -> list[Command]:
        permit, self._unsent_permit = self._unsent_permit, None
        return [] if permit is None else completed_commands(self._running(), permit, self._withheld.sinks)

    def _abort(self, pending: PendingCheckpoint, reason: str, now_ms: int) -> list[CheckpointCommand]:
        commands: list[CheckpointCommand] = [*aborted_commands(self._running(), pending.checkpoint_id)]
        if not pending.appending:  # otherwise the answer to the append tells whether it exists
            self.history.aborted(pending.checkpoint_id, reason, now_ms)
            commands.append(CheckpointFailed(pending.tag, reason))
        if pending.appending and pending.kind.ends_job:
            # The append may have succeeded; the next deployment reads the log.
            self._undecided_stop = pending.request_id
        elif pending.request_id:
            commands.append(self._answer(OperationEnded(pending.request_id, error=reason)))
        return commands

    def _target_of(self, pending: PendingCheckpoint) -> CopyTarget:
        """Return the target of a checkpoint's copy; empty if it has none."""
        known = self._requests.get(pending.request_id)
        return known.target if known is not None else NO_COPY

    def _answer(self, answer: OperationEnded, checkpoint: Manifest | None = None) -> OperationEnded | ChangeCheckpoint:
        """Return the answer to a request of a user, or to one of a change of the job."""
        known = self._requests.pop(answer.request_id, None)
        if known is None or not known.for_change:
            return answer
        return ChangeCheckpoint(answer.request_id, checkpoint, answer.error)

    def _uncommitted(self, pending: PendingCheckpoint) -> tuple[Committable, ...]:
        """Return all output that is not known to be published when `pending` is complete."""
        uncommitted = dict(self.pending)
        for _execution, ack in sorted(pending.acks.items()):
            uncommitted.update((c.id, c) for c in ack.snapshot.committables if c.id not in self._published)
        return tuple(uncommitted.values())

    def _copy(self, manifest: Manifest, savepoint_id: str, uri: str) -> list[CheckpointCommand]:
        copy = self._copying[savepoint_id] = SavepointCopy(self._running(), manifest, savepoint_id, uri)
        return [*copy.start()]

    def _retain(self, now_ms: int) -> list[CheckpointCommand]:
        retained = self._running().graph.settings.retained_checkpoints
        loaded = () if self.loaded_sequence is None else (self.loaded_sequence,)
        pinned = {*self._withheld.base, *loaded, *(copy.manifest.sequence for copy in self._copying.values())}
        uncommitted = {ref.path for c in self.pending.values() for ref in c.files}
        plan = plan_retention(
            self._manifests, retained, pinned=pinned, in_use=uncommitted, abandoned=self._withheld.abandoned
        )
        self._manifests = plan.kept
        swept = set(self.sweeper.appended(plan.kept, now_ms)) - uncommitted
        files = tuple(sorted({*plan.files, *swept}))
        found = plan.sequences or plan.emptied or files
        return [DeleteEntries(plan.sequences, files, plan.emptied)] if found else []

    def _advance_ending(self) -> list[CheckpointCommand]:
        ending = self.final_checkpoint
        if ending is None or self.pending:
            return []
        if not ending.uri or ending.saved:
            self.final_checkpoint = None
            answer = self._answer(ending.answer, ending.manifest)
            if isinstance(answer, ChangeCheckpoint):
                return [answer]
            if not answer.request_id:
                return [JobCanFinish()]
            self.stopped = answer
            return [answer, JobCanFinish()]
        if ending.writing:
            return []
        # All output is published, so the copy needs no markers, which may expire before it is used.
        return self._copy(without_pending_output(ending.manifest), ending.copy(), ending.uri)
