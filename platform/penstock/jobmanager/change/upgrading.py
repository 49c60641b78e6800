"""The upgrade of one job, from the request to the verdict on the new version; pure.

The first part checks that a version can replace the running one; `jobs.upgrade_requests` calls it at the request.
`Upgrading` is a member of `change.job_change`. Each step is in the job record or the log before the next one.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from penstock.checkpoint.ha_records import UpgradePhase, UpgradePolicy, UpgradeRecord
from penstock.checkpoint.manifest_log import Manifest
from penstock.checkpoint.recovery import RecoveryPlan, Trial
from penstock.connector.sink import SinkSpec
from penstock.core.errors import PenstockError, UsageError
from penstock.graph.job_graph import JobGraph, decode_graph, encode_graph, required_slots
from penstock.graph.operator_kinds import ENDS
from penstock.graph.restore_plan import assign_state, bytes_to_prepare
from penstock.graph.state_check import check_states, require_fit
from penstock.jobmanager.change.decisions import AdoptDefinition, ChangeContext, ChangeDecision, Note, StopForChange
from penstock.jobmanager.change.next_workers import ChangePreparation, NextDeployment
from penstock.jobmanager.checkpoints.checkpointing import ChangeCheckpoint
from penstock.jobmanager.deploy.deployment import publishing_sinks
from penstock.jobmanager.deploy.job_log import JobIdentity, release_entry
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages.commands import AppendManifest, OperationEnded, ReadLog, RecordChange
from penstock.jobmanager.messages.events import (
    BarrierRequested,
    CheckpointRequested,
    CopyTarget,
    ManifestAppended,
    ManifestFailed,
    UpgradeRequested,
)


def sink_deliveries(graph: JobGraph) -> dict[str, str]:
    """Return the delivery of every sink, by uid; `none` for a sink that is not a connector's."""
    found = {}
    for vertex in graph.vertices:
        for operator in vertex.operators:
            if operator.kind == "sink":
                found[operator.uid] = str(msgspec.convert(operator.config["sink"], SinkSpec).delivery)
            elif operator.kind in ENDS:
                found[operator.uid] = "none"
    return found


def staging_sinks(graph: JobGraph) -> tuple[str, ...]:
    """Return the sinks that can withhold output: those that stage it."""
    return tuple(sorted(uid for uid, delivery in sink_deliveries(graph).items() if delivery == "exactly-once"))


def under_name_of(old: JobGraph, new: JobGraph) -> JobGraph:
    """Return a new version under the name that the running job was given at its submission, as its file had another."""
    if not old.file_name or new.name != old.file_name:
        return new
    return msgspec.structs.replace(new, name=old.name, file_name=old.file_name)


def require_upgradable(old: JobGraph, new: JobGraph, policy: UpgradePolicy) -> None:
    """Refuse a graph that cannot be an upgrade of `old`, or cannot be rolled back as the policy demands.

    Raises:
        UsageError: with a hint.
    """
    if new.name != old.name:
        msg = f"the new version is named {new.name!r}, the running job {old.name!r}"
        raise UsageError(msg, hint=f"keep the name: env.execute({(old.file_name or old.name)!r})")
    if new.settings.checkpoint_root != old.settings.checkpoint_root:
        ours, theirs = new.settings.checkpoint_root, old.settings.checkpoint_root
        msg = f"the new version has the checkpoint root {ours}, the running job {theirs}"
        way = f"keep it: --set checkpoint_root={theirs}"
        raise UsageError(msg, hint=f"{way}; for another root, stop the job with a savepoint and run it with --from")
    if policy.checkpoints < 0 or policy.max_restarts < 0 or policy.deadline_ms <= 0:
        msg = "--checkpoints and --max-restarts must be at least 0, --deadline more than 0"
        raise UsageError(msg, hint="omit them for the defaults")
    if policy.checkpoints and new.settings.checkpoint_interval_ms is None:
        msg = f"the new version has no checkpoint interval, but the upgrade requires {policy.checkpoints} checkpoints"
        raise UsageError(msg, hint="set checkpoint_interval, or pass --checkpoints 0")
    if policy.rollback:
        _require_staging(new, policy)
    if policy.from_checkpoint:
        _require_same_sinks(old, new)


