"""The states of a job with Flink's names, and the allowed transitions (a test compares the lines with the table).

::

    CREATED    -> RECONCILING RUNNING RESTARTING FAILING CANCELLING FINISHED
    RECONCILING -> RUNNING RESTARTING FAILING CANCELLING FINISHED
    RUNNING    -> RESTARTING FAILING CANCELLING FINISHED
    RESTARTING -> RUNNING FAILING CANCELLING FINISHED
    FAILING    -> FAILED
    CANCELLING -> CANCELED
    FINISHED   -> .
    CANCELED   -> .
    FAILED     -> .

CREATED, RECONCILING and RESTARTING lead to FINISHED if the job's final checkpoint was durable and only its publication
was left.
Used by `jobmanager.master.job_master`.
"""

from __future__ import annotations

import enum


class JobStatus(enum.StrEnum):
    """Flink's job states, as far as they are used here."""

    CREATED = "CREATED"
    #: A new leader asks the workers of the leader before it what they run.
    RECONCILING = "RECONCILING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FAILING = "FAILING"
    CANCELLING = "CANCELLING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def terminal(self) -> bool:
        """Whether no other state can follow."""
        return not TRANSITIONS[self]


_S = JobStatus
TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    _S.CREATED: frozenset({_S.RECONCILING, _S.RUNNING, _S.RESTARTING, _S.FAILING, _S.CANCELLING, _S.FINISHED}),
    _S.RECONCILING: frozenset({_S.RUNNING, _S.RESTARTING, _S.FAILING, _S.CANCELLING, _S.FINISHED}),
    _S.RUNNING: frozenset({_S.RESTARTING, _S.FAILING, _S.CANCELLING, _S.FINISHED}),
    _S.RESTARTING: frozenset({_S.RUNNING, _S.FAILING, _S.CANCELLING, _S.FINISHED}),
    _S.FAILING: frozenset({_S.FAILED}),
    _S.CANCELLING: frozenset({_S.CANCELED}),
    _S.FINISHED: frozenset(),
    _S.CANCELED: frozenset(),
    _S.FAILED: frozenset(),
}


class StatusMachine:
    """The current state, and when each state was last entered."""

    def __init__(self, now_ms: int) -> None:
        """Begin in CREATED."""
        self.state = JobStatus.CREATED
        self.entered_ms: dict[JobStatus, int] = {JobStatus.CREATED: now_ms}

    def to(self, state: JobStatus, now_ms: int) -> bool:
        """Switch to `state`; return False, without a change, if the transition is not allowed."""
        if state not in TRANSITIONS[self.state]:
            return False
        self.state = state
        self.entered_ms[state] = now_ms
        return True
