"""The dispatcher: takes jobs in, persists them before they start, recovers them, answers questions.

Called by the REST layer (`penstock.rest`) and by the embedded executor on the JobManager's event loop.
"""

from __future__ import annotations

import msgspec

from penstock.jobmanager.views import (
    CheckpointsView,
    ClusterView,
    ExceptionView,
    JobDetail,
    JobSummary,
    OperationStatus,
    StoryEntry,
    TaskManagerView,
)


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a job starts."""

    #: Two submits with the same token are one job.
    token: str = ""
    #: A savepoint (or a retained checkpoint's manifest) to start from, instead of the identity's own newest checkpoint.
    from_uri: str = ""
    #: Start a new history: ignore what the identity has.
    fresh: bool = False
    #: With `from_uri`: True continues that lineage (fence, publish what is owed), False forks it.
    claim: bool = True
    #: Accept starting below output that may have been published (recorded in the story).
    accept_duplicates: bool = False
    #: Accept that state of removed operators is dropped.
    allow_dropped_state: bool = False


DEFAULT_OPTIONS = SubmitOptions()


class Dispatcher:
    """All jobs of this JobManager; `job` is an id or a name, an unknown one raises `NotFoundError`."""

    async def submit(self, graph: bytes, options: SubmitOptions = DEFAULT_OPTIONS) -> str:
        """Persist and start a job (`graph.job_graph.encode_graph`); return its id (32 hex digits).

        Raises:
            UsageError: the graph is wrong. JobIdentityError: another process holds the identity.
            ConnectorError: a source or sink cannot work. StateMismatchError: the state does not fit.
        """
        raise NotImplementedError

    def jobs(self) -> tuple[JobSummary, ...]:
        """Return all jobs, newest first."""
        raise NotImplementedError

    def resolve(self, job: str) -> str:
        """Return the id of a job given by id, unique id prefix or name (the newest of that name)."""
        raise NotImplementedError

    def summary(self, job: str) -> JobSummary:
        """Return one job's line."""
        raise NotImplementedError

    def detail(self, job: str) -> JobDetail:
        """Return one job with graph, subtasks and their newest metrics."""
        raise NotImplementedError

    def checkpoints(self, job: str) -> CheckpointsView:
        """Return the checkpoint history."""
        raise NotImplementedError

    def exceptions(self, job: str) -> tuple[ExceptionView, ...]:
        """Return the failures, newest first."""
        raise NotImplementedError

    def story(self, job: str) -> tuple[StoryEntry, ...]:
        """Return what was seen and decided, oldest first."""
        raise NotImplementedError

    def metrics(self, job: str) -> dict[str, dict[str, float]]:
        """Return the newest metrics: `<vertex>/<subtask>` -> name -> value."""
        raise NotImplementedError

    async def cancel(self, job: str) -> None:
        """Cancel; checkpoints are kept. Returns at once; see `wait`."""
        raise NotImplementedError

    async def stop(self, job: str, *, drain: bool = False, uri: str = "") -> str:
        """Stop with a savepoint under `uri` (default: `<checkpoint root>/<job>/savepoints`); return a request id."""
        raise NotImplementedError

    async def savepoint(self, job: str, uri: str = "") -> str:
        """Take a savepoint; return a request id."""
        raise NotImplementedError

    async def trigger_checkpoint(self, job: str) -> str:
        """Take a checkpoint now; return a request id."""
        raise NotImplementedError

    def operation(self, request_id: str) -> OperationStatus:
        """Return what became of a stop, savepoint or checkpoint request."""
        raise NotImplementedError

    async def wait_operation(self, request_id: str, timeout_ms: int) -> OperationStatus:
        """Return when the request has ended or the time is over."""
        raise NotImplementedError

    async def wait(self, job: str, timeout_ms: int) -> JobSummary:
        """Return when the job is in a terminal state or the time is over (look at `terminal`)."""
        raise NotImplementedError

    def cluster(self) -> ClusterView:
        """Return the cluster at a glance."""
        raise NotImplementedError

    def taskmanagers(self) -> tuple[TaskManagerView, ...]:
        """Return the registered TaskManagers."""
        raise NotImplementedError

    async def log_tail(self, taskmanager_id: str, worker_id: str = "") -> str:
        """Return the tail of a worker's log, or the TaskManager's own."""
        raise NotImplementedError
