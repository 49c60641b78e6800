"""The client's handle of a submitted job: status, wait, cancel, stop, savepoint, rescale, upgrade.

A token identifies each long-running request, so it can be repeated safely after a restart of the JobManager.
Returned by `env.submit`; used by the CLI.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from penstock.api.job_file import planned
from penstock.config.settings import parse_duration_ms
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import (
    JobFailedError,
    NoJobManagerError,
    NotFoundError,
    PenstockError,
    UnansweredError,
    UsageError,
    argument_text,
    cause_of,
    job_command,
    job_failed,
)
from penstock.graph.job_graph import encode_graph

if TYPE_CHECKING:
    from penstock.client.rest_client import RestClient, UpgradeOptions
    from penstock.graph.job_graph import JobGraph

_log = logging.getLogger("penstock")
#: Terminal states.
TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})
_TRIGGER_ID = re.compile(r"[0-9a-f]{32}")
_POLL_MS = 100.0
#: Silence of the JobManager after which a waiting client logs a warning.
_SILENCE_MS = 500.0
_UPGRADE_POLL_MS = 200.0
#: Grace period beyond the deadlines of checkpoint and trial: for starting, publishing, rolling back.
_GRACE_MS = 900_000.0


class _AnswerWatch:
    """Logs that the JobManager does not answer while a caller waits for a job, and when it answers again."""

    def __init__(self, job: str, url: str, clock: Clock) -> None:
        self._job, self._url, self._clock = job, url, clock
        self._answered_ms = clock.monotonic_ms()
        self._reported = False

    def note(self, *, answered: bool) -> None:
        now_ms = self._clock.monotonic_ms()
        away_s = (now_ms - self._answered_ms) / 1000
        if answered:
            if self._reported:
                _log.warning("job %s: the JobManager answers again, after %.1f s", self._job, away_s)
            self._answered_ms, self._reported = now_ms, False
        elif not self._reported and now_ms - self._answered_ms > _SILENCE_MS:
            self._reported = True
            text = "job %s: the JobManager at %s does not answer; trying again every %.1f s; the job resumes from its"
            text += " newest checkpoint once a JobManager runs again (a local cluster starts one by itself)"
            _log.warning(text, self._job, self._url, _POLL_MS / 1000)


class OperationWatch(Protocol):
    """Looks at a job while an operation on it lasts (`client.operation_progress`)."""

    @property
    def newest(self) -> str:
        """The reason for the wait at the last look at the job; empty before the first one."""

    def poll(self, summary: Callable[[], dict[str, Any]]) -> None:
        """Look at the job if it is time to; `summary` asks for it."""


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A job on a cluster."""

    client: RestClient
    job_id: str
    name: str
    clock: Clock = field(default_factory=SystemClock)
    #: The `--cluster` of commands in hints; empty if the command line finds the cluster without it.
    cluster: str = ""
    #: Whether the cluster ends with the job, so that no command finds the job afterwards.
    embedded: bool = False
    #: Input that the job does not read (`client.start_warnings`).
    unread: tuple[str, ...] = ()

    def command(self, command: str) -> str:
        """Return a `penstock` command on this job for a hint."""
        return job_command(command, self.name, self.cluster)

    def status(self) -> str:
        """Return the job's state with Flink's names: INITIALIZING, CREATED, RUNNING, FINISHED, FAILED, ..."""
        return str(self.client.job(self.job_id)["state"])

    def wait(self, *, timeout_ms: float | None = None, on_poll: Callable[[dict[str, Any]], None] | None = None) -> str:
        """Wait until the job has ended; return its state.

        Raises:
            JobFailedError: the job ended FAILED; carries its root cause.
            PenstockError: `timeout_ms` passed.
            UsageError: `timeout_ms` is no number.
        """
        if timeout_ms is not None:
            _require_ms(timeout_ms)
        deadline = None if timeout_ms is None else self.clock.monotonic_ms() + timeout_ms
        answers = _AnswerWatch(self.name, self.client.url, self.clock)
        while True:
            # The cluster answers as soon as the job has ended, or after a while, so the end is seen without a poll
            # delay.
            job = self._job_through_restarts(_POLL_MS)
            answers.note(answered=job is not None)
            if job is None:
                self.clock.sleep_ms(_POLL_MS)
            else:
                if on_poll is not None:
                    on_poll(job)
                if job["state"] in TERMINAL:
                    return self._end(str(job["state"]))
            if deadline is not None and self.clock.monotonic_ms() > deadline:
                msg = f"job {self.name} did not end within {(timeout_ms or 0) / 1000:g} s"
                raise PenstockError(msg, hint=f"it continues: `{self.command('show')}` shows its state")

    def cancel(self) -> None:
        """Cancel the job; its checkpoints are retained."""
        self.client.cancel(self.job_id)

    def stop(
        self,
        *,
        drain: bool = False,
        target: str | None = None,
        token: str = "",
        native: bool = False,
        timeout_ms: float = 300_000,
        progress: OperationWatch | None = None,
    ) -> str:
        """Stop the job with a savepoint; return its URI.

        A `native` one has the checkpoint's files as they are: it is written sooner, and only penstock reads it.
        Calls with the same token count once, also across a JobManager restart. `progress` says what it waits for.

        Raises:
            UsageError: the target is not writable; the job continues.
            PenstockError: the savepoint failed, or it is still under way after `timeout_ms`.
        """
        place = _target_uri(target)

        def ask(request_id: str) -> str:
            return self.client.stop(self.job_id, drain=drain, target=place, token=request_id, native=native)

        return self._run_savepoint("stop", ask, token, timeout_ms, progress)

    def savepoint(
        self,
        target: str | None = None,
        *,
        token: str = "",
        native: bool = False,
        timeout_ms: float = 300_000,
        progress: OperationWatch | None = None,
    ) -> str:
        """Take a savepoint of the running job; return its URI.

        Calls with the same token count once; across a JobManager restart it is taken again under the
        same name. `native` as in `stop`, which raises the same errors.
        """
        place = _target_uri(target)

        def ask(request_id: str) -> str:
            return self.client.savepoint(self.job_id, place, token=request_id, native=native)

        return self._run_savepoint("savepoint", ask, token, timeout_ms, progress)

    def rescale(
        self,
        parallelism: int | None = None,
        *,
        vertices: dict[str, int] | None = None,
        token: str = "",
        timeout_ms: float = 300_000,
        progress: OperationWatch | None = None,
    ) -> None:
        """Rescale the job from a checkpoint; return when it runs with the new parallelism.

        `parallelism` applies to all vertices with the job's default; `vertices` is by the uid of an operator.
        Calls with the same token count once, also across a JobManager restart. `progress` says what it waits for.

        Raises:
            UsageError: the job is not running or cannot have that parallelism.
            PenstockError: slots are missing or the checkpoint failed, and the job continues unchanged; or a timeout.
        """
        _require_ms(timeout_ms)
        token = token or secrets.token_hex(16)
        operation = await_operation(
            lambda: self.client.rescale(self.job_id, parallelism, vertices, token=token),
            self._watched(lambda: self.client.rescaling_status(self.job_id, token), progress),
            self.clock,
            timeout_ms,
            _POLL_MS,
        )
        if operation is not None:
            self._check_rescaled(operation)
            return
        why = f": {progress.newest}" if progress is not None and progress.newest else ""
        msg = f"job {self.name} was not running with its new parallelism within {timeout_ms / 1000:.0f} s{why}"
        raise PenstockError(msg, hint=f"see its progress with `{self.command('story')}`")

    def upgrade(
        self,
        new: str | Path | JobGraph,
        *,
        token: str = "",
        on_poll: Callable[[dict[str, Any]], None] | None = None,
        **options: Unpack[UpgradeOptions],
    ) -> str:
        """Upgrade to a new version (job file or graph); return the savepoint's URI once it is healthy.

        Until then its output is withheld. If it is not healthy in time, the old version continues from the same state.
        `on_poll` is called with `RestClient.newest_upgrade`. Calls with the same token count once, also across a
        JobManager restart.

        Raises:
            UsageError: it is no upgrade of this job, or could not be rolled back.
            PenstockError: its state does not fit, or it was unhealthy and the old version runs.
        """
        graph = planned(Path(new), {}, self.name) if isinstance(new, (str, Path)) else new
        if isinstance(new, (str, Path)):
            options.setdefault("file", str(new))
        return wait_for_upgrade(self, graph, token or secrets.token_hex(16), on_poll, options)

    def _check_rescaled(self, operation: dict[str, Any]) -> None:
        if "failure-cause" in operation:
            why = operation["failure-cause"].get("stack-trace")
            msg = f"job {self.name} was not rescaled and is unchanged: {why}"
            raise PenstockError(msg, hint="" if msg.endswith(")") else f"see `{self.command('story')}`")

    def query_state(self, uid: str, name: str, key: object, *, limit: int = 1000) -> dict[str, Any]:
        """Return the live rows of one key of a keyed state, including changes since the last checkpoint.

        `uid` is the operator's, `name` the state's, `key` a value, a tuple of values of several key columns, or a
        dictionary by column. The answer has `rows` (at most `limit`; `more` is true if there are more), their
        `schema`, the typed `key`, its `key-group` and `subtask`. Times are ISO 8601, decimals are text, bytes base64.

        Raises:
            NotFoundError: no such operator or state, or no rows of the key.
            UsageError: the job is not running, or the key does not fit its columns.
            PenstockError: no answer arrived in time.
        """
        given = key if isinstance(key, (tuple, list, dict)) else [key]
        return self.client.state_value(self.job_id, uid, name, [json.dumps(given, default=_text)], limit)

    def _run_savepoint(
        self, what: str, ask: Callable[[str], str], token: str, timeout_ms: float, progress: OperationWatch | None
    ) -> str:
        """Request a stop or savepoint (`what`) and return its URI."""
        _require_ms(timeout_ms)
        request_id = trigger_id_of(token) if token else secrets.token_hex(16)
        status = self._watched(lambda: self.client.savepoint_status(self.job_id, request_id), progress)
        operation = await_operation(lambda: ask(request_id), status, self.clock, timeout_ms, _POLL_MS)
        if operation is None:
            why = f": {progress.newest}" if progress is not None and progress.newest else ""
            msg = f"the {what} of {self.name} is still under way after {timeout_ms / 1000:.0f} s{why}"
            way = f"it continues: `{self.command('show')}` shows it"
            way += f", `{self.command('cancel')}` ends the job without a savepoint" if what == "stop" else ""
            raise UnansweredError(msg, hint=way)
        if "failure-cause" in operation:
            cause = operation["failure-cause"]
            raise PenstockError(f"savepoint of {self.name} failed: {cause.get('stack-trace') or cause.get('class')}")
        return str(operation["location"])

    def _watched(
        self, status: Callable[[], dict[str, Any]], progress: OperationWatch | None
    ) -> Callable[[], dict[str, Any]]:
        """Return the same question, with a look at the job after each answer that the operation is under way."""

        def ask() -> dict[str, Any]:
            answer = status()
            if progress is not None and answer["status"]["id"] != "COMPLETED":
                progress.poll(lambda: self.client.summary(self.job_id))
            return answer

        return ask

    def _job_through_restarts(self, wait_ms: float) -> dict[str, Any] | None:
        """Return the job, or None while the JobManager restarts (bounded by the caller's deadline)."""
        try:
            return self.client.job_after(self.job_id, wait_ms)
        except PenstockError as error:
            if isinstance(error, NoJobManagerError) or "not found" in error.message.lower():
                return None
            raise

    def _end(self, state: str) -> str:
        if state == "FAILED":
            raise self._failure(self.client.exceptions(self.job_id))
        return state

    def _failure(self, history: dict[str, Any]) -> JobFailedError:
        """Return the newest failure as one line, or with its traceback if $PENSTOCK_TRACEBACK is set."""
        detail = str(history.get("root-exception") or "no cause recorded").strip()
        entries = history.get("exceptionHistory", {}).get("entries", [])
        line = str(entries[0]["exceptionName"]) if entries else detail.splitlines()[-1]
        if os.environ.get("PENSTOCK_TRACEBACK"):
            return JobFailedError(f"job {self.name} failed: {detail}", cause=cause_of(line))
        hint = "" if line.endswith(")") else "PENSTOCK_TRACEBACK=1 prints all frames"
        if not self.embedded and entries and _has_log(entries[0]):
            hint = f"`{self.command('logs')}` prints its log"
        return job_failed(self.name, line, detail, hint)


