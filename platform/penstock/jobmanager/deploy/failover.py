"""Classifies failures: whether a restart can help; pure.

Used by `jobmanager.master.job_master`, which restarts the whole job on any failure (decision 3), and by
`jobmanager.deploy.restart`.
"""

from __future__ import annotations

import enum

#: Errors that come back at every attempt. Named at the front of the text.
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
#: Errors of a function of the user's, or of what it returned.
_USER_CODE = ("UserFunctionError", "ColumnError")
#: What a task says whose connection to another worker is lost.
_CONNECTION_LOST = "ConnectionLostError"


class Cause(enum.Enum):
    """The class of a failure."""

    #: A process, a machine, an outside system: it may be there again.
    TRANSIENT = "transient"
    #: A function of the user's raised: the same input raises again, unless the function asks an outside system.
    USER_CODE = "user code"
    #: A restart cannot help.
    PERMANENT = "permanent"

    @staticmethod
    def of(*, permanent: bool) -> Cause:
        """Return the cause of a failure that is known to be permanent, or not."""
        return Cause.PERMANENT if permanent else Cause.TRANSIENT


def cause_of(error: str) -> Cause:
    """Return the cause that the text of an error names."""
    name = error.lstrip().partition(":")[0].strip().rpartition(".")[2]
    if name in _PERMANENT:
        return Cause.PERMANENT
    return Cause.USER_CODE if name in _USER_CODE else Cause.TRANSIENT


def is_lost_connection(error: str, worker_id: str) -> bool:
    """Whether the text of an error says that the connection to this worker is lost."""
    return error.startswith(_CONNECTION_LOST) and f"worker {worker_id} " in error
