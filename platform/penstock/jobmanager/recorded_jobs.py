"""The jobs a new leader finds in its HA store: their records with their graphs; blocking, called by the dispatcher."""

from __future__ import annotations

import msgspec

from penstock.checkpoint.job_records import JobRecord, read_records
from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import StorageError
from penstock.graph.job_graph import JobGraph, decode_graph


def recorded_jobs(store: ObjectStore) -> tuple[tuple[JobRecord, JobGraph], ...]:
    """Return all jobs, oldest first, without those that ended and whose graph this version cannot read.

    Raises:
        StorageError: a record is damaged, or the graph of a job that has not ended cannot be read; names it.
    """
    found = []
    for record in read_records(store):
        try:
            found.append((record, decode_graph(record.graph)))
        except msgspec.MsgspecError as error:
            if record.ended:
                continue
            msg = f"the graph in {store.uri}/jobs/{record.job_id}.json cannot be read: {error}"
            raise StorageError(msg, hint="is it of another version? move it away to start without that job") from error
    return tuple(found)
