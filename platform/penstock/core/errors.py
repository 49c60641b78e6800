"""Errors that a user can act on: one sentence that names the place, and a hint that names a solution.

The command line prints `PenstockError` as one line and exits 1. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of every error that is meant for a user; `str(error)` is one line."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Take the message, which names the place and the fault, and a hint, which names a solution."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return message and hint in one line."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(PenstockError):
    """The job or the command is wrong before anything ran; exit code 2."""


class GraphError(UsageError):
    """The stream graph cannot be built: unknown column, missing uid, wrong type."""


class ConnectorError(PenstockError):
    """An outside system refused, is unreachable, or holds data that cannot be read."""


class BadRecordError(ConnectorError):
    """A record could not be decoded, and the source is configured to fail on it."""


class LostTransactionError(ConnectorError):
    """Output that had to be published can no longer be; names the records, the transaction and the checkpoint."""


class UndecidedOutputError(ConnectorError):
    """It cannot be determined whether pending output was published: its marker has expired."""


class StorageError(PenstockError):
    """The checkpoint store cannot be written or read."""


class SnapshotDamagedError(StorageError):
    """A file of a snapshot is missing or its checksum is wrong; names the file."""


class LeadershipLostError(PenstockError):
    """A leader of a newer generation has taken over; the caller must stop and delete nothing."""


class JobIdentityError(PenstockError):
    """Another process runs a job under the same checkpoint root and name; names the holder."""


class StateMismatchError(PenstockError):
    """The snapshot's state does not fit the job's graph."""


class JobFailedError(PenstockError):
    """The job ended FAILED; carries the cause of the last failure."""


class SavepointInUseError(UsageError):
    """A job still reads from the savepoint that a user wants to remove; names the job's folder."""


class UnansweredError(PenstockError):
    """The request was accepted and may take effect, but was not durable in time."""


class NotFoundError(PenstockError):
    """No job, checkpoint or savepoint has that id."""