def _has_log(entry: dict[str, Any]) -> bool:
    """Return whether a failure is the loss of a worker that left lines in its log."""
    lost = bool(entry.get("endpoint")) and not entry.get("taskName")
    return lost and entry.get("stacktrace") != entry["exceptionName"]


def _require_ms(timeout_ms: object) -> None:
    """Refuse a timeout that is no number; a duration such as "3s" gets the number to write."""
    if isinstance(timeout_ms, (int, float)) and not isinstance(timeout_ms, bool):
        return
    number = 3000
    with contextlib.suppress(UsageError):  # it is no duration either
        number = parse_duration_ms(timeout_ms, "timeout_ms") if isinstance(timeout_ms, str) else number
    msg = f"timeout_ms={argument_text(timeout_ms)} is not a number of milliseconds"
    raise UsageError(msg, hint=f"write for example timeout_ms={number}")


def _target_uri(target: object) -> str:
    """Return the folder of a savepoint as an absolute path or URI; empty for the job's own."""
    if isinstance(target, (str, os.PathLike)):
        return absolute_uri(str(target))
    if target is None:
        return ""
    msg = f"target={argument_text(target)} is not a folder"
    raise UsageError(msg, hint="write a path or a URI, or leave it out for the job's checkpoint root")


def _text(value: object) -> str:
    """Return a key part that JSON cannot represent as text that the cluster parses."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def trigger_id_of(token: str) -> str:
    """Return a user's token in the format of Flink's trigger ids: 32 hex digits."""
    return token if _TRIGGER_ID.fullmatch(token) else hashlib.sha256(token.encode()).hexdigest()[:32]


def await_operation(
    send: Callable[[], object], status: Callable[[], dict[str, Any]], clock: Clock, limit_ms: float, poll_ms: float
) -> dict[str, Any] | None:
    """Send a request and poll its status; return the completed operation, or None after `limit_ms`.

    Raises:
        PenstockError: the request was refused. While no JobManager answers, this function waits.
    """
    deadline, sent = clock.monotonic_ms() + limit_ms, False
    while clock.monotonic_ms() < deadline:
        try:
            if not sent:
                send()
                sent = True
            answer = status()
        except NotFoundError:
            if not sent:
                raise
            sent = False  # a new JobManager without a record of the request: repeat it
        except PenstockError as error:
            if not isinstance(error, NoJobManagerError):
                raise
            clock.sleep_ms(poll_ms)
        else:
            if answer["status"]["id"] == "COMPLETED":
                operation: dict[str, Any] = answer["operation"]
                return operation
            clock.sleep_ms(poll_ms)
    return None


def request_upgrade(job: JobHandle, graph: JobGraph, token: str, options: UpgradeOptions) -> str:
    """Ask for an upgrade and return the id of the request at once: the token, if one is given.

    The graph is sent with the states that its operators declare, so that a misfit is refused before the
    old version stops.

    Raises:
        PenstockError: the request was refused.
    """
    from penstock.snapshots.access.declared import with_states

    sent = dict(options)
    if sent.get("target"):
        sent["target"] = absolute_uri(str(sent["target"]))
    return job.client.upgrade(job.job_id, encode_graph(with_states(graph)), token=token, **sent)  # type: ignore[arg-type]


def wait_for_upgrade(
    job: JobHandle,
    graph: JobGraph,
    token: str,
    on_poll: Callable[[dict[str, Any]], None] | None,
    options: UpgradeOptions,
) -> str:
    """Wait until the new version is healthy; return the savepoint's URI (empty if from a checkpoint).

    Raises:
        PenstockError: it is unhealthy and the old version runs (or the new one is kept, as requested); or a timeout.
    """
    wait_ms = 2 * parse_duration_ms(str(options.get("deadline") or "5m"), "deadline") + _GRACE_MS
    client, job_id = job.client, job.job_id

    def status() -> dict[str, Any]:
        answer = client.upgrade_status(job_id, token)
        if on_poll is not None and answer["status"]["id"] != "COMPLETED":
            on_poll(client.newest_upgrade(job_id))
        return answer

    operation = await_operation(
        lambda: request_upgrade(job, graph, token, options), status, job.clock, wait_ms, _UPGRADE_POLL_MS
    )
    if operation is not None:
        return _verdict(job, operation)
    msg = f"the outcome of the upgrade of job {job.name} is unknown: none was reported within {wait_ms / 1000:.0f} s"
    raise PenstockError(msg, hint=f"see what it does with `{job.command('story')}`")


def _verdict(job: JobHandle, operation: dict[str, Any]) -> str:
    if "failure-cause" in operation:
        msg = f"job {job.name} was not upgraded: {operation['failure-cause'].get('stack-trace')}"
        failed = 0
        with contextlib.suppress(PenstockError):  # the JobManager is restarting
            failed = job.client.newest_upgrade(job.job_id)["restarts"]["seen"]
        more = f", and the new version's failure with `{job.command('show')}`" if failed else ""
        raise PenstockError(msg, hint="" if msg.endswith(")") else f"see `{job.command('story')}`{more}")
    return str(operation.get("location", ""))


def absolute_uri(uri: str) -> str:
    """Return a local folder as an absolute path, other URIs unchanged: the cluster has other working directories."""
    return uri if not uri or "://" in uri else str(Path(uri).expanduser().absolute())
