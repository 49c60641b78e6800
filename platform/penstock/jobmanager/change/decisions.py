"""Values between the job master and its parts: failures, decisions that the master executes, and a job's state."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.checkpoints.checkpointing import CheckpointCommand, Checkpointing
from penstock.jobmanager.deploy.deployment import Worker
from penstock.jobmanager.deploy.job_log import JobIdentity
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages.commands import RESUME_HINT, Command
from penstock.jobmanager.messages.placement import Slot


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of the job."""

    at_ms: int
    error: str
    detail: str = ""
    task: str = ""
    worker_id: str = ""
    #: The TaskManager of that worker, which has its log.
    taskmanager_id: str = ""
    #: The run that failed.
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Adds an entry to the event log."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class StopForChange:
    """Kills the workers and records the new definition of the job."""

    reason: str
    record: Command


@dataclass(frozen=True, slots=True)
class AdoptDefinition:
    """The new definition is durable: the job switches to it."""

    graph: JobGraph
    identity: JobIdentity
    #: All slots of the job, in the order of the subtasks; it releases those that it does not need.
    slots: tuple[Slot, ...]
    #: Workers that have started in the slots, with state loaded.
    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class PauseCompactions:
    """Lets the running subtasks merge no segments, or continue to."""

    paused: bool


@dataclass(frozen=True, slots=True)
class KillPrepared:
    """Kills workers that were to be the job's next ones."""

    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class PostponeStart:
    """The job that is to start waits until this time, or for the next event."""

    at_ms: int


ChangeDecision = (
    CheckpointCommand | Note | StopForChange | AdoptDefinition | PostponeStart | PauseCompactions | KillPrepared
)


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """The job's current values that matter for a change."""

    graph: JobGraph
    identity: JobIdentity
    step: Step
    #: Flink's state, for messages.
    state: str
    #: Whether all subtasks run.
    running: bool
    #: The slots it holds.
    held: tuple[Slot, ...]
    checkpointing: Checkpointing
    now_ms: int
    #: The number of the next deployment.
    next_attempt: int
    #: The call that has lasted longest, as text; empty without a slow call.
    slow_call: str = ""

    @property
    def obstacle(self) -> str:
        """Why the job cannot be checkpointed and replaced now; empty if it can."""
        checkpointing = self.checkpointing
        return (
            checkpointing.busy or checkpointing.savepoint_obstacle
            if self.running
            else f"the job is {self.state} {RESUME_HINT}"
        )
