"""Flink's JSON of a cluster's processes and of its applications; numbers are never null.

Pure functions, called by the routes in `rest.jobs.process_routes` and `rest.jobs.job_routes`. Flink groups jobs by
application; here each job is an application.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from penstock.core.errors import NotFoundError
from penstock.rest.flink.documents import job_overview, network_memory, slots_resource, taskmanager

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.config.settings import ClusterSettings, JobSettings
    from penstock.jobmanager.messages.views import ClusterView, ExceptionView, JobDetail, JobSummary, TaskManagerView
    from penstock.rpc.messages import SlotStatus

Json = dict[str, Any]
#: Application states that differ from the job's state.
_APPLICATION = {"RESTARTING": "RUNNING", "RECONCILING": "RUNNING", "FAILING": "FAILING", "CANCELLING": "CANCELING"}


def application(job: JobSummary, now_ms: int) -> Json:
    """Return an entry of `/applications/overview`."""
    start_ms, end_ms = job.start_ms, job.end_ms
    return {
        "id": job.job_id,
        "name": job.name,
        "start-time": start_ms,
        "end-time": end_ms,
        "duration": (end_ms if end_ms >= 0 else now_ms) - start_ms,
        "status": _APPLICATION.get(job.state, job.state),
        "jobs": {job.state: 1},
    }


def application_detail(detail: JobDetail, now_ms: int) -> Json:
    """Return the body of `/applications/:id`."""
    timestamps = {
        state: detail.timestamps.get(state, 0)
        for state in ("CREATED", "RUNNING", "FAILING", "FAILED", "CANCELING", "CANCELED", "FINISHED")
    }
    shown = application(detail.summary, now_ms)
    return {**shown, "timestamps": timestamps, "jobs": [job_overview(detail.summary, now_ms)]}


def application_exceptions(job_id: str, views: Iterable[ExceptionView]) -> Json:
    """Return the body of `/applications/:id/exceptions`."""
    entries = [
        {
            "exceptionName": view.error.partition(":")[0],
            "stacktrace": view.detail or view.error,
            "timestamp": view.at_ms,
            "jobId": job_id,
        }
        for view in views
    ]
    return {"exceptionHistory": {"entries": entries}}


def job_config(detail: JobDetail) -> Json:
    """Return the body of `/jobs/:id/config`: execution and settings of the job, without secrets."""
    settings = detail.settings
    return {
        "jid": detail.summary.job_id,
        "name": detail.summary.name,
        "execution-config": {
            "restart-strategy": settings.restart.kind,
            "job-parallelism": settings.parallelism,
            "object-reuse-mode": True,
            "user-config": {key: str(value) for key, value in _fields(settings).items()},
        },
    }


def settings_entries(settings: ClusterSettings | JobSettings, more: Mapping[str, str]) -> list[Json]:
    """Return keys and values of settings, for `/jobmanager/config`."""
    entries = {**{key: str(value) for key, value in _fields(settings).items()}, **more}
    return [{"key": key, "value": value} for key, value in sorted(entries.items())]


def environment() -> Json:
    """Return the body of `/jobmanager/environment`, with the interpreter in place of the JVM.

    Arguments may contain paths, never secrets.
    """
    return {
        "jvm": {"version": f"CPython {sys.version.split()[0]}", "arch": sys.platform, "options": list(sys.argv[1:])},
        "classpath": [path for path in sys.path if path],
    }


def thread_infos(threads: Iterable[tuple[str, str]]) -> Json:
    """Return the stacks of threads, for `/jobmanager/thread-dump` and `/taskmanagers/:id/thread-dump`."""
    return {"threadInfos": [{"threadName": name, "stringifiedThreadInfo": text} for name, text in threads]}


def find_taskmanager(views: Iterable[TaskManagerView], taskmanager_id: str) -> TaskManagerView:
    """Return the registered TaskManager with that id; raises NotFoundError."""
    for view in views:
        if view.taskmanager_id == taskmanager_id:
            return view
    raise NotFoundError(f"no TaskManager {taskmanager_id!r}", hint="see /taskmanagers")


def taskmanager_detail(view: TaskManagerView) -> Json:
    """Return the body of `/taskmanagers/:id`, with its taken slots and the process's resource usage."""
    process = view.process
    heap, other = "Status.JVM.Memory.Heap.", "Status.JVM.Memory.NonHeap."
    taken: dict[int, SlotStatus] = {}
    for held in view.taken_slots:
        taken.setdefault(held.slot, held)  # its successor has the slot too
    return {
        **taskmanager(view),
        "allocatedSlots": [
            {
                "jobId": held.job_id,
                "resource": slots_resource(view, 1),
                "assignedTasks": 0,
                "index": held.slot,
                "state": held.state,
            }
            for held in taken.values()
        ],
        "metrics": {
            "heapUsed": int(process.get(f"{heap}Used", 0)),
            "heapCommitted": int(process.get(f"{heap}Committed", 0)),
            "heapMax": int(process.get(f"{heap}Max", 0)),
            "nonHeapUsed": int(process.get(f"{other}Used", 0)),
            "nonHeapCommitted": int(process.get(f"{other}Committed", 0)),
            "nonHeapMax": int(process.get(f"{other}Max", 0)),
            **dict.fromkeys(("directCount", "directUsed", "directMax", "mappedCount", "mappedUsed", "mappedMax"), 0),
            **{
                f"{prefix}{what}": 0
                for prefix in ("memorySegments", "nettyShuffleMemorySegments")
                for what in ("Available", "Used", "Total")
            },
            **{f"nettyShuffleMemory{what}": size for what, size in _network_memory(view).items()},
            "garbageCollectors": [
                {"name": "Python", "count": int(process.get("Status.JVM.GarbageCollector.All.Count", 0)), "time": 0}
            ],
        },
    }


