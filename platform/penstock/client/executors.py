"""Executors of `env.execute` and `env.submit`: an embedded local cluster, or a running cluster by URL.

`default_executor()` serves a plain `python job.py`; `penstock run` builds the same with the user's options. The
embedded one shows the lines of `stream.print()`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client import kernels
from penstock.client.failures import FailureWatch, did_not_end, implausible_times, resume_point
from penstock.client.handle import TERMINAL, JobHandle, absolute_uri
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient
from penstock.client.start_warnings import earlier_output, may_resume, repeated_output, same_name, unread_input
from penstock.config.config_file import configuration
from penstock.config.settings import fail_fast
from penstock.core.clock import SystemClock
from penstock.core.counts import counted
from penstock.core.errors import JobIdentityError, PenstockError, UsageError
from penstock.core.rand import SystemRand
from penstock.graph.executor import JobResult
from penstock.graph.job_graph import JobGraph, encode_graph, required_slots, unbounded_sources
from penstock.graph.validation import require_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.client.access import ClientAccess
    from penstock.config.settings import JobSettings


#: Bytes read at once; the rest follows in the next read.
_MOST_BYTES = 1 << 20
#: Time for which a detached submit waits for the restored checkpoint, which it prints.
_RESTORED_WAIT_MS = 3_000.0
_RESTORED_POLL_MS = 50.0


def printed_names(graph: JobGraph) -> list[str]:
    """Return the names of a job's `print` operators, in order."""
    operators = [operator for vertex in graph.vertices for operator in vertex.operators]
    return [str(operator.config["name"]) for operator in operators if operator.kind == "print"]


