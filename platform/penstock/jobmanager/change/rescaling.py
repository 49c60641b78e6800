"""One rescale of a running job, from the request to the first start with the new parallelism; pure.

A member of `jobmanager.master.job_master`, which takes the steps. The order is fixed: slots granted -> a checkpoint is
in the log -> its state fits -> the workers are killed, the new run is sealed in the log and recorded -> the workers
have exited -> deploy. A failure before the kill leaves the job unchanged. Once the change is recorded, any leader
completes it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.checkpoint.manifest_log import Manifest
from penstock.core.errors import PenstockError
from penstock.graph.job_graph import JobGraph, required_slots
from penstock.graph.restore_plan import assign_state
from penstock.jobmanager.change.steps import ChangeStep, Note
from penstock.jobmanager.checkpoints.checkpointing import Checkpointing
from penstock.jobmanager.deploy.job_log import JobIdentity
from penstock.jobmanager.messages.commands import Command, OperationEnded, RecordRescale, ReleaseSlots, RequestSlots
from penstock.jobmanager.messages.events import RescaleRequested
from penstock.jobmanager.messages.placement import Slot

_LATER = "ask again when it has ended"
_REMOVE = "remove the cause, then ask again"


class RescalePhase(enum.Enum):
    """The step that a rescale waits for."""

    SLOTS = "slots"
    CHECKPOINT = "checkpoint"
    #: The checkpoint is complete: the workers are to be killed.
    DECIDED = "decided"
    RECORD = "record"
    START = "start"


@dataclass(slots=True)
class _Rescale:
    request: RescaleRequested
    phase: RescalePhase
    #: Slots in addition to those the job holds.
    extra: tuple[Slot, ...] = ()


class Rescaling:
    """The rescale in progress, if any."""

    def __init__(self) -> None:
        """Start without a rescale."""
        self._current: _Rescale | None = None
        #: Whether the last refusal was caused by a temporary obstacle.
        self.retry_soon = False

    @property
    def phase(self) -> RescalePhase | None:
        """The step that the rescale waits for; None without a rescale."""
        return self._current.phase if self._current is not None else None

    @property
    def _tag(self) -> str:
        """The request id of the rescale's checkpoint."""
        return f"rescale-{self._current.request.request_id}" if self._current is not None else ""

    def requested(self, request: RescaleRequested, graph: JobGraph, held: int, obstacle: str) -> list[ChangeStep]:
        """Start a rescale or refuse it; `held` is the number of slots the job holds, `obstacle` a reason against it."""
        current = self._current
        if current is not None and current.request.request_id == request.request_id:
            return []
        if current is not None:
            obstacle = "another rescale of the job is under way"
        elif not obstacle and described(request.graph) == described(graph):
            return [OperationEnded(request.request_id)]
        if obstacle:
            self.retry_soon = True
            text = _with_hint(obstacle, _LATER)
            return [Note("rescale", f"refused: {text}"), OperationEnded(request.request_id, error=text)]
        self._current = _Rescale(request, RescalePhase.SLOTS)
        missing = required_slots(request.graph) - held
        return [RequestSlots(missing, wait=False)] if missing > 0 else []

    def slots_refused(self, reason: str) -> list[ChangeStep]:
        """Abandon the rescale: slots are missing."""
        return self.abandon(_with_hint(f"no slots: {reason}", "start another TaskManager, or ask for less"))

    def slots_granted(self, slots: Sequence[Slot]) -> bool:
        """Keep granted slots if the rescale waits for them; return whether it did."""
        current = self._current
        if current is None or current.phase is not RescalePhase.SLOTS:
            return False
        current.extra += tuple(slots)
        return True

    def begin_checkpoint(self, held: int) -> str:
        """Return the request id of the checkpoint to take now, or an empty string."""
        current = self._current
        if current is None or current.phase is not RescalePhase.SLOTS:
            return ""
        if held + len(current.extra) < required_slots(current.request.graph):
            return ""
        current.phase = RescalePhase.CHECKPOINT
        return self._tag

    def checkpoint_answered(
        self, commands: list[Command], checkpointing: Checkpointing, *, running: bool
    ) -> tuple[list[Command], list[ChangeStep]]:
        """Take the answer to its checkpoint out of the commands; return the others, and the steps that follow.

        In phase DECIDED the workers may be killed and `record` executed.
        """
        current = self._current
        mine = next((c for c in commands if isinstance(c, OperationEnded) and c.request_id == self._tag), None)
        if current is None or mine is None:
            return commands, []
        others = [c for c in commands if c is not mine]
        passing = checkpointing.busy or ("" if running else "the job is no longer running")
        self.retry_soon = bool(passing)
        if mine.error:
            return others, self.abandon(_with_hint(mine.error, _REMOVE))
        if passing:
            return others, self.abandon(_with_hint(passing, _LATER))
        if reason := _state_mismatch(current.request.graph, checkpointing.newest):
            return others, self.abandon(reason)
        current.phase = RescalePhase.DECIDED
        decided = f"from checkpoint {mine.checkpoint_id}: {described(current.request.graph)}"
        return others, [Note("rescale", decided)]

    def record(self) -> RecordRescale:
        """Return the command that makes the rescale durable."""
        assert self._current is not None  # noqa: S101 - it was decided
        self._current.phase = RescalePhase.RECORD
        request = self._current.request
        return RecordRescale(request.request_id, request.run_id, request.graph)

    def recorded(self, identity: JobIdentity) -> tuple[JobGraph, JobIdentity, tuple[Slot, ...]]:
        """Switch to the new run; return its graph, its identity and the additional slots."""
        current = self._current
        assert current is not None  # noqa: S101 - answers `record`
        current.phase = RescalePhase.START
        # Start options of the previous run do not apply to the new one.
        own = JobIdentity(identity.job_id, current.request.run_id, identity.generation)
        extra, current.extra = current.extra, ()
        return current.request.graph, own, extra

    def not_recorded(self, reason: str) -> list[ChangeStep]:
        """Abandon the rescale: its new run could not be recorded."""
        return self.abandon(_with_hint(f"it could not be recorded: {reason}", _REMOVE))

    def abandon(self, reason: str) -> list[ChangeStep]:
        """Abandon the rescale: release its slots and fail the request."""
        current, self._current = self._current, None
        if current is None:
            return []
        release: list[Command] = [ReleaseSlots(current.extra)] if current.extra else []
        ended = OperationEnded(current.request.request_id, error=reason)
        return [Note("rescale", f"abandoned: {reason}"), *release, ended]

    def halted(self, reason: str) -> list[ChangeStep]:
        """Abandon the rescale if the deployment ended before the checkpoint was complete."""
        return self.abandon(reason) if self.phase in (RescalePhase.SLOTS, RescalePhase.CHECKPOINT) else []

    def taskmanager_lost(self, taskmanager_id: str) -> list[ChangeStep]:
        """Drop the slots of a lost TaskManager that were kept for the rescale."""
        current = self._current
        if current is None or not any(s.taskmanager_id == taskmanager_id for s in current.extra):
            return []
        current.extra = tuple(s for s in current.extra if s.taskmanager_id != taskmanager_id)
        return self.halted(f"TaskManager {taskmanager_id} with slots for the rescale is lost")

    def running(self) -> list[Command]:
        """Complete the rescale if the job now runs with the new parallelism."""
        current = self._current
        if current is None or current.phase is not RescalePhase.START:
            return []
        self._current = None
        return [OperationEnded(current.request.request_id)]


def described(graph: JobGraph) -> str:
    """Return the parallelism of all vertices in one line."""
    return ", ".join(f"{vertex.name} x{vertex.parallelism}" for vertex in graph.vertices)


def _with_hint(reason: str, hint: str) -> str:
    """Return the reason with a way out, unless it names one."""
    return reason if reason.endswith(")") else f"{reason} ({hint})"


def _state_mismatch(graph: JobGraph, manifest: Manifest) -> str:
    """Return why a checkpoint's state cannot be assigned to the new subtasks, or an empty string."""
    try:
        assign_state(graph, manifest.subtasks, checkpoint_id=manifest.checkpoint_id)
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return ""
