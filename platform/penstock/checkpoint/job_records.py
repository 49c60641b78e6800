"""The leader record and the job records of the HA store, from which a new leader recovers all jobs.

Used by the dispatcher in a store thread. Records are written by compare-and-set and carry the leader's generation: a
superseded leader cannot overwrite the records of its successor.
"""

from __future__ import annotations

import hashlib

import msgspec

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.upgrade_record import UpgradeRecord
from penstock.core.errors import LeadershipLostError, StorageError
from penstock.core.rand import Rand

_MAX_RACES = 1000
_CLUSTER_KEY = "cluster.json"


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A submitted job."""

    job_id: str
    name: str
    run_id: str
    token: str
    submitted_ms: int
    #: `graph.job_graph.encode_graph`.
    graph: bytes
    #: SHA-256 of `graph`, hexadecimal; empty in records of older versions.
    graph_sha256: str = ""
    #: Start options, in the dispatcher's format.
    options: dict[str, str | bool | tuple[str, ...]] = {}
    #: Flink's terminal job state, empty while the job is not terminal.
    ended: str = ""
    ended_ms: int = -1
    error: str = ""
    generation: int = 0
    #: Id of the rescale request that led to this definition of the job.
    rescale_token: str = ""
    #: Id of the request that stopped the job, and the path of its savepoint.
    stop_token: str = ""
    stop_uri: str = ""
    #: The newest upgrade.
    upgrade: UpgradeRecord | None = None


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of one generation."""

    generation: int
    jobmanager_id: str
    pid: int
    address: str = ""
    since_ms: int = 0


def cluster_id(store: ObjectStore, rand: Rand) -> str:
    """Return the id of this HA root, created at the first call; lease holders are named by it across restarts."""
    store.put_if_absent(_CLUSTER_KEY, msgspec.json.encode({"cluster_id": rand.token()}))
    found: str = msgspec.json.decode(store.read(_CLUSTER_KEY), type=dict[str, str])["cluster_id"]
    return found


def become_leader(store: ObjectStore, record: LeaderRecord) -> LeaderRecord:
    """Take the next generation; from then on writes of older leaders are refused."""
    generation = newest_generation(store)
    for _ in range(_MAX_RACES):
        generation += 1
        mine = msgspec.structs.replace(record, generation=generation)
        key = _leader_key(generation)
        if store.put_if_absent(key, msgspec.json.encode(mine)):
            return mine
        # a put with an unknown outcome that is repeated finds its own record
        if msgspec.json.decode(store.read(key), type=LeaderRecord) == mine:
            return mine
    msg = f"the JobManager could not become the leader in {store.uri}: its generation was taken in every attempt"
    raise StorageError(msg, hint="start fewer JobManagers at the same time")


def newest_generation(store: ObjectStore) -> int:
    """Return the newest leader generation, 0 when there was none."""
    names = (key.removeprefix("leader/").removesuffix(".json") for key in store.list("leader/"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def check_leading(store: ObjectStore, generation: int) -> None:
    """Raise LeadershipLostError when a newer generation exists."""
    newest = newest_generation(store)
    if newest > generation:
        msg = f"a JobManager of generation {newest} has taken over from generation {generation} in {store.uri}"
        raise LeadershipLostError(msg, hint="this process steps down and changes nothing")


def write_record(store: ObjectStore, record: JobRecord) -> None:
    """Write a job's record.

    Raises:
        LeadershipLostError: a newer leader has written it.
    """
    record = msgspec.structs.replace(record, graph_sha256=hashlib.sha256(record.graph).hexdigest())
    key, data = _job_key(record.job_id), msgspec.json.encode(record)
    for _ in range(_MAX_RACES):
        if store.put_if_absent(key, data):
            return
        present, etag = store.read_with_etag(key)
        if present == data:
            return
        if msgspec.json.decode(present, type=JobRecord).generation > record.generation:
            msg = f"a newer leader owns job {record.job_id}"
            raise LeadershipLostError(msg, hint="this process steps down")
        if store.put_if_match(key, data, etag):
            return
    msg = f"the record of job {record.job_id} changed during every attempt to write it"
    raise StorageError(msg, hint="several JobManagers compete for the same HA root: give each its own")


def read_records(store: ObjectStore, generation: int = 0) -> tuple[JobRecord, ...]:
    """Return all job records, oldest first.

    With `generation`, records of jobs that have not ended are taken over by that leader. From then on, writes of an
    older leader are refused, also those it had begun.

    Raises:
        LeadershipLostError: a newer leader owns one.
        StorageError: one cannot be decoded; names it.
    """
    found = []
    for key in store.list("jobs/"):
        try:
            record = _taken(store, key, generation)
        except FileNotFoundError:
            continue  # deleted by another leader
        except msgspec.MsgspecError as error:
            msg = f"job record {store.uri}/{key} is damaged: {error}"
            raise StorageError(msg, hint="move it away to start without that job") from error
        if record.graph_sha256 not in {"", hashlib.sha256(record.graph).hexdigest()}:
            msg = f"the job graph in {store.uri}/{key} differs from the submitted one: its SHA-256 has changed"
            raise StorageError(msg, hint="move the record away to start without that job")
        found.append(msgspec.structs.replace(record, graph_sha256=""))
    return tuple(sorted(found, key=lambda record: (record.submitted_ms, record.job_id)))


def _taken(store: ObjectStore, key: str, generation: int) -> JobRecord:
    for _ in range(_MAX_RACES):
        present, etag = store.read_with_etag(key)
        record = msgspec.json.decode(present, type=JobRecord)
        if not generation or record.ended or record.generation == generation:
            return record
        if record.generation > generation:
            msg = f"a newer leader owns job {record.job_id}"
            raise LeadershipLostError(msg, hint="this process steps down")
        mine = msgspec.structs.replace(record, generation=generation)
        if store.put_if_match(key, msgspec.json.encode(mine), etag):
            return mine
    msg = f"{store.uri}/{key} changed during every attempt to take it over"
    raise StorageError(msg, hint="several JobManagers compete for the same HA root: give each its own")


def delete_record(store: ObjectStore, job_id: str) -> None:
    """Delete the record of a job that has ended."""
    store.delete(_job_key(job_id))


def _job_key(job_id: str) -> str:
    return f"jobs/{job_id}.json"


def _leader_key(generation: int) -> str:
    return f"leader/{generation:012d}.json"
