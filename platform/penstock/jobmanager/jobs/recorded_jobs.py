"""Reads, builds and deletes the job records of the HA store, and the start options that a record keeps.

Called by the dispatcher and the driver; REST decodes `SubmitOptions` from a submit request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from penstock.checkpoint.ha_records import (
    RECORD_HINT,
    DamagedRecord,
    JobRecord,
    delete_record,
    prune_event_logs,
    read_records,
)
from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import join_uri
from penstock.core.errors import StorageError
from penstock.graph.job_graph import JobGraph, decode_graph, encode_graph
from penstock.jobmanager.jobs.job_store import StartOptions
from penstock.jobmanager.messages.commands import OperationEnded


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The start options of a job."""

    #: Two submits with the same token give one job.
    token: str = ""
    #: A savepoint (or a retained checkpoint's manifest) to start from, instead of the job's own newest checkpoint.
    from_uri: str = ""
    #: Start a new history: ignore the job's own checkpoints.
    fresh: bool = False
    #: With `from_uri`: True continues that lineage (fences it and publishes its pending output), False forks it.
    claim: bool = True
    #: Accept a start older than output that may have been published (recorded in the event log).
    accept_duplicates: bool = False
    #: States that may be dropped, by name: `uid` or `uid/state`.
    allow_non_restored_state: tuple[str, ...] = ()
    #: The span of the submission's caller, as a W3C `traceparent` header.
    traceparent: str = ""


DEFAULT_OPTIONS = SubmitOptions()


_VERSION_HINT = f"it may be of another version: start that, or {RECORD_HINT}"
#: Number of ended jobs that are kept. A token of a deleted record starts a new job.
_RETAINED = 1000


def default_root(graph: JobGraph, ha_uri: str) -> JobGraph:
    """Return the graph with a checkpoint root; without one from the submitter it is below the HA root."""
    if graph.settings.checkpoint_root:
        return graph
    settings = msgspec.structs.replace(graph.settings, checkpoint_root=join_uri(ha_uri, "checkpoints"))
    return msgspec.structs.replace(graph, settings=settings)


def recorded_jobs(
    store: ObjectStore, generation: int = 0, retained: int = _RETAINED
) -> tuple[tuple[tuple[JobRecord, JobGraph], ...], tuple[DamagedRecord, ...]]:
    """Return all jobs, oldest first, and the unfinished ones whose record, graph or options cannot be read.

    Unfinished jobs are taken over by the leader `generation`; see `read_records`.

    Raises:
        LeadershipLostError: there is a newer leader. StorageError: the store cannot be read.
    """
    records, damaged = read_records(store, generation)
    forgotten = delete_oldest(store, records, retained)
    return _decoded(store, [record for record in records if record.job_id not in forgotten], damaged)


def readable_jobs(
    store: ObjectStore,
) -> tuple[tuple[tuple[JobRecord, JobGraph], ...], tuple[DamagedRecord, ...]]:
    """Return what `recorded_jobs` returns to a leader, and change nothing. Raises StorageError."""
    return _decoded(store, *read_records(store))


def _decoded(
    store: ObjectStore, records: Iterable[JobRecord], damaged: tuple[DamagedRecord, ...]
) -> tuple[tuple[tuple[JobRecord, JobGraph], ...], tuple[DamagedRecord, ...]]:
    found = []
    for record in records:
        try:
            if not record.ended:
                start_options_of(record)
            found.append((record, decode_graph(record.graph)))
        except (msgspec.MsgspecError, StorageError) as error:
            if record.ended:
                continue
            text = str(error)
            if not isinstance(error, StorageError):
                text = f"the graph in {store.uri}/jobs/{record.job_id}.json cannot be read: {error}"
            damaged += (DamagedRecord(job_id=record.job_id, name=record.name, error=f"{text} ({_VERSION_HINT})"),)
    return tuple(found), damaged


def start_options_of(record: JobRecord) -> StartOptions:
    """Return the source of a job's initial state; accepts records of earlier versions.

    Raises:
        StorageError: the options match no version; the message names the job.
    """
    options = dict(record.options)
    if isinstance(options.get("allow_non_restored_state"), bool):
        del options["allow_non_restored_state"]  # formerly a switch; states to drop are named since
    try:
        return msgspec.convert(options, StartOptions)
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"the options of job {record.name!r} in jobs/{record.job_id}.json cannot be read: {error}"
        ) from error


def submitted_record(
    graph: JobGraph, options: SubmitOptions, ids: tuple[str, str], now_ms: int, generation: int
) -> JobRecord:
    """Return the record of a new job; `ids` are the job's and its first run's."""
    return JobRecord(
        job_id=ids[0],
        name=graph.name,
        run_id=ids[1],
        token=options.token,
        submitted_ms=now_ms,
        graph=encode_graph(graph),
        options={k: v for k, v in msgspec.to_builtins(options).items() if k != "token"},
        generation=generation,
    )


def stopped_record(record: JobRecord, stop: OperationEnded | None) -> JobRecord:
    """Return the record of an ended job with the reply to the stop that ended it, if there was one."""
    if stop is None:
        return record
    return msgspec.structs.replace(record, stop_token=stop.request_id, stop_uri=stop.uri)


def delete_oldest(store: ObjectStore, records: Iterable[JobRecord], retained: int = _RETAINED) -> set[str]:
    """Delete the records of all ended jobs except the `retained` newest; return their ids.

    A record that cannot be deleted is logged and tried again at the next call.
    """
    ended = sorted((record for record in records if record.ended), key=lambda record: record.ended_ms)
    forgotten = {record.job_id for record in ended[:-retained]}
    for job_id in forgotten:
        try:
            delete_record(store, job_id)
            prune_event_logs(store, job_id, 0)
        except StorageError as error:
            logging.getLogger(__name__).warning("cannot delete the record of the ended job %s: %s", job_id, error)
    return forgotten
