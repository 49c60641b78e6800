"""A thin synchronous client of the JobManager's REST API, used by all commands, handles and tests.

Paths and field names are Flink's where Flink has them, and `/v1/penstock/...` otherwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import logging
import select
import ssl
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack
from urllib.parse import quote, urlencode, urlsplit

from penstock.client.access import ClientAccess, access_of
from penstock.client.cluster_address import ClusterAddress
from penstock.client.wait_lines import WaitLines
from penstock.core.clock import SystemClock
from penstock.core.errors import JobIdentityError, NoJobManagerError, NotFoundError, PenstockError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

_TIMEOUT_SECONDS = 30.0
#: Silence of a JobManager that has accepted a connection, after which the client logs a warning.
_QUIET_SECONDS = 5.0
#: Longest time between two looks for an answer.
_LOOK_SECONDS = 1.0
_NOT_FOUND = 404
_CONNECT_SECONDS = 5.0
#: Time limit of a GET when another JobManager may answer instead; a worker's answer may take 10 s.
_FAILOVER_SECONDS = 12.0
#: A standby redirects to the leader; a standby knows no leader.
_MOVED, _NO_LEADER = 307, 503
#: The header of a standby's answer while no JobManager leads.
_ROLE = "X-Penstock-Role"
_START_HINT = "start one with `penstock cluster start`, or check the URL (https if it has a certificate)"
_NO_TOKEN = 401
_OF_THE_USER = (400, 401, 403, 408, 413, 422)
_TAKEN, _FAULT = 409, 500


class SubmitFlags(TypedDict, total=False):
    """Start options of a job; the JobManager's defaults apply to omitted ones."""

    claim: bool
    fresh: bool
    accept_duplicates: bool
    allow_non_restored_state: tuple[str, ...]


class UpgradeOptions(TypedDict, total=False):
    """Options of an upgrade; the JobManager's defaults apply to omitted ones."""

    #: Upgrade from a checkpoint instead of a stop with a savepoint.
    from_checkpoint: bool
    #: Folder of the savepoint, and whether it has the checkpoint's files as they are; default true.
    target: str
    native: bool
    #: Conditions of a healthy version: checkpoints to complete, and restarts allowed in that time.
    checkpoints: int
    max_restarts: int
    #: Time limit, such as "5m".
    deadline: str
    #: Require a user's confirmation.
    confirm: bool
    #: Roll back an unhealthy version.
    rollback: bool
    #: Sinks (uids) that cannot withhold output: a rollback does not remove their rows.
    accept: tuple[str, ...]
    allow_non_restored_state: tuple[str, ...]
    #: Use the running job's parallelism instead of the job file's; default true.
    keep_parallelism: bool
    #: File of the new version; only shown.
    file: str


class _NotReceivedError(OSError):
    """The request was not received: there is no connection, or a standby has answered that no JobManager leads."""

    def __init__(self, text: str, *, refused: bool, standby: bool = False) -> None:
        """`refused`: by the host or by a `standby`; the request may be received soon."""
        super().__init__(text)
        self.refused, self.standby = refused, standby


