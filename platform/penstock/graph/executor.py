"""How a job graph is run: the protocol between `Environment` and whatever executes, and what comes back.

Implemented by `penstock.client.executors`; called by `penstock.api.environment`, which imports neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.graph.job_graph import JobGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended."""

    job_id: str
    name: str
    #: FINISHED or CANCELED; a job that FAILED raises `JobFailedError` instead.
    state: str
    duration_ms: float
    checkpoints: int = 0
    restarts: int = 0
    #: Why it last restarted; empty without a restart.
    last_failure: str = ""
    #: Since its last start: rows by the uid of the source or sink.
    rows_read: dict[str, int] = field(default_factory=dict)
    rows_written: dict[str, int] = field(default_factory=dict)
    #: Records that could not be decoded, by the uid of the source; late rows that were dropped, by operators.
    bad_records: dict[str, int] = field(default_factory=dict)
    late_rows: dict[str, int] = field(default_factory=dict)
    #: What is odd about its input, a sentence each.
    warnings: tuple[str, ...] = ()
    #: The checkpoint or savepoint it has begun with.
    restored_checkpoint: int | None = None

    @property
    def nothing_left(self) -> bool:
        """Whether it went on from a checkpoint after which there was no input."""
        ended = self.state == "FINISHED" and not self.restarts
        return ended and self.restored_checkpoint is not None and not sum(self.rows_read.values())


class JobHandle(Protocol):
    """A submitted job."""

    @property
    def job_id(self) -> str:
        """32 hex digits."""

    @property
    def name(self) -> str:
        """The name it was submitted under."""

    def status(self) -> str:
        """Return the job's state, Flink's names: CREATED, RUNNING, RESTARTING, FINISHED, CANCELED, FAILED..."""

    def wait(self, *, timeout_ms: float | None = None, on_poll: Callable[[dict[str, Any]], None] | None = None) -> str:
        """Wait until the job has ended; return its state.

        Raises:
            JobFailedError: the job ended FAILED.
            PenstockError: `timeout_ms` passed.
        """

    def cancel(self) -> None:
        """Cancel; checkpoints are retained."""

    def stop(self, *, drain: bool = False, target: str | None = None, timeout_ms: float = 300_000) -> str:
        """Stop with a savepoint and return its URI."""

    def savepoint(self, target: str | None = None, *, timeout_ms: float = 300_000) -> str:
        """Take a savepoint of the running job and return its URI."""


class JobExecutor(Protocol):
    """Runs job graphs: an embedded cluster or a remote one."""

    def execute(self, graph: JobGraph, *, enough: Callable[[], bool] | None = None) -> JobResult:
        """Run the job and wait for its end; cancel it as soon as `enough` says so.

        Raises:
            JobFailedError: the job ended FAILED.
        """

    def submit(self, graph: JobGraph) -> JobHandle:
        """Start the job and return at once."""
