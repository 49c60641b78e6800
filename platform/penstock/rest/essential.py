"""The few answers a client that runs one job asks for, without FastAPI, whose import takes longer than a small job.

`Door` is the ASGI application of the JobManager's process: it answers these itself and imports the whole API
(`rest.app`, which has the same routes over the same functions) when anything else is asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from penstock.core.errors import (
    ConnectorError,
    JobIdentityError,
    NotFoundError,
    PenstockError,
    StateMismatchError,
    UnansweredError,
    UsageError,
)
from penstock.core.secrets import redact
from penstock.jobmanager.spans import parse_traceparent
from penstock.jobmanager.submit_options import SubmitOptions
from penstock.rest import flink_json
from penstock.rest.counts import is_count

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher
    from penstock.rest.watch import JobWatch

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]
    Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

_MAX_GRAPH_BYTES = 64 << 20
_MAX_WAIT_MS = 30_000
_WAIT = "/v1/penstock/jobs/ID/wait"


async def submit(
    dispatcher: Dispatcher, graph: bytes, query: Mapping[str, str], traceparent: str = ""
) -> dict[str, Any]:
    """`POST /penstock/submit`: start a job; `traceparent`: the header of that name."""
    if len(graph) > _MAX_GRAPH_BYTES:
        raise _too_large(len(graph))
    digest = query.get("sha256", "")
    if digest and not hmac.compare_digest(digest.lower(), hashlib.sha256(graph).hexdigest()):
        raise UsageError("the job graph is not the one that was sent: its SHA-256 differs", hint="submit it again")
    options = SubmitOptions(
        token=query.get("token", ""),
        from_uri=query.get("from", ""),
        fresh=query.get("fresh", "false") == "true",
        claim=query.get("claim", "true") == "true",
        accept_duplicates=query.get("accept-duplicates", "false") == "true",
        allow_non_restored_state=tuple(filter(None, query.get("allow-non-restored-state", "").split(","))),
        traceparent=traceparent if parse_traceparent(traceparent) is not None else "",
    )
    return {"jobid": await dispatcher.submit(graph, options)}


def summary(dispatcher: Dispatcher, job_id: str) -> dict[str, Any]:
    """`GET /penstock/jobs/ID/summary`: the figures of a progress display."""
    return flink_json.progress(dispatcher.detail(job_id))


def workers(dispatcher: Dispatcher, job_id: str) -> dict[str, Any]:
    """`GET /penstock/jobs/ID/workers`: the job's slot workers."""
    found = dispatcher.resolve(job_id)
    held = [
        {"id": w.worker_id, "pid": w.pid, "taskmanager": t.taskmanager_id, "memory": w.memory_bytes}
        for t in dispatcher.taskmanagers()
        for w in t.workers
        if w.job_id == found
    ]
    return {"workers": sorted(held, key=lambda w: str(w["id"]))}


def checkpoints(dispatcher: Dispatcher, job_id: str) -> dict[str, Any]:
    """`GET /jobs/ID/checkpoints`: counts, latest, history."""
    return flink_json.checkpoints(dispatcher.checkpoints(job_id))


def exceptions(dispatcher: Dispatcher, job_id: str) -> dict[str, Any]:
    """`GET /jobs/ID/exceptions`: the failures."""
    return flink_json.exceptions(dispatcher.exceptions(job_id))


def metrics(dispatcher: Dispatcher, job_id: str) -> dict[str, Any]:
    """`GET /penstock/jobs/ID/metrics`: the newest metrics of each subtask, by `<vertex>/<subtask>`."""
    return {"tasks": dispatcher.metrics(job_id)}


async def wait(dispatcher: Dispatcher, job_id: str, wait_ms: int, clock: Clock) -> dict[str, Any]:
    """`GET /penstock/jobs/ID/wait`: the job as soon as it has ended, else as it is after `wait_ms`."""
    await dispatcher.wait(job_id, max(0, min(wait_ms, _MAX_WAIT_MS)))
    return flink_json.job_detail(dispatcher.detail(job_id), clock.now_ms())


def taskmanagers(dispatcher: Dispatcher) -> dict[str, Any]:
    """`GET /taskmanagers`: the registered ones."""
    return {"taskmanagers": [flink_json.taskmanager(view) for view in dispatcher.taskmanagers()]}