class _UnansweredError(TimeoutError):
    """A JobManager has accepted the connection and not answered for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds


class RestClient:
    """A client of one cluster; close it or use it as a context manager."""

    def __init__(
        self,
        url: str,
        access: ClientAccess | None = None,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        quiet_seconds: float = _QUIET_SECONDS,
        retry: Callable[[int], bool] | None = None,
    ) -> None:
        """Create a client; `url` is a `ClusterAddress`, `access` defaults to the environment's.

        `retry` is called when no JobManager leads or accepts a connection, with the number of refusals of this request
        before; if it returns True, the request is sent again.

        Raises:
            UsageError: the URL is invalid, or would send the token unencrypted.
        """
        self._access = access or access_of()
        self._address = ClusterAddress(url, has_token=bool(self._access.token))
        #: The JobManager that answered last, or the address as it was given.
        self.url = self._address.text
        self._context: ssl.SSLContext | None = None
        self._timeout_seconds, self._retry = timeout_seconds, retry
        #: How long the present request may wait in the JobManager, and what that does before it answers.
        self._poll_seconds, self._checks = 0.0, ""
        #: After which silence a warning is logged.
        self._quiet_seconds = quiet_seconds
        #: The present silence, over all requests since the last answer.
        self._silence: WaitLines | None = None

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: each request has a separate connection."""

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    def overview(self) -> dict[str, Any]:
        """Return slots, TaskManagers and job counts (`/overview`)."""
        return self._get("/v1/overview")

    def leader(self) -> dict[str, Any]:
        """Return the leader: `url`, `rpc` (for TaskManagers) and `generation`."""
        found: dict[str, Any] = self._get("/v1/penstock/leader")["leader"]
        return found

    def standbys(self) -> list[dict[str, Any]]:
        """Return the standbys: `url`, `host` and `pid`."""
        found: list[dict[str, Any]] = self._get("/v1/penstock/standbys")["standbys"]
        return found

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs, newest first (`/jobs/overview`)."""
        jobs: list[dict[str, Any]] = self._get("/v1/jobs/overview")["jobs"]
        return jobs

    def job(self, job_id: str) -> dict[str, Any]:
        """Return one job with its vertices and their rates."""
        return self._get(_job(job_id))

    def job_after(self, job_id: str, wait_ms: float) -> dict[str, Any]:
        """Return the job as soon as it has ended, or after `wait_ms`."""
        return self._get(_own(job_id, "/wait"), ms=int(wait_ms))

    def checkpoints(self, job_id: str) -> dict[str, Any]:
        """Return checkpoint counts, summary, latest and history."""
        return self._get(_job(job_id, "/checkpoints"))

    def exceptions(self, job_id: str) -> dict[str, Any]:
        """Return the failures of a job, newest first."""
        return self._get(_job(job_id, "/exceptions"))

    def story(self, job_id: str) -> list[dict[str, Any]]:
        """Return a job's event log, oldest first: of a name all its runs, of an id that run.

        Of an entry, `job_id` is the id of the run, and `generation` that of the leader that wrote it.
        """
        story: list[dict[str, Any]] = self._get(_own(job_id, "/story"))["entries"]
        return story

    def checkpoint_root(self, job_id: str) -> str:
        """Return the root of a job's checkpoints (`/jobs/:id/checkpoints/config`)."""
        return str(self._get(f"{_job(job_id)}/checkpoints/config")["checkpoint_storage"])

    def summary(self, job_id: str) -> dict[str, Any]:
        """Return the metrics of a progress display: rows, watermark (ms), checkpoints, their interval, restarts."""
        return self._get(_own(job_id, "/summary"))

    def budget(self, job_id: str) -> dict[str, Any]:
        """Return the time that each operator has taken, by vertex."""
        return self._get(_own(job_id, "/budget"))

    def health(self, job_id: str) -> dict[str, Any]:
        """Return the findings about a job, the most important first, with the last minutes of its load."""
        return self._get(_own(job_id, "/health"))

    def watermark(self, job_id: str) -> dict[str, Any]:
        """Return the split that holds a running job's watermark back, and since when."""
        return self._get(_own(job_id, "/watermark"))

    def autoscaler(self, job_id: str) -> dict[str, Any]:
        """Return the autoscaler's decisions for a job, newest first."""
        return self._get(_own(job_id, "/autoscaler"))

    def metrics(self, job_id: str) -> dict[str, dict[str, float]]:
        """Return the newest metrics of each subtask, by `<vertex>/<subtask>`."""
        tasks: dict[str, dict[str, float]] = self._get(_own(job_id, "/metrics"))["tasks"]
        return tasks

    def state_value(self, job_id: str, uid: str, name: str, key: Sequence[str], limit: int) -> dict[str, Any]:
        """Return the live rows of one key of a state, with their columns."""
        return self._get(_own(job_id, f"/state/{_part(uid)}/{_part(name)}"), key=list(key), limit=limit)

    def states(self, job_id: str) -> list[dict[str, Any]]:
        """Return every keyed state of a running job: columns, rows and bytes in memory, by subtask."""
        found: list[dict[str, Any]] = self._get(_own(job_id, "/state"))["states"]
        return found

    def hot_keys(self, job_id: str) -> list[dict[str, Any]]:
        """Return the hottest keys of every keyed operator of a running job."""
        found: list[dict[str, Any]] = self._get(_own(job_id, "/hot-keys"))["operators"]
        return found

    def workers(self, job_id: str) -> list[dict[str, Any]]:
        """Return the workers of a job: id, pid, TaskManager."""
        workers: list[dict[str, Any]] = self._get(_own(job_id, "/workers"))["workers"]
        return workers

    def last_workers(self, job_id: str) -> list[dict[str, Any]]:
        """Return the workers of the job's last deployment that has ended: id, TaskManager; a failed one alone."""
        workers: list[dict[str, Any]] = self._get(_own(job_id, "/workers"))["last-workers"]
        return workers

    def taskmanagers(self) -> list[dict[str, Any]]:
        """Return the registered TaskManagers."""
        managers: list[dict[str, Any]] = self._get("/v1/taskmanagers")["taskmanagers"]
        return managers

    def release_taskmanager(self, taskmanager_id: str, *, drain: bool = False) -> None:
        """Shut down a TaskManager without used slots; with `drain` after its jobs have moved, on repeated calls.

        Raises:
            NotFoundError: no such TaskManager. UsageError: a job uses it, without `drain`.
        """
        self._send("DELETE", f"/v1/penstock/taskmanagers/{_part(taskmanager_id)}", params={"drain": drain})

    def submit(
        self,
        graph: bytes,
        *,
        token: str = "",
        from_uri: str | None = None,
        places: Sequence[str] = (),
        **flags: Unpack[SubmitFlags],
    ) -> str:
        """Submit a job graph (`encode_graph`); return the job id. The same token gives the same job.

        `places` are those of its sources and sinks, which the JobManager asks before it answers.
        """
        texts = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in flags.items()}
        params: dict[str, Any] = {"token": token, **{name.replace("_", "-"): value for name, value in texts.items()}}
        if from_uri:
            params["from"] = from_uri
        params["sha256"] = hashlib.sha256(graph).hexdigest()
        with self._checking(f"it checks {', '.join(places)}" if places else ""):
            answer = self._send("POST", "/v1/penstock/submit", params=params, body=graph)
        return str(answer["jobid"])

    def submitted(self, token: str) -> str:
        """Return the id of the job that was submitted with a token; raises NotFoundError."""
        return str(self._get(f"/v1/penstock/submissions/{_part(token)}")["jobid"])

    def cancel(self, job_id: str) -> None:
        """Cancel a job; its checkpoints are retained."""
        self._send("PATCH", _job(job_id), params={"mode": "cancel"})

    def stop(
        self, job_id: str, *, drain: bool = False, target: str | None = None, token: str = "", native: bool = False
    ) -> str:
        """Start a stop with savepoint; return the request id for `savepoint_status` (the token, if one is given)."""
        body = {"drain": drain, "targetDirectory": target, **_format_type(native=native), **_trigger_id(token)}
        with self._checking(f"it tests whether {target} can be written" if target else ""):
            return str(self._send("POST", _job(job_id, "/stop"), body=body)["request-id"])

    def savepoint(self, job_id: str, target: str | None = None, *, token: str = "", native: bool = False) -> str:
        """Start a savepoint; return the request id for `savepoint_status` (the token, if one is given).

        Requests with the same token (32 hex digits) count once, as long as the same JobManager runs.
        """
        body = {"target-directory": target, "cancel-job": False, **_format_type(native=native), **_trigger_id(token)}
        with self._checking(f"it tests whether {target} can be written" if target else ""):
            return str(self._send("POST", _job(job_id, "/savepoints"), body=body)["request-id"])

    def dispose_savepoint(self, uri: str) -> str:
        """Start the deletion of a savepoint; return the request id for `disposal_status`."""
        return str(self._send("POST", "/v1/savepoint-disposal", body={"savepoint-path": uri})["request-id"])

    def disposal_status(self, request_id: str) -> dict[str, Any]:
        """Return `{"status": {"id": IN_PROGRESS|COMPLETED}, "operation": {...}}`."""
        return self._get(f"/v1/savepoint-disposal/{_part(request_id)}")

    def savepoint_status(self, job_id: str, request_id: str) -> dict[str, Any]:
        """Return `{"status": {"id": IN_PROGRESS|COMPLETED}, "operation": {...}}`."""
        return self._get(_job(job_id, f"/savepoints/{_part(request_id)}"))

    def rescale(
        self, job_id: str, parallelism: int | None, vertices: dict[str, int] | None = None, *, token: str = ""
    ) -> str:
        """Start a rescale; return the request id for `rescaling_status` (the token, if one is given)."""
        params: dict[str, Any] = {} if parallelism is None else {"parallelism": parallelism}
        if vertices:
            params["vertices"] = ",".join(f"{uid}={count}" for uid, count in vertices.items())
        if token:
            params["token"] = token
        return str(self._send("PATCH", _job(job_id, "/rescaling"), params=params)["request-id"])

    def rescaling_status(self, job_id: str, request_id: str) -> dict[str, Any]:
        """Return `{"status": {"id": IN_PROGRESS|COMPLETED}, "operation": {...}}`."""
        return self._get(_job(job_id, f"/rescaling/{_part(request_id)}"))

    def upgrade(self, job_id: str, graph: bytes, *, token: str = "", **options: Unpack[UpgradeOptions]) -> str:
        """Start an upgrade to a graph (`encode_graph`); return the request id (the token, if one is given)."""
        texts = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in options.items()}
        params: dict[str, Any] = {"token": token, **{name.replace("_", "-"): value for name, value in texts.items()}}
        return str(self._send("POST", _own(job_id, "/upgrade"), params=params, body=graph)["request-id"])

    def upgrade_status(self, job_id: str, request_id: str) -> dict[str, Any]:
        """Return `{"status": {"id": IN_PROGRESS|COMPLETED}, "operation": {...}}`."""
        return self._get(_own(job_id, f"/upgrade/{_part(request_id)}"))

    def newest_upgrade(self, job_id: str) -> dict[str, Any]:
        """Return the progress or outcome of a job's newest upgrade."""
        return self._get(_own(job_id, "/upgrade"))

    def judge_upgrade(self, job_id: str, *, healthy: bool) -> None:
        """Accept or reject the new version on trial."""
        self._send("POST", _own(job_id, "/upgrade/verdict"), params={"healthy": healthy})

    def resource_requirements(self, job_id: str) -> dict[str, Any]:
        """Return the lowest and highest parallelism by vertex id, in Flink's format."""
        return self._get(_job(job_id, "/resource-requirements"))

    def require_resources(self, job_id: str, requirements: dict[str, Any]) -> None:
        """Rescale to changed `resource_requirements`: to the upper bounds, as far as slots are available."""
        self._send("PUT", _job(job_id, "/resource-requirements"), body=requirements)

    def log(self, worker_id: str) -> str:
        """Return the tail of a worker's log."""
        return str(self._get(f"/v1/penstock/workers/{_part(worker_id)}/log")["text"])

    def hand_over(self) -> None:
        """Let a standby lead; the jobs continue."""
        self._send("POST", "/v1/penstock/leader/hand-over")

    def shutdown(self) -> None:
        """Stop the cluster."""
        self._send("DELETE", "/v1/cluster")

    @contextlib.contextmanager
    def _checking(self, checks: str) -> Iterator[None]:
        """Remember what the JobManager does with external systems before it answers."""
        self._checks = checks
        try:
            yield
        finally:
            self._checks = ""

    def _get(self, path: str, **params: Any) -> dict[str, Any]:
        return self._send("GET", path, params=params)

    def _send(
        self, method: str, path: str, *, params: dict[str, Any] | None = None, body: Any = None
    ) -> dict[str, Any]:
        """Send a request; `body` is sent as JSON, bytes unchanged.

        Raises:
            NoJobManagerError: no JobManager answers or leads. PenstockError: the answer is an error.
        """
        self._poll_seconds = (params or {}).get("ms", 0) / 1000
        query = {
            name: str(value).lower() if isinstance(value, bool) else value for name, value in (params or {}).items()
        }
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/octet-stream" if isinstance(body, bytes) else "application/json"}
        try:
            status, data = self._answered(
                method, f"{path}?{urlencode(query, doseq=True)}" if query else path, content, headers
            )
        except ssl.SSLError as error:
            msg = f"TLS with {self.url} failed: {error}"
            raise PenstockError(
                msg,
                hint="check PENSTOCK_CA, PENSTOCK_CLIENT_CERT, PENSTOCK_CLIENT_KEY; use http if it has no certificate",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            msg, way = f"no JobManager answers at {self.url}: {error}", _START_HINT
            if isinstance(error, _UnansweredError):
                msg = f"no JobManager answers at {self.url}: it accepts connections but has not answered for"
                msg += f" {error.seconds:g} s"
                way = "it may be suspended or overloaded: check its process and its log"
                if self._checks:
                    msg = f"no answer from the JobManager at {self.url} within {error.seconds:g} s: {self._checks}"
                    way = f"check that this place answers; if it does, the JobManager {way.removeprefix('it ')}"
            elif isinstance(error, _NotReceivedError) and error.standby:
                msg, way = f"no JobManager leads at {self.url}: {error}", ""
            raise NoJobManagerError(msg, hint=way) from error
        if status == _NO_TOKEN:
            raise self._not_accepted(_error_of(self.url, status, data))
        if not 200 <= status < 300:
            raise _error_of(self.url, status, data)
        return self._answer_of(data) if data else {}

    def _not_accepted(self, error: PenstockError) -> UsageError:
        """Return the error of a request without a valid token: which cluster, and which token it was."""
        if not self._access.token:
            return UsageError(f"{self.url}: {error.message}")
        which = f"the token of {self._access.token_from}" if self._access.token_from else "the given token"
        return UsageError(f"{self.url} does not accept {which}: {error.message}")

    def _answer_of(self, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            msg = f"{self.url} is not a JobManager: another service answers"
            raise PenstockError(msg, hint="check URL and port, as printed by `penstock cluster start`")
        return answer

    def _answered(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        refusals = 0
        while True:
            try:
                return self._answer_of_leader(method, path, content, headers)
            except _NotReceivedError as error:
                if not error.refused or self._retry is None or not self._retry(refusals):
                    raise
                refusals += 1

    def _answer_of_leader(
        self, method: str, path: str, content: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """Return the first answer of a JobManager that leads or knows the leader; try the others without one.

        If none leads, a standby's answer counts: it shows recorded jobs as SUSPENDED.
        """
        failed: OSError | None = None
        recorded: tuple[str, int, bytes] | None = None
        try:
            places = self._address.urls()
        except NoJobManagerError as error:
            raise _NotReceivedError(str(error), refused=True, standby=True) from error
        for place in places:
            url = place
            try:
                status, data, more = self._request(url, method, path, content, headers)
                if status == _MOVED:  # a standby with TLS
                    url = self._address.redirected(more.get("Location", ""), path)
                    status, data, more = self._request(url, method, path, content, headers)
                _require_leader(url, status, data, more)
            except _NotReceivedError as error:
                if not isinstance(failed, _NotReceivedError) or error.standby or not failed.refused:
                    failed = error
            except _UnansweredError as error:
                if method != "GET" or not self._address.fails_over:
                    raise
                failed = failed or error
            else:
                if more.get(_ROLE) == "standby":
                    recorded = recorded or (url, status, data)
                    continue
                self._address.answered(place)
                self.url = url
                return status, data
        if recorded is not None:
            self.url, status, data = recorded
            return status, data
        raise failed or _NotReceivedError("no address", refused=False)

    def _request(
        self, url: str, method: str, path: str, content: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """Return status, body and headers of one answer."""
        place = urlsplit(url)
        host, port, timeout = place.hostname or "", place.port, self._timeout_seconds
        if self._address.fails_over and method == "GET":
            timeout = min(timeout, _FAILOVER_SECONDS + self._poll_seconds)
        if place.scheme == "https":
            self._context = self._context or self._access.context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=min(timeout, _CONNECT_SECONDS), context=self._context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=min(timeout, _CONNECT_SECONDS))
        headers = {**headers, **self._access.headers(), "Connection": "close"}
        try:
            try:
                connection.connect()
            except ssl.SSLError:
                raise
            except OSError as error:
                raise _NotReceivedError(str(error), refused=isinstance(error, ConnectionRefusedError)) from error
            connection.sock.settimeout(timeout)
            connection.request(method, f"{place.path}{path}", body=content, headers=headers)
            self._wait_for_answer(url, connection, timeout)
            response = connection.getresponse()
            return response.status, response.read(), response.headers
        except TimeoutError as error:
            raise _UnansweredError(timeout) from error
        finally:
            connection.close()

    def _wait_for_answer(self, url: str, connection: http.client.HTTPConnection, timeout: float) -> None:
        """Wait until an answer begins to arrive; log that a JobManager accepts connections but does not answer soon."""
        quiet = self._quiet_seconds + self._poll_seconds
        does = f": {self._checks}" if self._checks else ", which accepts the connection but does not answer"
        text = f"waiting for {url}{does}; for {timeout:.0f} s at most"
        clock, log = SystemClock(), logging.getLogger("penstock")
        lines = self._silence or WaitLines(lambda line: log.warning("%s", line), clock, quiet_ms=1000 * quiet)
        self._silence = lines
        deadline_ms, look = clock.monotonic_ms() + 1000 * timeout, min(_LOOK_SECONDS, quiet)
        while _is_silent(connection, look):
            if clock.monotonic_ms() >= deadline_ms:
                raise TimeoutError
            lines.note(text)
        self._silence = None


def _require_leader(url: str, status: int, data: bytes, headers: http.client.HTTPMessage) -> None:
    """Raise _NotReceivedError if a standby answers that it knows no leader."""
    if status == _NO_LEADER and "Retry-After" in headers:
        raise _NotReceivedError(str(_error_of(url, status, data)), refused=True, standby=True)


def _is_silent(connection: http.client.HTTPConnection, seconds: float) -> bool:
    """Return whether no answer begins to arrive within this time."""
    watched = select.poll()
    watched.register(connection.sock, select.POLLIN)
    return not watched.poll(seconds * 1000)


def _part(name: str) -> str:
    """Return a name as a path segment: job names may contain spaces, `?` and any other character."""
    return quote(name, safe="")


def _job(job_id: str, view: str = "") -> str:
    """Return Flink's path of a job, given by id or name."""
    return f"/v1/jobs/{_part(job_id)}{view}"


def _own(job_id: str, view: str) -> str:
    """Return a path that Flink does not have."""
    return f"/v1/penstock/jobs/{_part(job_id)}{view}"


def _format_type(*, native: bool) -> dict[str, str]:
    return {"formatType": "NATIVE"} if native else {}


def _trigger_id(token: str) -> dict[str, str]:
    return {"triggerId": token} if token else {}


def _error_of(url: str, status: int, data: bytes) -> PenstockError:
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("errors"), list):
        return _error_of_another(url, status, data)
    message = str((body["errors"] or [body])[0])
    if status == _NOT_FOUND:
        return NotFoundError(message)
    if status == _TAKEN:
        return JobIdentityError(message)
    if status in _OF_THE_USER:
        return UsageError(message)
    return PenstockError(message)


def _error_of_another(url: str, status: int, data: bytes) -> PenstockError:
    """Return the error of an answer without a JobManager's form: a proxy's, another service's, or that of a fault."""
    answer = f"{status} {http.client.responses.get(status, '')}".rstrip()
    if status < _FAULT:
        msg = f"{url} is not a JobManager: another service answers {answer}"
        return PenstockError(msg, hint="check URL and port; if a proxy answers, check its path to the JobManager")
    text = " ".join(data[:500].decode(errors="replace").split())
    return PenstockError(
        f"{url} answers {answer}{text and ': '}{text}", hint="see the log of the JobManager or its proxy"
    )
