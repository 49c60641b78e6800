"""What a job is busy with, and what went wrong with it: small values of `jobmanager.job_master`."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Step(enum.Enum):
    """What the job is busy with."""

    IDLE = "idle"
    #: Old workers leave, or the restart's delay runs.
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    #: Old workers leave, the new parallelism is being recorded.
    RESCALING = "rescaling"
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
