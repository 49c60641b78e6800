"""The jobs a leader finds in its HA store, and those it forgets; blocking, called by the dispatcher."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from penstock.checkpoint.job_records import JobRecord, delete_record, read_records
from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import StorageError
from penstock.graph.job_graph import JobGraph, decode_graph

#: Ended jobs that are remembered. The token of a forgotten one starts a new job.
REMEMBERED = 1000


def recorded_jobs(store: ObjectStore) -> tuple[tuple[JobRecord, JobGraph], ...]:
    """Return all jobs, oldest first, without those that ended and whose graph this version cannot read.

    Raises:
        StorageError: a record is damaged, or the graph of a job that has not ended cannot be read; names it.
    """
    found = []
    records = read_records(store)
    forgotten = forget_oldest(store, records)
    for record in records:
        if record.job_id in forgotten:
            continue
        try:
            found.append((record, decode_graph(record.graph)))
        except msgspec.MsgspecError as error:
            if record.ended:
                continue
            msg = f"the graph in {store.uri}/jobs/{record.job_id}.json cannot be read: {error}"
            raise StorageError(msg, hint="is it of another version? move it away to start without that job") from error
    return tuple(found)


def forget_oldest(store: ObjectStore, records: Iterable[JobRecord]) -> set[str]:
    """Delete the records of all ended jobs but the last `REMEMBERED` to end; return their ids.

    One that cannot be deleted now is found and tried again.
    """
    ended = sorted((record for record in records if record.ended), key=lambda record: record.ended_ms)
    forgotten = {record.job_id for record in ended[:-REMEMBERED]}
    for job_id in forgotten:
        try:
            delete_record(store, job_id)
        except StorageError as error:
            logging.getLogger(__name__).warning("job %s ended long ago and its record stays: %s", job_id, error)
    return forgotten