def _require_staging(new: JobGraph, policy: UpgradePolicy) -> None:
    deliveries = sink_deliveries(new)
    for uid in policy.accept:
        if uid not in deliveries or deliveries[uid] == "exactly-once":
            msg = f"--accept {uid}: the new version has no such sink that cannot withhold output"
            raise UsageError(msg, hint=f"sinks of the new version: {', '.join(sorted(deliveries)) or 'none'}")
    cannot = sorted(uid for uid, d in deliveries.items() if d != "exactly-once" and uid not in policy.accept)
    if cannot:
        which = ", ".join(f"{uid} ({deliveries[uid]})" for uid in cannot)
        msg = f"these sinks cannot withhold output, so a rollback would not remove their rows: {which}"
        names = " ".join(f"--accept {uid}" for uid in cannot)
        raise UsageError(msg, hint=f"accept them by name ({names}), or upgrade with --no-rollback")


def _require_same_sinks(old: JobGraph, new: JobGraph) -> None:
    after = {uid: _destination(spec) for uid, spec in publishing_sinks(new).items()}
    for uid, spec in publishing_sinks(old).items():
        if after.get(uid) != _destination(spec):
            msg = f"sink {uid!r} differs in the new version, and a checkpoint still holds pending output for it"
            raise UsageError(
                msg,
                hint="upgrade with a savepoint (the default): the old version publishes its output first",
            )


