"""The client's handle of a submitted job: status, wait, cancel, stop, savepoint, rescale, upgrade.

Returned by `env.submit` and used by the CLI.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from penstock.api.job_file import planned
from penstock.client.lasting import operation_of, trigger_id_of
from penstock.client.upgrading import upgraded
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import JobFailedError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.rest_client import RestClient, UpgradeOptions
    from penstock.graph.job_graph import JobGraph

#: Terminal states.
TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})
_POLL_MS = 100.0


def located(uri: str) -> str:
    """Return a local folder as an absolute path, other URIs unchanged: the cluster has other working directories."""
    return uri if not uri or "://" in uri else str(Path(uri).expanduser().absolute())


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A job on a cluster."""

    client: RestClient
    job_id: str
    name: str
    clock: Clock = field(default_factory=SystemClock)

    def status(self) -> str:
        """Return the job's state with Flink's names: CREATED, RUNNING, RESTARTING, FINISHED, CANCELED, FAILED, ..."""
        return str(self.client.job(self.job_id)["state"])

    def wait(self, *, timeout_ms: float | None = None, on_poll: Callable[[dict[str, Any]], None] | None = None) -> str:
        """Wait until the job has ended; return its state.

        Raises:
            JobFailedError: the job ended FAILED; carries its root cause.
            PenstockError: `timeout_ms` passed.
        """
        deadline = None if timeout_ms is None else self.clock.monotonic_ms() + timeout_ms
        while True:
            # The cluster answers as soon as the job has ended, or after a while, so the end is seen without a poll
            # delay.
            job = self._job_through_restarts(_POLL_MS)
            if job is None:
                self.clock.sleep_ms(_POLL_MS)
            else:
                if on_poll is not None:
                    on_poll(job)
                if job["state"] in TERMINAL:
                    return self._end(str(job["state"]))
            if deadline is not None and self.clock.monotonic_ms() > deadline:
                msg = f"job {self.name} did not end within {timeout_ms:.0f} ms"
                raise PenstockError(msg, hint="see its state with `penstock show`")

    def cancel(self) -> None:
        """Cancel the job; its checkpoints are retained."""
        self.client.cancel(self.job_id)

    def stop(
        self, *, drain: bool = False, target: str | None = None, token: str = "", timeout_ms: float = 300_000
    ) -> str:
        """Stop the job with a savepoint; return its URI.

        Calls with the same token count once, also across a JobManager restart.

        Raises:
            UsageError: the target is not writable; the job continues.
            PenstockError: the savepoint failed, or no answer arrived in time.
        """
        place = located(target or "")
        return self._saved(
            lambda id_: self.client.stop(self.job_id, drain=drain, target=place, token=id_), token, timeout_ms
        )

    def savepoint(self, target: str | None = None, *, token: str = "", timeout_ms: float = 300_000) -> str:
        """Take a savepoint of the running job; return its URI.

        Calls with the same token count once; across a JobManager restart it is taken again under the
        same name. Raises like `stop`.
        """
        place = located(target or "")
        return self._saved(lambda id_: self.client.savepoint(self.job_id, place, token=id_), token, timeout_ms)

    def rescale(
        self,
        parallelism: int | None = None,
        *,
        vertices: dict[str, int] | None = None,
        token: str = "",
        timeout_ms: float = 300_000,
    ) -> None:
        """Rescale the job from a checkpoint; return when it runs with the new parallelism.

        `parallelism` applies to all vertices with the job's default; `vertices` is by the uid of an operator.
        Calls with the same token count once, also across a JobManager restart.

        Raises:
            UsageError: the job is not running or cannot have that parallelism.
            PenstockError: slots are missing or the checkpoint failed, and the job continues unchanged; or a timeout.
        """
        token = token or secrets.token_hex(16)
        operation = operation_of(
            lambda: self.client.rescale(self.job_id, parallelism, vertices, token=token),
            lambda: self.client.rescaling_status(self.job_id, token),
            self.clock,
            timeout_ms,
            _POLL_MS,
        )
        if operation is not None:
            self._check_rescaled(operation)
            return
        msg = f"job {self.name} was not running with its new parallelism within {timeout_ms / 1000:.0f} s"
        raise PenstockError(msg, hint="see its progress with `penstock story`")

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
        return upgraded(self, graph, token or secrets.token_hex(16), on_poll, options)

    def _check_rescaled(self, operation: dict[str, Any]) -> None:
        if "failure-cause" in operation:
            msg = f"job {self.name} was not rescaled: {operation['failure-cause'].get('stack-trace')}"
            raise PenstockError(msg, hint="it continues unchanged; see `penstock story`")

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

    def _saved(self, ask: Callable[[str], str], token: str, timeout_ms: float) -> str:
        request_id = trigger_id_of(token) if token else secrets.token_hex(16)
        operation = operation_of(
            lambda: ask(request_id),
            lambda: self.client.savepoint_status(self.job_id, request_id),
            self.clock,
            timeout_ms,
            _POLL_MS,
        )
        if operation is None:
            msg = f"savepoint of {self.name} was not complete within {timeout_ms / 1000:.0f} s"
            raise PenstockError(msg, hint="see its checkpoints with `penstock show`")
        if "failure-cause" in operation:
            cause = operation["failure-cause"]
            raise PenstockError(f"savepoint of {self.name} failed: {cause.get('stack-trace') or cause.get('class')}")
        return str(operation["location"])

    def _job_through_restarts(self, wait_ms: float) -> dict[str, Any] | None:
        """Return the job, or None while the JobManager restarts (bounded by the caller's deadline)."""
        try:
            return self.client.job_after(self.job_id, wait_ms)
        except PenstockError as error:
            if "no JobManager answers" in error.message or "not found" in error.message.lower():
                return None
            raise

    def _end(self, state: str) -> str:
        if state == "FAILED":
            raise self._failure(self.client.exceptions(self.job_id))
        return state

    def _failure(self, history: dict[str, Any]) -> JobFailedError:
        """Return the newest failure as one line, or with its traceback if $PENSTOCK_TRACEBACK is set."""
        detail = str(history.get("root-exception") or "no cause recorded").strip()
        if os.environ.get("PENSTOCK_TRACEBACK"):
            return JobFailedError(f"job {self.name} failed: {detail}")
        entries = history.get("exceptionHistory", {}).get("entries", [])
        line = str(entries[0]["exceptionName"]) if entries else detail.splitlines()[-1]
        hint = "" if line.endswith(")") else "PENSTOCK_TRACEBACK=1 prints the traceback"
        return JobFailedError(f"job {self.name} failed: {line}", hint=hint)


def _text(value: object) -> str:
    """Return a key part that JSON cannot represent as text that the cluster parses."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
