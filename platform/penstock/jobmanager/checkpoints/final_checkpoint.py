"""The final checkpoint of a job, from its log entry to the end of the job; a value of `checkpoints.checkpointing`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.manifest import Manifest
from penstock.jobmanager.messages.commands import OperationEnded

#: A copy may be many times larger than a checkpoint's upload; a worker reports a failed copy at once.
_COPY_TIMEOUT_MS = 6 * 3_600_000


@dataclass(slots=True)
class LastCut:
    """The final checkpoint in the log: its output is published, then it is copied, then the tasks close."""

    manifest: Manifest
    #: Where its copy is written; empty for the end of a bounded job.
    uri: str
    request_id: str
    deadline_ms: int
    #: The copy is being written.
    writing: bool = False
    saved: bool = False

    @property
    def answer(self) -> OperationEnded:
        """The reply to the stop request."""
        return OperationEnded(self.request_id, self.uri, self.manifest.checkpoint_id, kind="stop")

    def late(self, now_ms: int) -> str:
        """Return what was not done in time, or an empty string."""
        if now_ms < self.deadline_ms:
            return ""
        return "its savepoint was not copied" if self.writing else "the last output was not published"

    def copy(self) -> str:
        """Begin the copy, once all output is published; return its id."""
        self.writing, self.deadline_ms = True, self.deadline_ms + _COPY_TIMEOUT_MS
        return self.request_id or f"stop-{self.manifest.sequence}"
