"""Errors a user can act on: one sentence that names the place, and a hint that names the way out.

The command line prints `PenstockError` as one line and exits 1; everything else is a fault of ours and keeps its
traceback.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of every error that is meant for a user; `str(error)` is one line."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        """`message` names the place and the fault; `hint` says what to do about it."""
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
    """An outside system refused, is unreachable, or holds something we cannot read."""


class BadRecordError(ConnectorError):
    """A record could not be decoded and the source was told to fail on it."""


class LostTransactionError(ConnectorError):
    """Output that had to be published can no longer be: names the records, the transaction and the checkpoint."""


class UndecidedOutputError(ConnectorError):
    """Whether pending output was published cannot be known (its marker expired)."""


class StorageError(PenstockError):
    """The checkpoint store cannot be written or read."""


class SnapshotDamagedError(StorageError):
    """A file of a snapshot is missing or its checksum is wrong; names the file."""


class LeadershipLostError(PenstockError):
    """Someone with a newer generation has taken over; the caller must stop and delete nothing."""


class JobIdentityError(PenstockError):
    """Another process runs a job under the same checkpoint root and name; names the holder."""


class StateMismatchError(PenstockError):
    """The snapshot's state does not fit the job's graph."""


class JobFailedError(PenstockError):
    """The job ended FAILED; carries the cause of the last failure."""


class SavepointInUseError(UsageError):
    """A job still reads from the savepoint that was to be removed; names the job's folder."""


class UnansweredError(PenstockError):
    """What was asked for was taken and may come about, but was not durable in time."""


class NotFoundError(PenstockError):
    """No job, checkpoint or savepoint has that id."""