class PrintedRows:
    """The new lines of one job's `print` operators."""

    def __init__(self, directory: Path, graph: JobGraph) -> None:
        """Start at the beginning of the logs; `directory` is that of a local cluster with a folder per TaskManager."""
        self._directory = directory
        self._prefixes = tuple(f"{name}> " for name in printed_names(graph))
        self._offsets: dict[Path, int] = {}

    def poll(self) -> Iterator[str]:
        """Yield complete new lines, in order within each worker."""
        if not self._prefixes:
            return
        for path in sorted(self._directory.glob("tm-*/logs/*.log")):
            with contextlib.suppress(FileNotFoundError):
                yield from self._new_lines(path)

    def _new_lines(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            while data := file.read(_MOST_BYTES):
                whole = data[: data.rfind(b"\n") + 1]
                if not whole:
                    return
                file.seek(len(whole) - len(data), 1)
                self._offsets[path] = file.tell()
                for line in whole.decode(errors="replace").splitlines():
                    if line.startswith(self._prefixes):
                        yield line


#: Called with the handle and the job's REST document at each poll while a caller waits for the end.
OnPoll = Callable[[JobHandle, dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """Start options of a job: the source of its state."""

    from_uri: str | None = None
    claim: bool = True
    fresh: bool = False
    accept_duplicates: bool = False
    #: States that may be dropped, by name: `uid` or `uid/state`.
    allow_non_restored_state: tuple[str, ...] = ()
    #: Submits with the same token give one job; empty: always a new one.
    token: str = ""
    #: Attach to a running job of the same identity instead of raising an error.
    attach: bool = False
    #: The job's name; empty: the name in the job file.
    name: str = ""


@dataclass(kw_only=True)
class ClusterExecutor:
    """Submits jobs to a running cluster."""

    url: str
    options: SubmitOptions = field(default_factory=SubmitOptions)
    on_poll: OnPoll | None = None
    #: Called with what the executor does until the job starts.
    on_step: Callable[[str], None] | None = None
    #: Let `execute` return once the job is submitted.
    detached: bool = False
    #: Default: the environment's.
    access: ClientAccess | None = None
    #: The `--cluster` of commands in hints (`JobHandle.cluster`).
    cluster_option: str = ""
    #: The last submitted job.
    submitted: JobHandle | None = None

    def submit(self, graph: JobGraph) -> JobHandle:
        """Submit a job and return at once."""
        if self.on_step is not None:
            self.on_step(f"planned {graph.name}: {_subtasks(graph)}; submitting it to {self.url}")
        handle = submit_graph(RestClient(self.url, self.access), graph, self.options)
        self.submitted = replace(handle, cluster=self.cluster_option)
        if self.on_step is not None and (names := printed_names(graph)):
            logs = self.submitted.command("logs")
            self.on_step(f"its workers print the rows of {', '.join(names)}: `{logs}` shows them")
        return self.submitted

    def execute(
        self, graph: JobGraph, *, enough: Callable[[], bool] | None = None, timeout_ms: float | None = None
    ) -> JobResult:
        """Submit a job and wait for its end, unless detached."""
        handle = self.submit(graph)
        if self.detached:
            return _submitted(handle)
        return _with_log(run_to_end(handle, self.on_poll or _log_failures(), enough, timeout_ms), self.on_poll)


@dataclass(kw_only=True)
class EmbeddedExecutor:
    """Starts a local cluster for the job and ends it with the job."""

    #: Default 1: each slot is a separate process anyway, and each TaskManager needs its own warm template.
    taskmanagers: int = 1
    directory: Path | None = None
    options: SubmitOptions = field(default_factory=SubmitOptions)
    environment: dict[str, str] = field(default_factory=dict)
    on_poll: OnPoll | None = None
    on_started: Callable[[LocalCluster, JobHandle], None] | None = None
    #: Called for each line of `stream.print()`.
    on_printed: Callable[[str], None] = print
    #: Called with what the executor does until the job starts.
    on_step: Callable[[str], None] | None = None
    _launched: LocalCluster | None = None

    def launch(self) -> None:
        """Start the cluster's processes early, while the job file is imported.

        Kernels that have to be compiled come after the job file: its mistakes show at once.
        """
        if self.taskmanagers == 1 and self._launched is None and kernels.are_compiled():
            cluster = self._cluster(1, None)
            self._step("starting a JobManager and a TaskManager")
            cluster.launch()
            self._launched = cluster

    def close(self) -> None:
        """End a launched cluster that got no job."""
        cluster, self._launched = self._launched, None
        if cluster is not None:
            cluster.close()

    def submit(self, graph: JobGraph) -> JobHandle:
        """Start a cluster that lives as long as this process, and submit a job to it."""
        return self._submit_to(self._started(graph), graph)

    def execute(
        self, graph: JobGraph, *, enough: Callable[[], bool] | None = None, timeout_ms: float | None = None
    ) -> JobResult:
        """Start a cluster, run the job to its end, end the cluster.

        A bounded job fails at the first error of a user function, because no user watches its restarts.
        """
        if not unbounded_sources(graph):
            graph = msgspec.structs.replace(graph, settings=fail_fast(graph.settings))
        cluster = self._started(graph)
        try:
            handle = self._submit_to(cluster, graph)
            printed, tell = PrintedRows(cluster.directory, graph), self.on_poll or _log_failures()

            def on_poll(job: JobHandle, state: dict[str, Any]) -> None:
                _check(cluster)
                for line in printed.poll():
                    self.on_printed(line)
                tell(job, state)

            return _with_log(run_to_end(handle, on_poll, enough, timeout_ms), self.on_poll)
        finally:
            cluster.close()

    def _step(self, text: str) -> None:
        if self.on_step is not None:
            self.on_step(text)

    def _submit_to(self, cluster: LocalCluster, graph: JobGraph) -> JobHandle:
        self._step(f"submitting {graph.name}, which starts {counted(required_slots(graph), 'worker')}")
        client = cluster.client()
        # this cluster ends with the job: the command line finds it by its URL alone
        handle = replace(submit_graph(client, graph, self.options), cluster=client.url, embedded=True)
        if self.on_started is not None:
            self.on_started(cluster, handle)
        return handle

    def _started(self, graph: JobGraph) -> LocalCluster:
        """Return a cluster for the job: the launched one, or a new one."""
        slots = required_slots(graph)
        managers = max(1, min(self.taskmanagers, slots))
        cluster, self._launched = self._launched, None
        self._step(f"planned {graph.name}: {_subtasks(graph)}; waiting for the JobManager")
        if cluster is None:
            cluster = self._cluster(managers, -(-slots // managers))
            cluster.launch()
        else:
            cluster.set_slots(slots)
        try:
            self._require_root(graph)
        except BaseException:
            cluster.close()
            raise
        try:
            cluster.wait_for_jobmanager()
        except BaseException:
            cluster.abort()
            raise
        return cluster

    def _require_root(self, graph: JobGraph) -> None:
        """Refuse an object store that does not answer here, while the JobManager starts, which would refuse it later.

        Processes with an environment of their own may have another store.
        """
        root = graph.settings.checkpoint_root
        if self.environment or not root.startswith("s3://"):
            return
        from penstock.checkpoint.stores import join_uri, naming_root, require_answer  # for such a root alone

        with naming_root(root):
            require_answer(join_uri(root, graph.name))

    def _cluster(self, managers: int, slots: int | None) -> LocalCluster:
        return LocalCluster(
            LocalClusterConfig(
                taskmanagers=managers,
                slots_per_taskmanager=slots,
                directory=self.directory,
                environment=self.environment,
            )
        )


def _check(cluster: LocalCluster) -> None:
    try:
        cluster.check()
    except PenstockError:
        cluster.abort()
        raise


def default_executor() -> EmbeddedExecutor | ClusterExecutor:
    """Return the executor of a plain `python job.py`: the configured cluster, else an embedded one."""
    url = configuration().settings.client.cluster
    return ClusterExecutor(url=url) if url else EmbeddedExecutor()


def _subtasks(graph: JobGraph) -> str:
    return counted(sum(vertex.parallelism for vertex in graph.vertices), "subtask")


def submit_graph(client: RestClient, graph: JobGraph, options: SubmitOptions) -> JobHandle:
    """Submit a job with start options.

    Raises:
        PenstockError: the JobManager refused it.
    """
    graph = msgspec.structs.replace(graph, settings=_with_absolute_root(graph.settings))
    if options.name and options.name != graph.name:
        require_name(options.name, "job name")
        graph = msgspec.structs.replace(graph, name=options.name, file_name=graph.name)
    warnings, unread = repeated_output(graph), []
    if not options.from_uri:
        warnings += earlier_output(graph, fresh=options.fresh)
        unread = unread_input(graph, fresh=options.fresh)
    for warning in (*warnings, *unread):
        logging.getLogger("penstock").warning("%s", warning)
    if options.from_uri or (not options.fresh and may_resume(graph)):
        from penstock.snapshots.access.declared import with_states

        graph = with_states(graph)  # the snapshot's state is checked against it
    try:
        job_id = client.submit(
            encode_graph(graph),
            token=options.token or SystemRand().token(),
            from_uri=absolute_uri(options.from_uri or ""),
            places=_outside(graph),
            claim=options.claim,
            fresh=options.fresh,
            accept_duplicates=options.accept_duplicates,
            allow_non_restored_state=options.allow_non_restored_state,
        )
    except JobIdentityError:
        job_id = _running(client, graph.name) if options.attach else ""
        if not job_id:
            raise
        text = "job %r runs already (%s): this file was not submitted; to replace the job, upgrade it"
        logging.getLogger("penstock").warning(text, graph.name, job_id)
    for warning in same_name(client, graph, job_id):
        logging.getLogger("penstock").warning("%s", warning)
    return JobHandle(client, job_id, graph.name, unread=tuple(unread))


def _outside(graph: JobGraph) -> list[str]:
    """Return the places of the job's sources and sinks, each once, without folders of this machine."""
    places = [operator.place for vertex in graph.vertices for operator in vertex.operators]
    return [place for place in dict.fromkeys(places) if place and not place.startswith("/")]


def _running(client: RestClient, name: str) -> str:
    """Return the id of the only job of that name that has not ended; empty if there is none or more than one."""
    found = [str(job["jid"]) for job in client.jobs() if job["name"] == name and job["state"] not in TERMINAL]
    return found[0] if len(found) == 1 else ""


def _with_absolute_root(settings: JobSettings) -> JobSettings:
    """Return settings with absolute folders: the cluster's processes have other working directories."""
    root = settings.checkpoint_root or ".penstock/checkpoints"
    if "://" not in root:
        root = str(Path(root).resolve())
    return msgspec.structs.replace(settings, checkpoint_root=root)


def _log_failures() -> OnPoll:
    """Return a poll callback that logs failures of a job, for callers that display nothing."""
    watch, log = FailureWatch(), logging.getLogger("penstock")

    def poll(handle: JobHandle, _job: dict[str, Any]) -> None:
        with contextlib.suppress(PenstockError):  # the JobManager is restarting: the next poll reports it
            for line in watch.poll(handle, handle.client.summary(handle.job_id)):
                log.warning("%s", line)

    return poll


def _with_log(result: JobResult, on_poll: OnPoll | None) -> JobResult:
    """Log a job that had nothing left to do, unless the caller displays it; return the result."""
    if on_poll is None and result.nothing_left and not result.unread:  # unread input was logged at the start
        text = "job %s had nothing left to do since %s (penstock run --fresh JOB starts over)"
        logging.getLogger("penstock").warning(text, result.name, result.resumed_from)
    return result


def _submitted(handle: JobHandle) -> JobResult:
    """Return the result of a submitted job, with its restored checkpoint if it is known soon."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + _RESTORED_WAIT_MS
    while True:
        summary = handle.client.summary(handle.job_id)
        waits = summary["state"] in ("INITIALIZING", "CREATED") and not summary["restored"] and not summary["waits-for"]
        if not waits or clock.monotonic_ms() > deadline_ms:
            break
        clock.sleep_ms(_RESTORED_POLL_MS)
    return JobResult(
        job_id=handle.job_id,
        name=handle.name,
        state=summary["state"],
        duration_ms=0.0,
        restored_checkpoint=(summary["restored"] or {}).get("id"),
        resumed_from=resume_point(summary),
        waits_for=summary["waits-for"],
    )


def _ended_late(handle: JobHandle, timeout_ms: float) -> PenstockError:
    """Cancel a job that did not end in time; return the error, which says what it does."""
    error = did_not_end(handle, timeout_ms)
    with contextlib.suppress(PenstockError):  # it has ended in the meantime, or its JobManager has
        handle.cancel()
    return error


def run_to_end(
    handle: JobHandle,
    on_poll: OnPoll,
    enough: Callable[[], bool] | None = None,
    timeout_ms: float | None = None,
) -> JobResult:
    """Wait for the end of a job; cancel it as soon as `enough` returns True, or `timeout_ms` passed.

    Raises:
        PenstockError: it failed or was cancelled; `timeout_ms` passed.
    """
    clock = handle.clock
    started_ms = clock.monotonic_ms()

    def poll(job: dict[str, Any]) -> None:
        on_poll(handle, job)
        if timeout_ms is not None and job["state"] not in TERMINAL and clock.monotonic_ms() - started_ms > timeout_ms:
            raise _ended_late(handle, timeout_ms)
        if enough is not None and job["state"] == "RUNNING" and enough():
            with contextlib.suppress(UsageError):  # it has ended in the meantime
                handle.cancel()

    state = handle.wait(on_poll=poll)
    duration_ms, counts, failure = clock.monotonic_ms() - started_ms, dict[str, Any](), ""
    with contextlib.suppress(PenstockError):  # the end of the job is already known
        counts = handle.client.summary(handle.job_id)
        if counts.get("restarts"):
            entries = handle.client.exceptions(handle.job_id)["exceptionHistory"]["entries"]
            failure = str(entries[0]["exceptionName"]) if entries else ""
    return JobResult(
        job_id=handle.job_id,
        name=handle.name,
        state=state,
        duration_ms=duration_ms,
        checkpoints=counts.get("checkpoints-completed", 0),
        restarts=counts.get("restarts", 0),
        last_failure=failure,
        jobmanagers_replaced=(counts.get("jobmanagers-replaced") or {}).get("times", 0),
        rows_read=counts.get("rows-read", {}),
        rows_written=counts.get("rows-written", {}),
        bad_records=counts.get("bad-records", {}),
        bad_record_examples=counts.get("bad-record-examples", {}),
        late_rows=counts.get("late-records", {}),
        warnings=tuple(implausible_times(counts).values()),
        unread=handle.unread,
        restored_checkpoint=(counts.get("restored") or {}).get("id"),
        resumed_from=resume_point(counts),
    )
