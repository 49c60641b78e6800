"""Steps of a job, its failures and its pending transitions: values of `jobmanager.master.job_master`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.checkpoints.checkpointing import CheckpointCommand
from penstock.jobmanager.deploy.failover import Cause
from penstock.jobmanager.deploy.restore_decision import JobIdentity
from penstock.jobmanager.messages.commands import Command
from penstock.jobmanager.messages.placement import Slot


class Step(enum.Enum):
    """What the job is busy with."""

    IDLE = "idle"
    #: Old workers leave, or the restart's delay runs.
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    #: Old workers leave, what the job is to be from here on is being recorded.
    CHANGING = "changing"
    #: Everything is published: tasks close.
    FINISHING = "finishing"
    CANCELLING = "cancelling"
    #: The `end` entry is written, workers leave.
    CLOSING = "closing"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of the job."""

    at_ms: int
    error: str
    detail: str = ""
    task: str = ""
    worker_id: str = ""
    #: Where that worker was, and its log is.
    taskmanager_id: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Restart the job, or end it; the cause decides."""

    failure: Failure
    cause: Cause


@dataclass(frozen=True, slots=True)
class Note:
    """Tell it in the story."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Keep these metrics of subtasks, by `<vertex>/<subtask>`."""

    tasks: Mapping[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Leave:
    """Kill the workers and have recorded what the job is from here on."""

    reason: str
    record: Command


@dataclass(frozen=True, slots=True)
class Become:
    """It is recorded: the job is this now."""

    graph: JobGraph
    identity: JobIdentity
    #: Slots that are its own besides those it has.
    extra: tuple[Slot, ...] = ()


ChangeStep = CheckpointCommand | Failed | Note | Measured | Leave | Become
