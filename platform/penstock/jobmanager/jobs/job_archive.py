"""The archive of an ended job: its last views in the HA store, so that later JobManagers show them too.

Made and read by the dispatcher. No job depends on an archive: without one, an ended job is shown from its record alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable

import msgspec

from penstock.checkpoint import ha_records
from penstock.checkpoint.ha_records import JobRecord, delete_archive, read_archive, write_archive
from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import PenstockError
from penstock.core.event_log import Entry
from penstock.core.secrets import redact
from penstock.core.structs import prepare
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.jobs import job_views
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages.views import (
    CheckpointsView,
    CheckpointView,
    ExceptionView,
    JobSummary,
    LastWorkerView,
    VertexView,
)

_LOGGER = logging.getLogger(__name__)


class JobArchive(msgspec.Struct, frozen=True, kw_only=True):
    """The shown record of an ended job."""

    #: Of the JobManager that recorded the end: an archive of another one does not belong to the record.
    generation: int
    summary: JobSummary
    vertices: tuple[VertexView, ...]
    #: State -> when it was last entered.
    timestamps: dict[str, int]
    checkpoints: CheckpointsView
    exceptions: tuple[ExceptionView, ...]
    workers: tuple[LastWorkerView, ...]
    #: Event log entries of earlier runs, derived from the manifest log.
    earlier_runs: tuple[Entry, ...] = ()

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The last metrics: `<vertex>/<subtask>` -> name -> value."""
        return {f"{v.id}/{s.subtask}": s.metrics for v in self.vertices for s in v.subtasks if s.metrics}


prepare(JobArchive)


def archive_of(record: JobRecord, graph: JobGraph, master: JobMaster, now_ms: int) -> JobArchive:
    """Return the archive of a job that has ended; `record` has its end."""
    summary = job_views.summary_of(record, graph, master, now_ms)
    detail = job_views.detail_of(summary, graph, master, now_ms)
    return JobArchive(
        generation=record.generation,
        summary=summary,
        vertices=detail.vertices,
        timestamps=detail.timestamps,
        checkpoints=_condensed(job_views.checkpoints_of(record, master)),
        exceptions=job_views.exceptions_of(record, master),
        workers=job_views.last_workers_of(master),
        earlier_runs=tuple(entry for entry in master.event_log.earlier if entry.job_id != record.job_id),
    )


def save_archive(store: ObjectStore, archive: JobArchive) -> JobArchive:
    """Write the archive and return it; a store that fails is logged. Runs in a thread: an archive may have megabytes.

    An earlier JobManager may have archived the job and died before it recorded the end. Its archive is kept: this one
    has not run the job and knows less.
    """
    job_id = archive.summary.job_id
    try:
        if "RUNNING" not in archive.timestamps:
            before = read_archive(store, job_id, JobArchive)
            if before is not None and _same_end(before, archive):
                archive = msgspec.structs.replace(before, generation=archive.generation)
        write_archive(store, job_id, msgspec.json.encode(_stored(archive)))
    except PenstockError as error:
        _LOGGER.warning("the archive of job %s was not stored: %s", job_id, error)
    return archive


async def drop_archive(store: ObjectStore, job_id: str) -> None:
    """Delete the archive of a job that is no longer shown in full; a store that fails is logged."""
    try:
        await asyncio.to_thread(delete_archive, store, job_id)
    except PenstockError as error:
        _LOGGER.warning("the archive of job %s was not deleted: %s", job_id, error)


def read_archives(store: ObjectStore, records: Iterable[JobRecord], count: int) -> dict[str, JobArchive]:
    """Return the archives of the `count` jobs that ended last, by job id; one that cannot be read is logged."""
    ended = sorted((record for record in records if record.ended), key=lambda record: record.ended_ms)
    generations = {record.job_id: record.generation for record in ended[max(0, len(ended) - count) :]}
    found = ha_records.read_archives(store, generations, JobArchive)
    return {job_id: archive for job_id, archive in found.items() if archive.generation == generations[job_id]}


def _condensed(view: CheckpointsView) -> CheckpointsView:
    """Return the view with subtasks of the newest checkpoint only: a hundred times all subtasks are megabytes."""
    newest_id = view.history[0].id if view.history else None

    def condensed(checkpoint: CheckpointView) -> CheckpointView:
        return checkpoint if checkpoint.id == newest_id else msgspec.structs.replace(checkpoint, subtasks=())

    return msgspec.structs.replace(
        view,
        history=tuple(condensed(checkpoint) for checkpoint in view.history),
        latest_completed=view.latest_completed and condensed(view.latest_completed),
        latest_savepoint=view.latest_savepoint and condensed(view.latest_savepoint),
        latest_failed=view.latest_failed and condensed(view.latest_failed),
    )


def _same_end(one: JobArchive, other: JobArchive) -> bool:
    return (one.summary.run_id, one.summary.state) == (other.summary.run_id, other.summary.state)


def _stored(archive: JobArchive) -> JobArchive:
    """Return the archive as it is stored: without secrets in its failures, and with finite metrics only.

    JSON has no infinite numbers.
    """
    exceptions = tuple(
        msgspec.structs.replace(failure, error=redact(failure.error), detail=redact(failure.detail))
        for failure in archive.exceptions
    )
    summary = msgspec.structs.replace(archive.summary, error=redact(archive.summary.error))
    vertices = tuple(_finite(vertex) for vertex in archive.vertices)
    return msgspec.structs.replace(archive, summary=summary, exceptions=exceptions, vertices=vertices)


def _finite(vertex: VertexView) -> VertexView:
    subtasks = tuple(
        msgspec.structs.replace(subtask, metrics={k: v for k, v in subtask.metrics.items() if math.isfinite(v)})
        for subtask in vertex.subtasks
    )
    return msgspec.structs.replace(vertex, subtasks=subtasks)
