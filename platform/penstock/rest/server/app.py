"""The FastAPI application over one dispatcher: every route under `/v1`, and as in Flink also without the prefix.

Routes are coroutines even if they await nothing, because the dispatcher belongs to the event loop's thread.

Built by `rest.server.http_server` in the JobManager's process; errors become `{"errors": [...]}` with Flink's status
codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

import penstock
from penstock.core import event_log
from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock.core.secrets import redact
from penstock.rest.diagnose import job_watch as watch
from penstock.rest.flink import documents as flink_json
from penstock.rest.flink.request_fields import is_native, is_unaligned, trigger_id
from penstock.rest.jobs import job_routes, metric_routes, observation_routes, operation_routes, process_routes
from penstock.rest.jobs.observation_routes import budget
from penstock.rest.server import fast_routes, web
from penstock.rest.server.access import Caller
from penstock.rest.server.fast_routes import status_of
from penstock.rest.server.guard import CALLER, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher

_NO_PATH, _NO_METHOD = 404, 405
_PATHS = "/openapi.json and /docs list all paths"


def create_app(
    dispatcher: Dispatcher, clock: Clock, shutdown: Callable[[], None], jobs: watch.JobWatch | None = None
) -> FastAPI:
    """Return the application; `DELETE /cluster` calls `shutdown`, `jobs` records since when a job is slow."""
    # FastAPI's own pages load external scripts into this origin; `rest.server.web` serves /docs instead.
    app = FastAPI(
        title="penstock",
        version=penstock.__version__,
        description="Flink's REST API over penstock jobs.",
        docs_url=None,
        redoc_url=None,
    )
    router = APIRouter()
    collector = metric_routes.MetricCollector(dispatcher, clock)
    _add_cluster_routes(router, dispatcher, shutdown)
    # routes with fixed names first, then those with an id in the path
    metric_routes.add_routes(router, collector)
    process_routes.add_routes(router, dispatcher, clock)
    job_routes.add_routes(router, dispatcher, clock)
    _add_job_routes(router, dispatcher, clock)
    _add_operation_routes(router, dispatcher)
    _add_own_routes(router, dispatcher, clock)
    observation_routes.add_live_state_routes(router, dispatcher, clock)
    operation_routes.add_rescale_routes(router, dispatcher)
    observation_routes.add_autoscaler_route(router, dispatcher)
    operation_routes.add_upgrade_routes(router, dispatcher)
    operation_routes.add_savepoint_routes(router, dispatcher)
    watch.add_routes(router, jobs or watch.JobWatch(dispatcher, clock))
    web.add_routes(app)
    app.include_router(router, prefix="/v1")
    for route in router.routes:  # reused: building each route twice is slow
        if isinstance(route, APIRoute):
            route.include_in_schema = False
    app.router.routes += router.routes

    metric_routes.add_prometheus(app, collector)

    _add_error_answers(app)
    return app


def _add_error_answers(app: FastAPI) -> None:
    @app.exception_handler(PenstockError)
    async def on_error(_request: Request, error: PenstockError) -> JSONResponse:
        return JSONResponse({"errors": [redact(str(error))]}, status_code=status_of(error))

    @app.exception_handler(RequestValidationError)
    async def on_bad_request(_request: Request, error: RequestValidationError) -> JSONResponse:
        texts = [f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors()]
        return JSONResponse({"errors": texts}, status_code=400)

    @app.exception_handler(HTTPException)
    async def on_no_route(request: Request, error: HTTPException) -> JSONResponse:
        """Answer a request that no route takes."""
        path, headers = shortened(redact(repr(request.scope["path"]))), dict(error.headers or {})
        text = f"{path}: {error.detail}"
        if error.status_code == _NO_PATH:
            text = f"there is no path {path} ({_PATHS}, /jobs/overview all jobs)"
        elif error.status_code == _NO_METHOD:
            text = f"{path} does not take {shortened(request.method)} (it takes {headers.get('Allow', '')}; {_PATHS})"
        return JSONResponse({"errors": [text]}, status_code=error.status_code, headers=headers)


def _add_cluster_routes(router: APIRouter, dispatcher: Dispatcher, shutdown: Callable[[], None]) -> None:
    @router.get("/overview")
    async def overview() -> dict[str, Any]:
        return flink_json.overview(dispatcher.cluster(), penstock.__version__)

    @router.get("/config")
    async def config(request: Request) -> dict[str, Any]:
        acts = _caller(request).has_role("operator")
        features = {"web-submit": False, "web-cancel": acts, "web-rescale": acts, "web-history": False}
        return {
            "refresh-interval": 3000,
            "timezone-name": "UTC",
            "timezone-offset": 0,
            "flink-version": penstock.__version__,
            "flink-revision": "",
            "features": features,
        }

    @router.get("/taskmanagers")
    async def taskmanagers() -> dict[str, Any]:
        return fast_routes.taskmanagers(dispatcher)

    @router.get("/penstock/access")
    async def access(request: Request) -> dict[str, Any]:
        who = _caller(request)
        return {"role": who.role, "name": who.name}

    @router.delete("/cluster")
    async def end() -> dict[str, Any]:
        shutdown()
        return {}


def _add_job_routes(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    @router.get("/jobs")
    async def jobs() -> dict[str, Any]:
        return flink_json.job_ids(dispatcher.jobs())

    @router.get("/jobs/overview")
    async def jobs_overview() -> dict[str, Any]:
        return flink_json.jobs_overview(dispatcher.jobs(), clock.now_ms())

    @router.get("/jobs/{job_id}")
    async def job(job_id: str) -> dict[str, Any]:
        return flink_json.job_detail(dispatcher.detail(job_id), clock.now_ms())

    @router.get("/jobs/{job_id}/plan")
    async def plan(job_id: str) -> dict[str, Any]:
        return {"plan": flink_json.plan(dispatcher.detail(job_id))}

    @router.get("/jobs/{job_id}/checkpoints")
    async def checkpoints(job_id: str) -> dict[str, Any]:
        return fast_routes.checkpoints(dispatcher, job_id)

    @router.get("/jobs/{job_id}/exceptions")
    async def exceptions(job_id: str) -> dict[str, Any]:
        return fast_routes.exceptions(dispatcher, job_id)

    @router.get("/jobs/{job_id}/accumulators")
    async def accumulators(job_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return {"job-accumulators": [], "user-task-accumulators": [], "serialized-user-task-accumulators": {}}


def _add_operation_routes(router: APIRouter, dispatcher: Dispatcher) -> None:
    @router.patch("/jobs/{job_id}", status_code=202)
    async def cancel(job_id: str, mode: str = "cancel") -> dict[str, Any]:
        if mode != "cancel":
            msg = f"unknown termination mode {mode!r}"
            raise UsageError(msg, hint="use mode=cancel, or POST .../stop for a savepoint")
        await dispatcher.cancel(job_id)
        return {}

    @router.post("/jobs/{job_id}/stop", status_code=202)
    async def stop(job_id: str, request: Request) -> dict[str, Any]:
        body = await _body(request)
        uri = str(body.get("targetDirectory") or "")
        token, native, drain = trigger_id(body), is_native(body), bool(body.get("drain"))
        return {"request-id": await dispatcher.stop(job_id, drain=drain, uri=uri, token=token, native=native)}

    @router.post("/jobs/{job_id}/savepoints", status_code=202)
    async def savepoint(job_id: str, request: Request) -> dict[str, Any]:
        body = await _body(request)
        uri = str(body.get("target-directory") or "")
        token, native = trigger_id(body), is_native(body)
        if body.get("cancel-job"):
            return {"request-id": await dispatcher.stop(job_id, uri=uri, token=token, native=native)}
        return {"request-id": await dispatcher.savepoint(job_id, uri, token=token, native=native)}

    @router.post("/jobs/{job_id}/checkpoints", status_code=202)
    async def checkpoint(job_id: str, request: Request) -> dict[str, Any]:
        unaligned = is_unaligned(await _body(request))
        return {"request-id": await dispatcher.trigger_checkpoint(job_id, unaligned=unaligned)}

    @router.get("/jobs/{job_id}/savepoints/{request_id}")
    async def savepoint_status(job_id: str, request_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return flink_json.savepoint_status(dispatcher.operation(request_id))

    @router.get("/jobs/{job_id}/checkpoints/{request_id}/status")
    async def checkpoint_status(job_id: str, request_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return flink_json.savepoint_status(dispatcher.operation(request_id))


def _add_own_routes(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    @router.get("/penstock/submissions/{token}")
    async def submission(token: str) -> dict[str, Any]:
        job_id = dispatcher.submitted(token)
        if not job_id:
            raise NotFoundError(
                "no job was submitted with this token", hint="it may still be in progress; see `penstock list`"
            )
        return {"jobid": job_id}

    @router.post("/penstock/submit", status_code=202)
    async def submit(request: Request) -> dict[str, Any]:
        return await fast_routes.submit(
            dispatcher, await request.body(), request.query_params, request.headers.get("traceparent", "")
        )

    @router.get("/penstock/jobs/{job_id}/summary")
    async def summary(job_id: str) -> dict[str, Any]:
        return fast_routes.summary(dispatcher, job_id)

    @router.get("/penstock/jobs/{job_id}/wait")
    async def wait(job_id: str, ms: int = 0) -> dict[str, Any]:
        return await fast_routes.wait(dispatcher, job_id, ms, clock)

    @router.get("/penstock/jobs/{job_id}/story")
    async def story(job_id: str, condensed: bool = False) -> dict[str, Any]:
        entries = [msgspec.to_builtins(entry) for entry in await dispatcher.story(job_id)]
        return {"entries": event_log.condensed(entries) if condensed else entries}

    @router.get("/penstock/jobs/{job_id}/workers")
    async def workers(job_id: str) -> dict[str, Any]:
        return fast_routes.workers(dispatcher, job_id)

    @router.get("/penstock/jobs/{job_id}/budget")
    async def time_budget(job_id: str) -> dict[str, Any]:
        return budget(dispatcher.detail(job_id))

    @router.get("/penstock/jobs/{job_id}/metrics")
    async def metrics(job_id: str) -> dict[str, Any]:
        return fast_routes.metrics(dispatcher, job_id)

    @router.get("/penstock/workers/{worker_id}/log")
    async def log(worker_id: str) -> dict[str, Any]:
        return {"text": await dispatcher.worker_log(worker_id)}


def _caller(request: Request) -> Caller:
    """Return the caller that the guard has determined; the user of the machine if there is no guard."""
    found: Caller = request.scope.get(CALLER, Caller())
    return found


async def _body(request: Request) -> dict[str, Any]:
    if not await request.body():
        return {}
    try:
        body = await request.json()
    except ValueError as error:
        msg = f"the body is not JSON: {error}"
        raise UsageError(msg, hint="send an object, or nothing") from error
    if not isinstance(body, dict):
        msg = "the body is not a JSON object"
        raise UsageError(msg, hint="send an object, or nothing")
    return body
