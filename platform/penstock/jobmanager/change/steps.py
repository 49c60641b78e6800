"""A job's failures, and the decisions that `jobmanager.master.job_master` takes itself: values without logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.checkpoints.checkpointing import CheckpointCommand
from penstock.jobmanager.deploy.failover import Cause
from penstock.jobmanager.deploy.job_log import JobIdentity
from penstock.jobmanager.messages.commands import Command
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
class Failed:
    """Tells the job master to restart or end the job; the cause decides."""

    failure: Failure
    cause: Cause


@dataclass(frozen=True, slots=True)
class Note:
    """Adds an entry to the event log."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """Keep these metrics and texts of subtasks, by `<vertex>/<subtask>`."""

    tasks: Mapping[str, dict[str, float]]
    texts: Mapping[str, dict[str, str]]


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
    #: Additional slots that now belong to the job.
    extra: tuple[Slot, ...] = ()


ChangeStep = CheckpointCommand | Failed | Note | StoreMetrics | StopForChange | AdoptDefinition
