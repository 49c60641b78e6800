"""The ASGI application of the JobManager's process, behind `rest.server.guard`.

It gives the few answers of `rest.server.fast_routes` itself and imports the whole API (`rest.server.app`, which has the
same routes over the same functions) when anything else is asked.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from penstock.core.errors import PenstockError, UsageError
from penstock.core.secrets import redact
from penstock.rest.flink.request_fields import is_count
from penstock.rest.server import fast_routes

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher
    from penstock.rest.diagnose.job_watch import JobWatch
    from penstock.rest.server.guard import Application, Receive, Send

_WAIT = "/v1/penstock/jobs/ID/wait"
#: Views of one job, by path.
_VIEWS: dict[str, Callable[[Dispatcher, str], dict[str, Any]]] = {
    "/v1/penstock/jobs/ID/summary": fast_routes.summary,
    "/v1/penstock/jobs/ID/workers": fast_routes.workers,
    "/v1/penstock/jobs/ID/metrics": fast_routes.metrics,
    "/v1/jobs/ID/checkpoints": fast_routes.checkpoints,
    "/v1/jobs/ID/exceptions": fast_routes.exceptions,
}


def _of_a_job(path: str) -> tuple[Callable[[Dispatcher, str], dict[str, Any]] | None, str]:
    """Return the view a path asks for (None: to wait) and the job's id; an empty id when the path is another's."""
    head, jobs, rest = path.partition("/jobs/")
    job_id, _, what = rest.partition("/")
    pattern = f"{head}{jobs}ID/{what}"
    if pattern == _WAIT or pattern in _VIEWS:
        return _VIEWS.get(pattern), job_id
    return None, ""


class FastApp:
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
            status, answer = fast_routes.status_of(error), {"errors": [redact(str(error))]}
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
            return 202, await fast_routes.submit(self._dispatcher, await _body(receive), query, traceparent)
        if path == "/v1/taskmanagers":
            return 200, fast_routes.taskmanagers(self._dispatcher)
        view, job_id = _of_a_job(path)
        if view is not None:
            return 200, view(self._dispatcher, job_id)
        if not is_count(query.get("ms", "0")):
            raise UsageError("query.ms: not a number", hint="give milliseconds")
        return 200, await fast_routes.wait(self._dispatcher, job_id, int(query.get("ms", "0")), self._clock)

    async def _application(self) -> Application:
        async with self._opening:
            if self._whole is None:
                # In a thread: heartbeats continue meanwhile.
                create_app = await asyncio.to_thread(_load_full_app)
                self._whole = create_app(self._dispatcher, self._clock, self._shutdown, self._jobs)
        return self._whole


def _load_full_app() -> Callable[[Dispatcher, Clock, Callable[[], None], JobWatch | None], Any]:
    from penstock.rest.server.app import create_app

    return create_app


async def _body(receive: Receive) -> bytes:
    parts, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise UsageError("the request was cut short", hint="send it again")
        parts += message.get("body", b"")
        more = message.get("more_body", False)
        if len(parts) > fast_routes.MAX_GRAPH_BYTES:
            raise fast_routes.too_large(len(parts))
    return bytes(parts)
