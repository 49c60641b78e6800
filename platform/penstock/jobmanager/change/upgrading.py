"""The upgrade of one job, from the request to the verdict on the new version; pure.

A member of `jobmanager.change.job_change`. The order is fixed: the intent is recorded -> the old version's checkpoint
(a stop with a savepoint, or a checkpoint) is in the log -> its state fits -> the workers are killed, the new run is
sealed in the log as on trial and recorded -> it runs with its output withheld. If it is healthy, the release is
appended to the log and the output is published. Otherwise its workers are killed and the old version is recorded again.

Each step is in the job record or the log before the next one, so any leader can continue from there. Once the release
is sent to the log, the upgrade cannot be rolled back.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from penstock.checkpoint.manifest import Manifest
from penstock.checkpoint.trials import Trial
from penstock.checkpoint.upgrade_record import UpgradePhase, UpgradeRecord
from penstock.core.elements import BarrierKind
from penstock.graph.job_graph import JobGraph, decode_graph, encode_graph
from penstock.jobmanager.change.steps import Become, ChangeStep, Leave, Note, Step
from penstock.jobmanager.change.upgrade_check import holding_sinks, misfit
from penstock.jobmanager.checkpoints.checkpointing import Checkpointing
from penstock.jobmanager.deploy.log_entries import release_entry
from penstock.jobmanager.deploy.restore_decision import JobIdentity
from penstock.jobmanager.messages.commands import WAY_OUT, AppendManifest, OperationEnded, ReadLog, RecordUpgrade
from penstock.jobmanager.messages.events import UpgradeRequested

RELEASE_TAG = "release"
_RETRY_MS = 1_000
#: Failures after a stop is in the log (mostly of its savepoint's copy) until the old version continues.
_STOP_TRIES = 2
_CLOSING = (Step.FINISHING, Step.CANCELLING, Step.CLOSING, Step.DONE)


class Phase(enum.Enum):
    """The step that an upgrade waits for."""

    #: The intent is being recorded.
    INTENT = "intent"
    #: The job must run before its checkpoint can be taken.
    WAIT = "wait"
    CUT = "cut"
    #: The old workers are killed; the new version is being recorded.
    SWITCH = "switch"
    TRIAL = "trial"
    #: The release is being appended to the log.
    RELEASE = "release"
    #: The new workers are killed; the old version is being recorded.
    BACK = "back"
    #: The outcome is being recorded while the job runs.
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Situation:
    """The job's current values that matter for a change."""

    graph: JobGraph
    identity: JobIdentity
    step: Step
    #: Flink's state, for messages.
    state: str
    #: Whether all subtasks run.
    running: bool
    #: Number of slots it holds.
    held: int
    checkpointing: Checkpointing
    now_ms: int

    @property
    def obstacle(self) -> str:
        """Why the job cannot be checkpointed and replaced now; empty if it can."""
        checkpointing = self.checkpointing
        return checkpointing.busy or checkpointing.asked_for if self.running else f"the job is {self.state} {WAY_OUT}"