def status_of(error: PenstockError) -> int:
    """Return the HTTP status an error is answered with."""
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, JobIdentityError):
        return 409
    if isinstance(error, (UsageError, ConnectorError, StateMismatchError)):
        return 400
    return 504 if isinstance(error, UnansweredError) else 500


def _too_large(size: int) -> UsageError:
    msg = f"the job graph has {size:,} bytes, more than {_MAX_GRAPH_BYTES:,}"
    return UsageError(msg, hint="pass large data through files or topics, not through the job")


#: Views of one job, by path.
_VIEWS: dict[str, Callable[[Dispatcher, str], dict[str, Any]]] = {
    "/v1/penstock/jobs/ID/summary": summary,
    "/v1/penstock/jobs/ID/workers": workers,
    "/v1/penstock/jobs/ID/metrics": metrics,
    "/v1/jobs/ID/checkpoints": checkpoints,
    "/v1/jobs/ID/exceptions": exceptions,
}


def _of_a_job(path: str) -> tuple[Callable[[Dispatcher, str], dict[str, Any]] | None, str]:
    """Return the view a path asks for (None: to wait) and the job's id; an empty id when the path is another's."""
    head, jobs, rest = path.partition("/jobs/")
    job_id, _, what = rest.partition("/")
    pattern = f"{head}{jobs}ID/{what}"
    if pattern == _WAIT or pattern in _VIEWS:
        return _VIEWS.get(pattern), job_id
    return None, ""


class Door:
    """The first to see a request."""

    def __init__(
        self, dispatcher: Dispatcher, clock: Clock, shutdown: Callable[[], None], jobs: JobWatch | None = None
    ) -> None:
        """`shutdown` is called by `DELETE /cluster`; `jobs` is handed on to the whole API."""
        self._jobs = jobs
        self._dispatcher = dispatcher
        self._clock = clock
        self._shutdown = shutdown
        self._whole: Application | None = None
        self._opening = asyncio.Lock()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http" or not self._known(scope):
            await (await self._application())(scope, receive, send)
            return
        try:
            status, answer = await self._answer(scope, receive)
        except PenstockError as error:
            status, answer = status_of(error), {"errors": [redact(str(error))]}
        body = json.dumps(answer, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    @staticmethod
    def _known(scope: dict[str, Any]) -> bool:
        method, path = scope["method"], scope["path"]
        if method == "GET":
            return path == "/v1/taskmanagers" or bool(_of_a_job(path)[1])
        return bool(method == "POST" and path == "/v1/penstock/submit")

    async def _answer(self, scope: dict[str, Any], receive: Receive) -> tuple[int, dict[str, Any]]:
        path, query = scope["path"], dict(parse_qsl(scope["query_string"].decode()))
        if path == "/v1/penstock/submit":
            headers = dict(scope.get("headers") or ())
            traceparent = headers.get(b"traceparent", b"").decode("latin-1")
            return 202, await submit(self._dispatcher, await _body(receive), query, traceparent)
        if path == "/v1/taskmanagers":
            return 200, taskmanagers(self._dispatcher)
        view, job_id = _of_a_job(path)
        if view is not None:
            return 200, view(self._dispatcher, job_id)
        if not is_count(query.get("ms", "0")):
            raise UsageError("query.ms: not a number", hint="give milliseconds")
        return 200, await wait(self._dispatcher, job_id, int(query.get("ms", "0")), self._clock)

    async def _application(self) -> Application:
        async with self._opening:
            if self._whole is None:
                # In a thread: heartbeats go on meanwhile.
                create_app = await asyncio.to_thread(_whole_api)
                self._whole = create_app(self._dispatcher, self._clock, self._shutdown, self._jobs)
        return self._whole


def _whole_api() -> Callable[[Dispatcher, Clock, Callable[[], None], JobWatch | None], Any]:
    from penstock.rest.app import create_app

    return create_app


async def _body(receive: Receive) -> bytes:
    parts, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise UsageError("the request was cut short", hint="send it again")
        parts += message.get("body", b"")
        more = message.get("more_body", False)
        if len(parts) > _MAX_GRAPH_BYTES:
            raise _too_large(len(parts))
    return bytes(parts)
