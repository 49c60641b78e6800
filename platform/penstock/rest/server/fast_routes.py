"""The routes that a client of one job uses, without FastAPI, whose import takes longer than a small job.

Given by `rest.server.fast_app` by itself, and by the routes of `rest.server.app`.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any

from penstock.core.errors import (
    ConnectorError,
    JobIdentityError,
    NotFoundError,
    NotStartedError,
    PenstockError,
    StateMismatchError,
    UnansweredError,
    UnreachableError,
    UsageError,
)
from penstock.jobmanager.jobs.recorded_jobs import SubmitOptions
from penstock.jobmanager.observe.spans import parse_traceparent
from penstock.rest.flink import documents as flink_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher

#: Of a submitted graph.
MAX_GRAPH_BYTES = 64 << 20
_MAX_WAIT_MS = 30_000


async def submit(
    dispatcher: Dispatcher, graph: bytes, query: Mapping[str, str], traceparent: str = ""
) -> dict[str, Any]:
    """`POST /penstock/submit`: start a job; `traceparent`: the header of that name."""
    if len(graph) > MAX_GRAPH_BYTES:
        raise too_large(len(graph))
    digest = query.get("sha256", "")
    if digest and not hmac.compare_digest(digest.lower(), hashlib.sha256(graph).hexdigest()):
        raise UsageError("the job graph was corrupted in transit: its SHA-256 differs", hint="submit it again")
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
    """Return the metrics of a progress display (`GET /penstock/jobs/ID/summary`)."""
    return flink_json.progress(dispatcher.detail(job_id), dispatcher.checkpoints(job_id))


def workers(dispatcher: Dispatcher, job_id: str) -> dict[str, Any]:
    """Return the job's workers, and the last ones that have exited (`GET /penstock/jobs/ID/workers`)."""
    found, managers = dispatcher.resolve(job_id), dispatcher.taskmanagers()
    states = {taken.worker_id: taken.state for manager in managers for taken in manager.taken_slots}
    held = [
        {
            "id": w.worker_id,
            "pid": w.pid,
            "taskmanager": t.taskmanager_id,
            "memory": w.memory_bytes,
            "slot": w.slot,
            "state": states.get(w.worker_id, ""),
        }
        for t in managers
        for w in t.workers
        if w.job_id == found
    ]
    last = [{"id": w.worker_id, "taskmanager": w.taskmanager_id} for w in dispatcher.last_workers(found)]
    return {"workers": sorted(held, key=lambda w: str(w["id"])), "last-workers": last}


def checkpoints(dispatcher: Dispatcher, job_id: str) -> dict[str, Any]:
    """Return counts, latest and history of checkpoints (`GET /jobs/ID/checkpoints`)."""
    return flink_json.checkpoints(dispatcher.checkpoints(job_id))


def exceptions(dispatcher: Dispatcher, job_id: str) -> dict[str, Any]:
    """Return the job's failures (`GET /jobs/ID/exceptions`)."""
    return flink_json.exceptions(dispatcher.exceptions(job_id))


def metrics(dispatcher: Dispatcher, job_id: str) -> dict[str, Any]:
    """Return the newest metrics of each subtask by `<vertex>/<subtask>` (`GET /penstock/jobs/ID/metrics`)."""
    return {"tasks": dispatcher.metrics(job_id)}


async def wait(dispatcher: Dispatcher, job_id: str, wait_ms: int, clock: Clock) -> dict[str, Any]:
    """Return the job once it has ended, or after `wait_ms` (`GET /penstock/jobs/ID/wait`)."""
    await dispatcher.wait(job_id, max(0, min(wait_ms, _MAX_WAIT_MS)))
    return flink_json.job_detail(dispatcher.detail(job_id), clock.now_ms())


def taskmanagers(dispatcher: Dispatcher) -> dict[str, Any]:
    """Return the registered TaskManagers (`GET /taskmanagers`)."""
    return {"taskmanagers": [flink_json.taskmanager(view) for view in dispatcher.taskmanagers()]}


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, JobIdentityError):
        return 409
    if isinstance(error, UnreachableError):
        return 502
    if isinstance(error, NotStartedError):
        return 503
    if isinstance(error, (UsageError, ConnectorError, StateMismatchError)):
        return 400
    return 504 if isinstance(error, UnansweredError) else 500


def too_large(size: int) -> UsageError:
    """Return the error of a graph of so many bytes."""
    msg = f"the job graph has {size:,} bytes, more than {MAX_GRAPH_BYTES:,}"
    return UsageError(msg, hint="pass large data through files or topics, not through the job")
