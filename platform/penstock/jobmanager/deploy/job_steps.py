"""The steps of a job master, and the allowed transitions (a test compares the lines with the table).

::

    IDLE        -> RECONCILING WAITING CANCELLING
    RECONCILING -> STARTING WAITING CANCELLING CLOSING
    WAITING     -> STARTING CHANGING CANCELLING
    STARTING    -> RUNNING WAITING CHANGING CANCELLING CLOSING
    RUNNING     -> WAITING CHANGING FINISHING CANCELLING CLOSING
    CHANGING    -> WAITING CHANGING CANCELLING
    FINISHING   -> CHANGING CLOSING
    CANCELLING  -> CLOSING
    CLOSING     -> DONE
    DONE        -> .

Every start begins in WAITING. A failure leads there, or to CLOSING if the job must not restart. STARTING and
RECONCILING lead to CLOSING also if an earlier leader has ended the run. FINISHING leads to CHANGING if the last
checkpoint was that of an upgrade too. CHANGING leads to itself if the old version takes over again before the new one
has started.
Used by `jobmanager.master.job_master`. `deploy.job_status` has the states that users see.
"""

from __future__ import annotations

import enum


class Step(enum.Enum):
    """The phase that the job master is in."""

    IDLE = "idle"
    #: Workers of an earlier leader are asked what they run.
    RECONCILING = "reconciling"
    #: Old workers are exiting, the restart delay is running, or slots are missing.
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    #: Old workers are exiting, and the new definition of the job is being recorded.
    CHANGING = "changing"
    #: All output is published: tasks are closing.
    FINISHING = "finishing"
    CANCELLING = "cancelling"
    #: The `end` entry is written, workers are exiting.
    CLOSING = "closing"
    DONE = "done"


_S = Step
TRANSITIONS: dict[Step, frozenset[Step]] = {
    _S.IDLE: frozenset({_S.RECONCILING, _S.WAITING, _S.CANCELLING}),
    _S.RECONCILING: frozenset({_S.STARTING, _S.WAITING, _S.CANCELLING, _S.CLOSING}),
    _S.WAITING: frozenset({_S.STARTING, _S.CHANGING, _S.CANCELLING}),
    _S.STARTING: frozenset({_S.RUNNING, _S.WAITING, _S.CHANGING, _S.CANCELLING, _S.CLOSING}),
    _S.RUNNING: frozenset({_S.WAITING, _S.CHANGING, _S.FINISHING, _S.CANCELLING, _S.CLOSING}),
    _S.CHANGING: frozenset({_S.WAITING, _S.CHANGING, _S.CANCELLING}),
    _S.FINISHING: frozenset({_S.CHANGING, _S.CLOSING}),
    _S.CANCELLING: frozenset({_S.CLOSING}),
    _S.CLOSING: frozenset({_S.DONE}),
    _S.DONE: frozenset(),
}


class StepMachine:
    """The present step, and the time until which it may last."""

    def __init__(self) -> None:
        """Begin in IDLE."""
        self._step = Step.IDLE
        self._deadline_ms: int | None = None

    @property
    def step(self) -> Step:
        """The present step."""
        return self._step

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the step is due; None if it lasts until an event."""
        return self._deadline_ms

    def to(self, step: Step, deadline_ms: int | None = None) -> None:
        """Switch to `step`, which is due at `deadline_ms`.

        Raises:
            ValueError: the transition is not allowed (a bug of the caller).
        """
        if step not in TRANSITIONS[self._step]:
            msg = f"a job in step {self._step.name} cannot go to {step.name}"
            raise ValueError(msg)
        self._step, self._deadline_ms = step, deadline_ms

    def postpone(self, deadline_ms: int) -> None:
        """Let the present step last until `deadline_ms`."""
        self._deadline_ms = deadline_ms

    def is_due(self, now_ms: int) -> bool:
        """Return whether the deadline has passed."""
        return self._deadline_ms is not None and now_ms >= self._deadline_ms
