"""Flink's routes about the cluster's processes: configuration, environment, logs, threads, single TaskManagers.

Added to the application by `penstock.rest.server.app`; the responses are built in `rest.flink.cluster_documents`.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi.responses import PlainTextResponse

import penstock
from penstock.core.errors import NotFoundError
from penstock.jobmanager.observe.profiling import worker_threads
from penstock.metrics.process import thread_dump
from penstock.rest.flink import cluster_documents as flink_cluster
from penstock.taskmanager.worker_logs import tail_of

if TYPE_CHECKING:
    from fastapi import APIRouter

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher

_OWN_LOG = "taskmanager.log"
#: The JobManager's log, by its descriptor: this also works after a rename or deletion.
_OWN = Path("/proc/self/fd/2")
#: Only the end of a log is returned.
_MOST_BYTES = 1 << 20


def add_routes(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    """Add the routes."""
    _add_jobmanager(router, dispatcher)
    _add_taskmanager(router, dispatcher)
    _add_logs(router, dispatcher, clock)


def _add_jobmanager(router: APIRouter, dispatcher: Dispatcher) -> None:
    @router.get("/jobmanager/config")
    async def config() -> list[dict[str, Any]]:
        cluster = dispatcher.cluster()
        about = {"jobmanager.rpc.address": cluster.rpc_address, "penstock.version": penstock.__version__}
        return flink_cluster.settings_entries(cluster.settings, about)

    @router.get("/jobmanager/environment")
    async def environment() -> dict[str, Any]:
        return flink_cluster.environment()

    @router.get("/jobmanager/thread-dump")
    async def threads() -> dict[str, Any]:
        return flink_cluster.thread_infos(thread_dump())

    @router.get("/jobmanager/logs")
    async def logs() -> dict[str, Any]:
        name = own_log()
        if name is None:
            return {"logs": []}
        found = os.fstat(2)
        return {"logs": [{"name": name, "size": found.st_size, "mtime": int(found.st_mtime * 1000)}]}

    @router.get("/jobmanager/logs/{name}")
    async def log_file(name: str) -> PlainTextResponse:
        if name != own_log():
            raise NotFoundError(f"the JobManager has no log {name!r}", hint="see /jobmanager/logs")
        return PlainTextResponse(tail_of(_OWN, _MOST_BYTES))

    @router.get("/jobmanager/log")
    @router.get("/jobmanager/stdout")
    async def log() -> PlainTextResponse:
        """Return the end of the process's standard error if that is a file; standard output is redirected to it."""
        return PlainTextResponse("" if own_log() is None else tail_of(_OWN, _MOST_BYTES))

    @router.get("/jobmanager/profiler")
    async def profiles() -> dict[str, Any]:
        return {"profilingList": []}


def _add_taskmanager(router: APIRouter, dispatcher: Dispatcher) -> None:
    @router.get("/taskmanagers/{taskmanager_id}")
    async def detail(taskmanager_id: str) -> dict[str, Any]:
        return flink_cluster.taskmanager_detail(
            flink_cluster.find_taskmanager(dispatcher.taskmanagers(), taskmanager_id)
        )

    @router.delete("/penstock/taskmanagers/{taskmanager_id}", status_code=202)
    async def release(taskmanager_id: str, *, drain: bool = False) -> dict[str, Any]:
        """Shut down a TaskManager; answers 400 if a job uses it, unless the jobs are moved first (`drain`)."""
        if drain:
            dispatcher.rescales.drain(taskmanager_id)
        else:
            dispatcher.release_taskmanager(taskmanager_id)
        return {}

    @router.get("/taskmanagers/{taskmanager_id}/profiler")
    async def profiles(taskmanager_id: str) -> dict[str, Any]:
        flink_cluster.find_taskmanager(dispatcher.taskmanagers(), taskmanager_id)
        return {"profilingList": []}

    @router.get("/taskmanagers/{taskmanager_id}/thread-dump")
    async def threads(taskmanager_id: str) -> dict[str, Any]:
        view = flink_cluster.find_taskmanager(dispatcher.taskmanagers(), taskmanager_id)
        own, workers = await asyncio.gather(
            dispatcher.threads(taskmanager_id), worker_threads(view, dispatcher.queries)
        )
        return flink_cluster.thread_infos([*own, *workers])


def _add_logs(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    @router.get("/taskmanagers/{taskmanager_id}/logs")
    async def logs(taskmanager_id: str) -> dict[str, Any]:
        view = flink_cluster.find_taskmanager(dispatcher.taskmanagers(), taskmanager_id)
        names = [_OWN_LOG, *(f"{worker.worker_id}.log" for worker in view.workers)]
        now_ms = clock.now_ms()
        return {"logs": [{"name": name, "size": await _size(taskmanager_id, name), "mtime": now_ms} for name in names]}

    async def _size(taskmanager_id: str, name: str) -> int:
        return len((await _text(taskmanager_id, name)).encode())

    async def _text(taskmanager_id: str, name: str) -> str:
        view = flink_cluster.find_taskmanager(dispatcher.taskmanagers(), taskmanager_id)
        worker_id = name.removesuffix(".log")
        if name == _OWN_LOG:
            return await dispatcher.log_tail(taskmanager_id)
        if any(worker.worker_id == worker_id for worker in view.workers):
            return await dispatcher.log_tail(taskmanager_id, worker_id)
        raise NotFoundError(f"TaskManager {taskmanager_id} has no log {name!r}", hint="see its /logs")

    @router.get("/taskmanagers/{taskmanager_id}/logs/{name}")
    async def log_file(taskmanager_id: str, name: str) -> PlainTextResponse:
        return PlainTextResponse(await _text(taskmanager_id, name))

    @router.get("/taskmanagers/{taskmanager_id}/log")
    async def log(taskmanager_id: str) -> PlainTextResponse:
        return PlainTextResponse(await _text(taskmanager_id, _OWN_LOG))

    @router.get("/taskmanagers/{taskmanager_id}/stdout")
    async def stdout(taskmanager_id: str) -> PlainTextResponse:
        """Return the output of all workers, one worker after the other."""
        view = flink_cluster.find_taskmanager(dispatcher.taskmanagers(), taskmanager_id)
        texts = [await dispatcher.log_tail(taskmanager_id, worker.worker_id) for worker in view.workers]
        return PlainTextResponse("\n".join(texts))


def own_log() -> str | None:
    """Return the name of the file that standard error is written to; None if it is not a file."""
    try:
        return _OWN.readlink().name.removesuffix(" (deleted)") if stat.S_ISREG(os.fstat(2).st_mode) else None
    except OSError:
        return None
