"""The last checkpoint of a job, from its entry in the log to the end; a value of `checkpoints.checkpointing`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.manifest import Manifest
from penstock.jobmanager.messages.commands import OperationEnded

#: A copy may be many times larger than what a checkpoint writes; a worker that fails at it says so.
_COPY_TIMEOUT_MS = 6 * 3_600_000


@dataclass(slots=True)
class LastCut:
    """It is in the log: first its output is published, then it is copied, then the tasks close."""

    manifest: Manifest
    #: Where its copy goes; empty for the end of a bounded job.
    uri: str
    request_id: str
    deadline_ms: int
    #: Its copy is being written.
    writing: bool = False
    saved: bool = False

    @property
    def answer(self) -> OperationEnded:
        """What whoever asked for it is told at the end."""
        return OperationEnded(self.request_id, self.uri, self.manifest.checkpoint_id, kind="stop")

    def late(self, now_ms: int) -> str:
        """Return what was not done in time, or nothing."""
        if now_ms < self.deadline_ms:
            return ""
        return "its savepoint was not copied" if self.writing else "the last output was not published"

    def copy(self) -> str:
        """All is published: return the id of its copy, which is to be written now."""
        self.writing, self.deadline_ms = True, self.deadline_ms + _COPY_TIMEOUT_MS
        return self.request_id or f"stop-{self.manifest.sequence}"
