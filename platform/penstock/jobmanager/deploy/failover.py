"""Classifies failures: whether a restart can help; pure.

Used by `jobmanager.master.job_master`, which restarts the whole job on any failure (decision 3), and by
`jobmanager.deploy.restart`.
"""

from __future__ import annotations

import enum

#: Errors that recur at every attempt; the error text starts with the name.
_PERMANENT = (
    "UsageError",
    "GraphError",
    "BadRecordError",
    "FunctionLoadError",
    "StateMismatchError",
    "SnapshotDamagedError",
    "LostTransactionError",
    "UndecidedOutputError",
    "SinkOverflowError",
    "RecordTooLargeError",
)
#: Errors raised by a user function, or about its return value.
_USER_CODE = ("UserFunctionError", "ColumnError")
#: Error of a task that lost the connection to another worker.
_CONNECTION_LOST = "ConnectionLostError"


class Cause(enum.Enum):
    """The class of a failure."""

    #: A process, machine or external system failed; it may be available again.
    TRANSIENT = "transient"
    #: A user function raised. The same input raises again, unless the function depends on an external system.
    USER_CODE = "user code"
    #: A restart cannot help.
    PERMANENT = "permanent"

    @staticmethod
    def of(*, permanent: bool) -> Cause:
        """Return PERMANENT or TRANSIENT."""
        return Cause.PERMANENT if permanent else Cause.TRANSIENT


def cause_of(error: str) -> Cause:
    """Return the cause for the error class that the text names."""
    name = error.lstrip().partition(":")[0].strip().rpartition(".")[2]
    if name in _PERMANENT:
        return Cause.PERMANENT
    return Cause.USER_CODE if name in _USER_CODE else Cause.TRANSIENT


def is_lost_connection(error: str, worker_id: str) -> bool:
    """Return whether an error text reports a lost connection to this worker."""
    return error.startswith(_CONNECTION_LOST) and f"worker {worker_id} " in error