def taskmanager_values(view: TaskManagerView) -> dict[str, float | str]:
    """Return a TaskManager's metrics for `/taskmanagers/:id/metrics`."""
    workers = sum(worker.memory_bytes for worker in view.workers)
    managed = sum(worker.metrics.get("managedMemoryUsed", 0.0) for worker in view.workers)
    network = {f"Status.Shuffle.Netty.{what}Memory": size for what, size in _network_memory(view).items()}
    return {
        **view.process,
        "taskSlotsTotal": view.slots,
        "taskSlotsAvailable": view.free_slots,
        "Status.Penstock.Workers.Count": len(view.workers),
        "Status.Penstock.Workers.Memory.Used": workers,
        "Status.Flink.Memory.Managed.Used": managed,
        "Status.Flink.Memory.Managed.Total": view.memory.managed_bytes,
        **network,
        **{f"Status.Penstock.Network.Memory.{what.title()}": size for what, size in network_memory(view).items()},
    }


def scrape_targets(
    cluster: ClusterView, rest_address: str, managers: Iterable[TaskManagerView], *, rest_scheme: str = "http"
) -> list[Json]:
    """Return the `/metrics` addresses in the format of Prometheus' HTTP service discovery.

    Each target has its own scheme, because TaskManagers serve on loopback without TLS even if REST uses TLS.
    """
    labels = {"component": "jobmanager", "id": cluster.jobmanager_id, "__scheme__": rest_scheme}
    found = [{"targets": [rest_address], "labels": labels}]
    for view in managers:
        if view.metrics_address:
            labels = {"component": "taskmanager", "id": view.taskmanager_id, "__scheme__": "http"}
            found.append({"targets": [view.metrics_address], "labels": labels})
    return found


def _network_memory(view: TaskManagerView) -> dict[str, int]:
    total, used = view.memory.network_bytes, network_memory(view)["used"]
    return {"Total": total, "Used": used, "Available": max(0, total - used)}


def _fields(settings: ClusterSettings | JobSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