def _destination(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that determine an output's destination; columns may differ, staged rows carry their own."""
    return {name: spec[name] for name in ("factory", "config", "delivery")}


def state_mismatch(graph: JobGraph, checkpoint: Manifest | None, policy: UpgradePolicy) -> str:
    """Return why the state of a checkpoint does not fit a new version, or an empty string."""
    if checkpoint is None:
        return ""
    allowed = policy.allow_non_restored_state
    # a stop publishes all output, and waits for the rows in flight
    settled = tuple(msgspec.structs.replace(part, committables=(), in_flight=()) for part in checkpoint.subtasks)
    parts = checkpoint.subtasks if policy.from_checkpoint else settled
    try:
        require_fit(check_states(graph, parts, pending=(), allow_non_restored=allowed))
        assign_state(graph, parts, checkpoint_id=checkpoint.checkpoint_id, allow_non_restored=allowed)
    except PenstockError as error:
        return str(error)
    return ""


def refused_text(policy: UpgradePolicy, reason: str) -> str:
    """Return the event log text of an upgrade that is refused before anything is changed."""
    return f"refused{_version(policy)}: {reason}"


def _version(policy: UpgradePolicy) -> str:
    return f" ({policy.file})" if policy.file else ""


RELEASE_TAG = "release"
_RETRY_MS = 1_000
#: Failures after a stop is in the log (mostly of its savepoint's copy) until the old version continues.
_STOP_TRIES = 2
#: Steps in which nothing is decided: the job is not deployed yet, or ends.
_INACTIVE = (Step.IDLE, Step.FINISHING, Step.CANCELLING, Step.CLOSING, Step.DONE)


class UpgradeStage(enum.Enum):
    """The step that an upgrade waits for."""

    #: The intent is being recorded.
    INTENT = "intent"
    #: The job must run before its checkpoint can be taken.
    WAIT = "wait"
    #: Perhaps the new workers load state first.
    CHECKPOINT = "cut"
    #: The old workers are killed; the new version is being recorded.
    SWITCH = "switch"
    TRIAL = "trial"
    #: The release is being appended to the log.
    RELEASE = "release"
    #: The new workers are killed; the old version is being recorded.
    ROLLBACK = "back"
    #: The outcome is being recorded while the job runs.
    REPORT = "report"


class Upgrading:
    """The upgrade in progress, or the newest one."""

    def __init__(self, preparation: ChangePreparation, record: UpgradeRecord | None = None) -> None:
        """Continue the upgrade that an earlier leader recorded."""
        self.record = record
        self._preparation = preparation
        #: Runs of versions that were rolled back under this leader, and when.
        self.rejected: dict[str, int] = {}
        self.phase: UpgradeStage | None = None
        if record is not None and not record.ended:
            self.phase = UpgradeStage.WAIT if record.phase == "cut" else UpgradeStage.TRIAL
        #: Whether the log was read: before, it is unknown whether an earlier leader took the checkpoint.
        self._log_known = False
        self._command: RecordChange | None = None
        #: The reply to send once the record is durable: later leaders then give the same answer.
        self._reply: OperationEnded | None = None
        self._retry_ms: int | None = None
        self._begin()

    def _begin(self) -> None:
        self.restarts = 0
        self._done: set[int] = set()
        self._last_error = ""
        self._restarts_exhausted = False
        self._verdict: bool | None = None
        #: Its stop is in the log: the sources are silent until one of the versions runs.
        self._stopped = False
        self._stop_failures = 0
        #: A deployment waits for the release to publish the final output.
        self._input_ended = False

    # --- user requests ---------------------------------------------------------------------------------------------

    def requested(self, request: UpgradeRequested, job: ChangeContext, obstacle: str) -> list[ChangeDecision]:
        """Start an upgrade or refuse it; `obstacle` is a reason against it."""
        if self.record is not None and self.record.token == request.request_id:
            return []
        if self.phase is not None:
            obstacle = "another upgrade of the job is under way"
        obstacle = obstacle or state_mismatch(request.graph, job.checkpointing.newest_or_none, request.policy)
        if obstacle:
            note = Note("upgrade", refused_text(request.policy, obstacle))
            return [note, OperationEnded(request.request_id, error=obstacle)]
        self.record = UpgradeRecord(
            token=request.request_id,
            phase="cut",
            policy=request.policy,
            run_id=request.run_id,
            back_run_id=request.back_run_id,
            other=encode_graph(request.graph),
            savepoint="" if request.policy.from_checkpoint else request.uri,
            deadline_ms=job.now_ms + request.policy.deadline_ms,
            parallelism=request.parallelism,
            begun_ms=job.now_ms,
            old_file=self.record.running_file if self.record is not None else "",
        )
        self._begin()
        self.phase = UpgradeStage.INTENT
        text = "a checkpoint" if request.policy.from_checkpoint else f"a savepoint at {request.uri}"
        note = Note("upgrade", f"requested{_version(request.policy)}, from {text}")
        return [note, *self._send(RecordChange(self.record.token, upgrade=self.record))]

    def obstacle(self, request: BarrierRequested) -> str:
        """Return why a user cannot have that checkpoint now; empty if the user can."""
        under_way = self.phase is not None and not isinstance(request, CheckpointRequested)
        return "an upgrade of the job is under way" if under_way else ""

    def verdict_given(self, *, healthy: bool) -> list[ChangeDecision]:
        """Take a user's verdict on the new version; ignored unless it is on trial."""
        if self.phase is not UpgradeStage.TRIAL:
            return []
        self._verdict = healthy
        return [Note("upgrade", f"a user declared it {'healthy' if healthy else 'unhealthy'}")]

    # --- the cut ---------------------------------------------------------------------------------------------------

    @property
    def _tag(self) -> str:
        return f"upgrade-{self.record.token}" if self.record is not None else ""

    def owns_checkpoint(self, checkpoint: Manifest) -> bool:
        """Return whether a final checkpoint is the upgrade's, requested under this or an earlier leader."""
        if self.phase not in (UpgradeStage.WAIT, UpgradeStage.CHECKPOINT) or checkpoint.barrier != "stop":
            return False
        return (
            bool(checkpoint.note) and checkpoint.note == self._current_record().savepoint
        )  # otherwise it is a user's stop

    def checkpoint_ended(self, result: ChangeCheckpoint, job: ChangeContext) -> list[ChangeDecision]:
        """Take the result of the upgrade's checkpoint; ignore that of another request."""
        if self.phase not in (UpgradeStage.WAIT, UpgradeStage.CHECKPOINT) or result.request_id != self._tag:
            return []
        if result.checkpoint is not None:
            return self._checkpoint_taken(result.checkpoint, job)
        return self._refuse(result.error, job.now_ms) if self.phase is UpgradeStage.CHECKPOINT else []

    def _checkpoint_taken(self, checkpoint: Manifest, job: ChangeContext) -> list[ChangeDecision]:
        """Replace the old version if its state fits."""
        record = self._current_record()
        graph = decode_graph(record.other)
        if problem := state_mismatch(graph, checkpoint, record.policy):
            if not record.savepoint:
                return self._refuse(problem, job.now_ms)
            # Its sources are silent: it needs a new run.
            return self._roll_back(job.graph, "refused", problem, job.now_ms)
        trial = Trial(
            checkpoint.sequence, staging_sinks(graph) if record.policy.rollback else (), open=record.policy.rollback
        )
        self.record = msgspec.structs.replace(
            record,
            phase="trial",
            base=checkpoint.sequence,
            other=encode_graph(job.graph),
            deadline_ms=job.now_ms + record.policy.deadline_ms,
        )
        self.phase, self._last_error = UpgradeStage.SWITCH, ""
        command = RecordChange(record.token, record.run_id, graph, self.record, trial)
        held = f", output of {', '.join(trial.held)} withheld" if trial.held else ""
        text = f"the new version takes over from checkpoint {checkpoint.checkpoint_id}{held}"
        self._send(command)
        return [Note("upgrade", text), StopForChange("the job is being upgraded", command)]

    def halted(self) -> list[ChangeDecision]:
        """Give up the new workers: the deployment of the old version has ended before the switch."""
        if self.phase is UpgradeStage.CHECKPOINT and self._preparation.waits:
            self.phase = UpgradeStage.WAIT
        return self._preparation.give_up() if self.phase in (UpgradeStage.WAIT, UpgradeStage.CHECKPOINT) else []

    # --- the trial -------------------------------------------------------------------------------------------------

    def checkpointed(self, manifest: Manifest) -> None:
        """Count a checkpoint that is in the log."""
        self._stopped = self._stopped or self.owns_checkpoint(manifest)
        if (
            self.phase is UpgradeStage.TRIAL
            and manifest.kind == "checkpoint"
            and manifest.run_id == self._current_record().run_id
        ):
            self._done.add(manifest.checkpoint_id or 0)

    def failed(self, error: str, *, final: bool) -> bool:
        """Record a failure, final if `final`; return whether the job must be rolled back instead of ending."""
        if self._stopped and self.phase in (UpgradeStage.WAIT, UpgradeStage.CHECKPOINT):
            self._stop_failures += _STOP_TRIES if final else 1
            self._last_error = error
            return self._stop_failures >= _STOP_TRIES
        if self.phase not in (UpgradeStage.TRIAL, UpgradeStage.RELEASE):
            return False
        self.restarts += 1
        self._last_error, self._restarts_exhausted = error, self._restarts_exhausted or final
        return self._current_record().policy.rollback

    def log_read(self, plan: RecoveryPlan, job: ChangeContext) -> list[ChangeDecision]:
        """Handle the log of a deployment: an earlier leader may have released the run, or it ended on trial."""
        for manifest in plan.history:
            self.checkpointed(manifest)
        self._log_known, trial = True, plan.trial
        if (
            self.phase not in (UpgradeStage.TRIAL, UpgradeStage.RELEASE)
            or trial is None
            or not self._current_record().policy.rollback
        ):
            return []
        self._input_ended = trial.open and plan.finishing
        if not trial.open:
            return self._released(job.now_ms)
        return self._release("it has reached its end", job) if plan.finishing else []

    def decide(self, job: ChangeContext) -> list[ChangeDecision]:
        """Return the steps that are due."""
        if self.phase is None or job.step in _INACTIVE:
            return []
        if self._retry_ms is not None:
            return self._retry(job) if job.now_ms >= self._retry_ms else []
        if self.phase in (UpgradeStage.WAIT, UpgradeStage.CHECKPOINT):
            return self._resume_old(job) if self._stopped else self._wait(job)
        return self._judge(job) if self.phase is UpgradeStage.TRIAL else []

    def _resume_old(self, job: ChangeContext) -> list[ChangeDecision]:
        """Continue the old version as another run if the stop's savepoint cannot be written."""
        record = self._current_record()
        if self._stop_failures < _STOP_TRIES and job.now_ms < record.deadline_ms:
            return []
        reason = f"the savepoint at {record.savepoint} was not written: {self._last_error or 'not in time'}"
        self.record = msgspec.structs.replace(record, savepoint="")
        return self._roll_back(job.graph, "refused", reason, job.now_ms)

    def _wait(self, job: ChangeContext) -> list[ChangeDecision]:
        record = self._current_record()
        if self.phase is not UpgradeStage.WAIT or not self._log_known:
            return []
        if job.now_ms >= record.deadline_ms:
            return self._refuse(f"no checkpoint could be taken in time: {job.obstacle}", job.now_ms)
        if job.obstacle:
            return []
        graph, newest = decode_graph(record.other), job.checkpointing.newest_or_none
        size = bytes_to_prepare(graph, newest.subtasks if newest is not None else ())
        self.phase, target = UpgradeStage.CHECKPOINT, CopyTarget(record.savepoint, native=record.policy.native)
        if size is None or len(job.held) < required_slots(graph):
            return [*job.checkpointing.request_for_change(self._tag, job.now_ms, target)]
        ids = job.identity.of_run(record.run_id).plan_ids(job.next_attempt)
        planned = NextDeployment(graph, ids, job.held, size, new_version=True)
        return self._preparation.begin("upgrade", self._tag, planned, job, target)

    def _judge(self, job: ChangeContext) -> list[ChangeDecision]:
        record, healthy = self._current_record(), self._verdict
        policy, text = record.policy, "by a user's verdict"
        if healthy is None:
            healthy, text = self._assess_health(job)
        if healthy is None:
            return []
        if not healthy:
            return (
                self._roll_back(decode_graph(record.other), "rolled-back", text, job.now_ms)
                if policy.rollback
                else self._keep(text, job.now_ms)
            )
        if policy.rollback:
            return self._release(text, job)
        return self._report("completed", f"healthy: {text}", job.now_ms)

    def _assess_health(self, job: ChangeContext) -> tuple[bool | None, str]:
        """Return whether it is healthy (None: undecided) and why."""
        record = self._current_record()
        policy = record.policy
        if self._restarts_exhausted or self.restarts > policy.max_restarts:
            failed = "once" if self.restarts == 1 else f"{self.restarts} times"
            return False, f"it failed {failed} ({policy.max_restarts} restarts allowed): {self._last_error}"
        if job.now_ms >= record.deadline_ms:
            what = (
                "no user confirmed it" if policy.confirm else f"{len(self._done)} of {policy.checkpoints} checkpoints"
            )
            slow = job.slow_call and f"; {job.slow_call}"
            return False, f"not healthy within {policy.deadline_ms / 1000:.0f} s: {what}, the job is {job.state}{slow}"
        if job.running and job.checkpointing.inputs_ended:
            return True, "it has reached its end"
        if job.running and len(self._done) >= policy.checkpoints and not policy.confirm:
            return True, f"{len(self._done)} checkpoints, {self.restarts} restarts"
        return None, ""

    # --- the ends --------------------------------------------------------------------------------------------------

    def _release(self, text: str, job: ChangeContext) -> list[ChangeDecision]:
        self.phase = UpgradeStage.RELEASE
        entry = release_entry(job.graph, job.identity, self._current_record().base, job.now_ms)
        return [Note("upgrade", f"healthy: {text}; releasing its output"), AppendManifest(RELEASE_TAG, entry)]

    def release_answered(self, answer: ManifestAppended | ManifestFailed, job: ChangeContext) -> list[ChangeDecision]:
        """Handle the outcome of appending the release; repeat it if the append failed or its outcome is unknown."""
        if isinstance(answer, ManifestAppended):
            return [*job.checkpointing.released(), *self._released(job.now_ms)]
        self._retry_ms = job.now_ms + _RETRY_MS
        return [Note("upgrade", f"release failed, retrying: {answer.reason}")]

    def _released(self, now_ms: int) -> list[ChangeDecision]:
        if self.phase not in (UpgradeStage.TRIAL, UpgradeStage.RELEASE):
            return []
        again: list[ChangeDecision] = [ReadLog()] if self._input_ended else []
        self._input_ended = False
        return [*self._report("completed", "released", now_ms), *again]

    def _report(self, phase: UpgradePhase, text: str, now_ms: int, error: str = "") -> list[ChangeDecision]:
        """Finish the upgrade with the running version kept; report and persist that."""
        self.phase, self._retry_ms = UpgradeStage.REPORT, None
        self.record = msgspec.structs.replace(
            self._current_record(), phase=phase, other=b"", reason=error, ended_ms=now_ms
        )
        self._reply = OperationEnded(self.record.token, uri=self.record.savepoint, error=error)
        return [Note("upgrade", f"{phase}: {text}"), *self._send(RecordChange(self.record.token, upgrade=self.record))]

    def _refuse(self, reason: str, now_ms: int) -> list[ChangeDecision]:
        report = self._report("refused", reason, now_ms, f"the old version continues: {reason}")
        return [*self._preparation.give_up(), *report]

    def _keep(self, reason: str, now_ms: int) -> list[ChangeDecision]:
        return self._report("kept", reason, now_ms, f"the new version is unhealthy but kept, as requested: {reason}")

    def _roll_back(self, old: JobGraph, phase: UpgradePhase, reason: str, now_ms: int) -> list[ChangeDecision]:
        self.phase, given_up = UpgradeStage.ROLLBACK, self._preparation.give_up()
        record = self._current_record()
        self.record = msgspec.structs.replace(
            record, phase=phase, other=b"", reason=f"the old version is running again: {reason}", ended_ms=now_ms
        )
        self.rejected[record.run_id] = now_ms
        command = RecordChange(record.token, record.back_run_id, old, self.record)
        self._send(command)
        return [Note("upgrade", f"{phase}: {reason}"), *given_up, StopForChange("the upgrade is rolled back", command)]

    def closed(self, reason: str) -> list[ChangeDecision]:
        """End the upgrade with the job; fail its request if it is still open."""
        open_ended = self.phase not in (None, UpgradeStage.REPORT)
        if self._retry_ms is not None:
            open_ended = open_ended or self._reply is not None
            self._command = self._reply = None  # it is not being written, and will not be
        self.phase, self._retry_ms = None, None
        given_up = self._preparation.give_up()
        return [*given_up, OperationEnded(self._current_record().token, error=reason)] if open_ended else given_up

    # --- records ---------------------------------------------------------------------------------------------------

    @property
    def recording(self) -> bool:
        """Whether a record is being written; the answer may change the job's definition."""
        return self._command is not None and self._retry_ms is None

    @property
    def unrecorded(self) -> bool:
        """Whether a record is being written or waits for a retry."""
        return self._command is not None

    def recorded(self, job: ChangeContext) -> list[ChangeDecision]:
        """Handle the durable record."""
        command, self._command = self._command, None
        reply, self._reply = self._reply, None
        if command is None:
            return []
        ended = self.phase is None
        workers = self._preparation.take() if self.phase is UpgradeStage.SWITCH else ()
        if self.phase is UpgradeStage.INTENT:
            self.phase = UpgradeStage.WAIT
        elif self.phase is UpgradeStage.SWITCH:
            self.phase = UpgradeStage.TRIAL
        elif self.phase in (UpgradeStage.ROLLBACK, UpgradeStage.REPORT):
            self.phase = None
        if command.graph is None:
            return [reply] if reply is not None else []
        upgrade, old = self._current_record(), job.identity
        allowed = upgrade.policy.allow_non_restored_state if command.trial is not None else ()
        own = JobIdentity(old.job_id, command.run_id, old.generation, allow_non_restored_state=allowed)
        steps: list[ChangeDecision] = [AdoptDefinition(command.graph, own, job.held, workers)]
        if command.trial is None and not ended:
            steps.append(OperationEnded(upgrade.token, uri=upgrade.savepoint, error=upgrade.reason))
        return steps

    def not_recorded(self, reason: str, now_ms: int) -> list[ChangeDecision]:
        """Repeat the record, unless the job ends."""
        if self.phase is None:
            self._command = None
            return []
        self._retry_ms = now_ms + _RETRY_MS
        return [Note("upgrade", f"recording failed, retrying: {reason}")]

    def wake_ms(self) -> int | None:
        """Return the time at which `decide` is due without an event."""
        if self._retry_ms is not None:
            return self._retry_ms
        waits = (self.phase is UpgradeStage.WAIT and self._log_known) or (
            self.phase is UpgradeStage.CHECKPOINT and self._stopped
        )
        return self._current_record().deadline_ms if waits or self.phase is UpgradeStage.TRIAL else None

    @property
    def checkpoints(self) -> int:
        """Number of checkpoints the new version has completed on trial."""
        return len(self._done)

    def _retry(self, job: ChangeContext) -> list[ChangeDecision]:
        self._retry_ms = None
        if self.phase is UpgradeStage.RELEASE:
            return self._release("retried", job)
        return [self._command] if self._command is not None else []

    def _send(self, command: RecordChange) -> list[ChangeDecision]:
        self._command = command
        return [command]

    def _current_record(self) -> UpgradeRecord:
        assert self.record is not None  # noqa: S101 - asked while there is one
        return self.record
