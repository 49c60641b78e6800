"""The protocol between `Environment` and the component that runs a job graph, and its result types.

Implemented by `penstock.client.executors`; called by `penstock.api.environment`, which imports neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.graph.job_graph import JobGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of a job."""

    job_id: str
    name: str
    #: FINISHED or CANCELED; a job that FAILED raises `JobFailedError` instead.
    state: str
    duration_ms: float
    checkpoints: int = 0
    restarts: int = 0
    #: The cause of its last restart; empty without a restart.
    last_failure: str = ""
    #: How often its JobManager was replaced; the counts begin at the last time.
    jobmanagers_replaced: int = 0
    #: Rows by the uid of the source or sink; rows that were read again after a restart count once.
    rows_read: dict[str, int] = field(default_factory=dict)
    rows_written: dict[str, int] = field(default_factory=dict)
    #: Undecodable records by the uid of the source; dropped late rows by operator.
    bad_records: dict[str, int] = field(default_factory=dict)
    late_rows: dict[str, int] = field(default_factory=dict)
    #: The first bad record by the uid of the source: place, reason, value.
    bad_record_examples: dict[str, str] = field(default_factory=dict)
    #: Peculiarities of its input, a sentence each.
    warnings: tuple[str, ...] = ()
    #: Input that it does not read because it is newer than its list of files, a sentence each source.
    unread: tuple[str, ...] = ()
    #: The checkpoint or savepoint it started from.
    restored_checkpoint: int | None = None
    #: The same as text; empty for an empty start.
    resumed_from: str = ""
    #: The slots that a submitted job waits for; empty if it has them.
    waits_for: str = ""

    @property
    def nothing_left(self) -> bool:
        """Return whether it resumed from a checkpoint after which there was no input."""
        ended = self.state == "FINISHED" and not self.restarts
        return ended and self.restored_checkpoint is not None and not sum(self.rows_read.values())


class JobHandle(Protocol):
    """A submitted job."""

    @property
    def job_id(self) -> str:
        """32 hex digits."""

    @property
    def name(self) -> str:
        """Return the name it was submitted under."""

    def status(self) -> str:
        """Return the job's state, Flink's names: INITIALIZING, CREATED, RUNNING, FINISHED, FAILED..."""

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

    def execute(
        self, graph: JobGraph, *, enough: Callable[[], bool] | None = None, timeout_ms: float | None = None
    ) -> JobResult:
        """Run the job and wait for its end; cancel it as soon as `enough` says so, or `timeout_ms` passed.

        Raises:
            JobFailedError: the job ended FAILED.
            PenstockError: `timeout_ms` passed; names the function of the user that is in a call.
        """

    def submit(self, graph: JobGraph) -> JobHandle:
        """Start the job and return at once."""
