"""What a failure means: whether restarting can help at all; pure.

Used by `jobmanager.job_master`, which restarts the whole job on any failure (decision 3).
"""

from __future__ import annotations

#: Errors that come back at every attempt: they end the job instead of restarting it. Named at the front of the text.
FINAL_ERRORS = (
    "UsageError",
    "GraphError",
    "BadRecordError",
    "StateMismatchError",
    "SnapshotDamagedError",
    "LostTransactionError",
    "UndecidedOutputError",
    "SinkOverflowError",
    "RecordTooLargeError",
)


def is_final(error: str) -> bool:
    """Whether a restart cannot help."""
    name = error.lstrip().partition(":")[0].strip().rpartition(".")[2]
    return name in FINAL_ERRORS