class Upgrading:
    """The upgrade in progress, or the newest one."""

    def __init__(self, record: UpgradeRecord | None = None) -> None:
        """Continue the upgrade that an earlier leader recorded."""
        self.record = record
        self.phase: Phase | None = None
        if record is not None and not record.ended:
            self.phase = Phase.WAIT if record.phase == "cut" else Phase.TRIAL
        #: Whether the log was read: before, it is unknown whether an earlier leader took the checkpoint.
        self._log_known = False
        self._command: RecordUpgrade | None = None
        #: The reply to send once the record is durable: later leaders then give the same answer.
        self._told: OperationEnded | None = None
        self._retry_ms: int | None = None
        self._begin()

    def _begin(self) -> None:
        self.restarts = 0
        self._done: set[int] = set()
        self._last_error = ""
        self._hopeless = False
        self._word: bool | None = None
        #: Its stop is in the log: the sources are silent until one of the versions runs.
        self._stopped = False
        self._stop_failures = 0
        #: A deployment waits for the release to publish the final output.
        self._at_its_end = False

    # --- user requests ---------------------------------------------------------------------------------------------

    def asked(self, request: UpgradeRequested, job: Situation, obstacle: str) -> list[ChangeStep]:
        """Start an upgrade or refuse it; `obstacle` is a reason against it."""
        if self.record is not None and self.record.token == request.request_id:
            return []
        if self.phase is not None:
            obstacle = "another upgrade of the job is under way"
        obstacle = obstacle or misfit(request.graph, job.checkpointing.newest_or_none, request.policy)
        if obstacle:
            return [Note("upgrade", f"refused: {obstacle}"), OperationEnded(request.request_id, error=obstacle)]
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
        )
        self._begin()
        self.phase = Phase.INTENT
        text = "a checkpoint" if request.policy.from_checkpoint else f"a savepoint at {request.uri}"
        return [Note("upgrade", f"requested, from {text}"), *self._send(RecordUpgrade(self.record))]

    def judged(self, *, healthy: bool) -> list[ChangeStep]:
        """Take a user's verdict on the new version; ignored unless it is on trial."""
        if self.phase is not Phase.TRIAL:
            return []
        self._word = healthy
        return [Note("upgrade", f"a user declared it {'healthy' if healthy else 'unhealthy'}")]

    # --- the cut ---------------------------------------------------------------------------------------------------

    @property
    def _tag(self) -> str:
        return f"upgrade-{self.record.token}" if self.record is not None else ""

    def wants(self, cut: Manifest) -> bool:
        """Return whether a final checkpoint is the upgrade's, requested under this or an earlier leader."""
        if self.phase not in (Phase.WAIT, Phase.CUT) or cut.barrier != "stop":
            return False
        return bool(cut.note) and cut.note == self._of().savepoint  # otherwise it is a user's stop

    def answered(self, ended: OperationEnded, job: Situation) -> list[ChangeStep] | None:
        """Take the answer to the upgrade's checkpoint; return None for other requests."""
        if self.record is None or self.phase is None or ended.request_id != self._tag:
            return None
        if ended.error:
            return self._refuse(ended.error) if self.phase is Phase.CUT else []
        return [] if self.record.savepoint else self.cut_taken(job.checkpointing.newest, job)

    def cut_taken(self, cut: Manifest, job: Situation) -> list[ChangeStep]:
        """Replace the old version if its state fits.

        The checkpoint is in the log; that of a stop is also published and copied.
        """
        record = self._of()
        graph = decode_graph(record.other)
        if problem := misfit(graph, cut, record.policy):
            if not record.savepoint:
                return self._refuse(problem)
            return self._back(job.graph, "refused", problem)  # its sources are silent: it needs a new run
        trial = Trial(cut.sequence, holding_sinks(graph) if record.policy.rollback else (), open=record.policy.rollback)
        self.record = msgspec.structs.replace(
            record,
            phase="trial",
            base=cut.sequence,
            other=encode_graph(job.graph),
            deadline_ms=job.now_ms + record.policy.deadline_ms,
        )
        self.phase, self._last_error = Phase.SWITCH, ""
        command = RecordUpgrade(self.record, record.run_id, graph, trial)
        held = f", output of {', '.join(trial.held)} withheld" if trial.held else ""
        text = f"the new version takes over from checkpoint {cut.checkpoint_id}{held}"
        self._send(command)
        return [Note("upgrade", text), Leave("the job is being upgraded", command)]

    # --- the trial -------------------------------------------------------------------------------------------------

    def checkpointed(self, manifest: Manifest) -> None:
        """Count a checkpoint that is in the log."""
        self._stopped = self._stopped or self.wants(manifest)
        if self.phase is Phase.TRIAL and manifest.kind == "checkpoint" and manifest.run_id == self._of().run_id:
            self._done.add(manifest.checkpoint_id or 0)

    def failed(self, error: str, *, hopeless: bool) -> bool:
        """Record a failure, final if `hopeless`; return whether the job must be rolled back instead of ending."""
        if self._stopped and self.phase in (Phase.WAIT, Phase.CUT):
            self._stop_failures += _STOP_TRIES if hopeless else 1
            self._last_error = error
            return self._stop_failures >= _STOP_TRIES
        if self.phase not in (Phase.TRIAL, Phase.RELEASE):
            return False
        self.restarts += 1
        self._last_error, self._hopeless = error, self._hopeless or hopeless
        return self._of().policy.rollback

    def log_read(self, trial: Trial | None, job: Situation, *, finishing: bool) -> list[ChangeStep]:
        """Handle the log of a deployment: an earlier leader may have released the run, or it ended on trial."""
        self._log_known = True
        if self.phase not in (Phase.TRIAL, Phase.RELEASE) or trial is None or not self._of().policy.rollback:
            return []
        self._at_its_end = trial.open and finishing
        if not trial.open:
            return self.released()
        return self._release("it has reached its end", job) if finishing else []

    def decide(self, job: Situation) -> list[ChangeStep]:
        """Return the steps that are due."""
        if self.phase is None or job.step in _CLOSING:
            return []
        if self._retry_ms is not None:
            return self._retry(job) if job.now_ms >= self._retry_ms else []
        if self.phase in (Phase.WAIT, Phase.CUT):
            return self._resume_old(job) if self._stopped else self._wait(job)
        return self._judge(job) if self.phase is Phase.TRIAL else []

    def _resume_old(self, job: Situation) -> list[ChangeStep]:
        """Continue the old version as another run if the stop's savepoint cannot be written."""
        record = self._of()
        if self._stop_failures < _STOP_TRIES and job.now_ms < record.deadline_ms:
            return []
        reason = f"the savepoint at {record.savepoint} was not written: {self._last_error or 'not in time'}"
        self.record = msgspec.structs.replace(record, savepoint="")
        return self._back(job.graph, "refused", reason)

    def _wait(self, job: Situation) -> list[ChangeStep]:
        record = self._of()
        if self.phase is not Phase.WAIT or not self._log_known:
            return []
        if job.now_ms >= record.deadline_ms:
            return self._refuse(f"no checkpoint could be taken in time: {job.obstacle}")
        if job.obstacle:
            return []
        self.phase = Phase.CUT
        if record.savepoint:
            return [*job.checkpointing.request(BarrierKind.STOP, self._tag, record.savepoint, job.now_ms)]
        return [*job.checkpointing.join(self._tag, job.now_ms)]

    def _judge(self, job: Situation) -> list[ChangeStep]:
        record, healthy = self._of(), self._word
        policy, text = record.policy, "by a user's verdict"
        if healthy is None:
            healthy, text = self._seen(job)
        if healthy is None:
            return []
        if not healthy:
            return self._back(decode_graph(record.other), "rolled-back", text) if policy.rollback else self._keep(text)
        if policy.rollback:
            return self._release(text, job)
        return self._report("completed", f"healthy: {text}")

    def _seen(self, job: Situation) -> tuple[bool | None, str]:
        """Return whether it is healthy (None: undecided) and why."""
        record = self._of()
        policy = record.policy
        if self._hopeless or self.restarts > policy.max_restarts:
            failed = "once" if self.restarts == 1 else f"{self.restarts} times"
            return False, f"it failed {failed} ({policy.max_restarts} restarts allowed): {self._last_error}"
        if job.now_ms >= record.deadline_ms:
            what = (
                "no user confirmed it" if policy.confirm else f"{len(self._done)} of {policy.checkpoints} checkpoints"
            )
            return False, f"not healthy within {policy.deadline_ms / 1000:.0f} s: {what}, the job is {job.state}"
        if job.running and job.checkpointing.inputs_ended:
            return True, "it has reached its end"
        if job.running and len(self._done) >= policy.checkpoints and not policy.confirm:
            return True, f"{len(self._done)} checkpoints, {self.restarts} restarts"
        return None, ""

    # --- the ends --------------------------------------------------------------------------------------------------

    def _release(self, text: str, job: Situation) -> list[ChangeStep]:
        self.phase = Phase.RELEASE
        entry = release_entry(job.graph, job.identity, self._of().base, job.now_ms)
        return [Note("upgrade", f"healthy: {text}; releasing its output"), AppendManifest(RELEASE_TAG, entry)]

    def released(self) -> list[ChangeStep]:
        """Handle the release that is in the log."""
        if self.phase not in (Phase.TRIAL, Phase.RELEASE):
            return []
        again: list[ChangeStep] = [ReadLog()] if self._at_its_end else []
        self._at_its_end = False
        return [*self._report("completed", "released"), *again]

    def not_released(self, reason: str, now_ms: int) -> list[ChangeStep]:
        """Repeat the release, whose append failed or has an unknown outcome."""
        self._retry_ms = now_ms + _RETRY_MS
        return [Note("upgrade", f"release failed, retrying: {reason}")]

    def _report(self, phase: UpgradePhase, text: str, error: str = "") -> list[ChangeStep]:
        """Finish the upgrade with the running version kept; report and persist that."""
        self.phase, self._retry_ms = Phase.REPORT, None
        self.record = msgspec.structs.replace(self._of(), phase=phase, other=b"", reason=error)
        self._told = OperationEnded(self.record.token, uri=self.record.savepoint, error=error)
        return [Note("upgrade", f"{phase}: {text}"), *self._send(RecordUpgrade(self.record))]

    def _refuse(self, reason: str) -> list[ChangeStep]:
        return self._report("refused", reason, f"the old version continues: {reason}")

    def _keep(self, reason: str) -> list[ChangeStep]:
        return self._report("kept", reason, f"the new version is unhealthy but kept, as requested: {reason}")

    def _back(self, old: JobGraph, phase: UpgradePhase, reason: str) -> list[ChangeStep]:
        self.phase = Phase.BACK
        record = self._of()
        self.record = msgspec.structs.replace(
            record, phase=phase, other=b"", reason=f"the old version is running again: {reason}"
        )
        command = RecordUpgrade(self.record, record.back_run_id, old)
        self._send(command)
        return [Note("upgrade", f"{phase}: {reason}"), Leave("the upgrade is rolled back", command)]

    def closed(self, reason: str) -> list[ChangeStep]:
        """End the upgrade with the job; fail its request if it is still open."""
        open_ended = self.phase not in (None, Phase.REPORT)
        if self._retry_ms is not None:
            open_ended = open_ended or self._told is not None
            self._command = self._told = None  # it is not being written, and will not be
        self.phase, self._retry_ms = None, None
        return [OperationEnded(self._of().token, error=reason)] if open_ended else []

    # --- records ---------------------------------------------------------------------------------------------------

    @property
    def recording(self) -> bool:
        """Whether a record is being written; the answer may change the job's definition."""
        return self._command is not None and self._retry_ms is None

    @property
    def unrecorded(self) -> bool:
        """Whether a record is being written or waits for a retry."""
        return self._command is not None

    def recorded(self, job: Situation) -> list[ChangeStep]:
        """Handle the durable record."""
        command, self._command = self._command, None
        told, self._told = self._told, None
        if command is None:
            return []
        ended = self.phase is None
        if self.phase is Phase.INTENT:
            self.phase = Phase.WAIT
        elif self.phase is Phase.SWITCH:
            self.phase = Phase.TRIAL
        elif self.phase in (Phase.BACK, Phase.REPORT):
            self.phase = None
        if command.graph is None:
            return [told] if told is not None else []
        upgrade, old = command.upgrade, job.identity
        allowed = upgrade.policy.allow_non_restored_state if command.trial is not None else ()
        own = JobIdentity(old.job_id, command.run_id, old.generation, allow_non_restored_state=allowed)
        steps: list[ChangeStep] = [Become(command.graph, own)]
        if command.trial is None and not ended:
            steps.append(OperationEnded(upgrade.token, uri=upgrade.savepoint, error=upgrade.reason))
        return steps

    def not_recorded(self, reason: str, now_ms: int) -> list[ChangeStep]:
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
        waits = (self.phase is Phase.WAIT and self._log_known) or (self.phase is Phase.CUT and self._stopped)
        return self._of().deadline_ms if waits or self.phase is Phase.TRIAL else None

    @property
    def checkpoints(self) -> int:
        """Number of checkpoints the new version has completed on trial."""
        return len(self._done)

    def _retry(self, job: Situation) -> list[ChangeStep]:
        self._retry_ms = None
        if self.phase is Phase.RELEASE:
            return self._release("retried", job)
        return [self._command] if self._command is not None else []

    def _send(self, command: RecordUpgrade) -> list[ChangeStep]:
        self._command = command
        return [command]

    def _of(self) -> UpgradeRecord:
        assert self.record is not None  # noqa: S101 - asked while there is one
        return self.record
