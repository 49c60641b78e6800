"""What the HA store holds: who leads, and the record of every job, so that a new leader can recover them all.

Used by the dispatcher in a store thread. Records are written by compare-and-set and carry the leader's generation: a
superseded leader cannot overwrite what its successor wrote.
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
    #: SHA-256 of `graph`, hexadecimal; empty in records of before there was one.
    graph_sha256: str = ""
    #: How it was started, as the dispatcher understands it.
    options: dict[str, str | bool | tuple[str, ...]] = {}
    #: Flink's job state when it is terminal, else empty.
    ended: str = ""
    ended_ms: int = -1
    error: str = ""
    generation: int = 0
    #: The request that made the job what it is, when it was rescaled.
    rescale_token: str = ""
    #: The request that has stopped it, and where its savepoint lies.
    stop_token: str = ""
    stop_uri: str = ""
    #: The newest upgrade.
    upgrade: UpgradeRecord | None = None


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads under a generation."""

    generation: int
    jobmanager_id: str
    pid: int
    address: str = ""
    since_ms: int = 0


def cluster_id(store: ObjectStore, rand: Rand) -> str:
    """Return the id of this HA root, minted by the first to ask: the lease holder's name over all restarts."""
    store.put_if_absent(_CLUSTER_KEY, msgspec.json.encode({"cluster_id": rand.token()}))
    found: str = msgspec.json.decode(store.read(_CLUSTER_KEY), type=dict[str, str])["cluster_id"]
    return found


def become_leader(store: ObjectStore, record: LeaderRecord) -> LeaderRecord:
    """Take the next generation; from here on an older leader's writes are refused."""
    generation = newest_generation(store)
    for _ in range(_MAX_RACES):
        generation += 1
        mine = msgspec.structs.replace(record, generation=generation)
        key = _leader_key(generation)
        if store.put_if_absent(key, msgspec.json.encode(mine)):
            return mine
        # A repeated put of an ambiguous one finds itself.
        if msgspec.json.decode(store.read(key), type=LeaderRecord) == mine:
            return mine
    msg = f"no leader generation could be taken in {store.uri}"
    raise StorageError(msg, hint="do many JobManagers start at once?")


def newest_generation(store: ObjectStore) -> int:
    """Return the newest leader generation, 0 when there was none."""
    names = (key.removeprefix("leader/").removesuffix(".json") for key in store.list("leader/"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def check_leading(store: ObjectStore, generation: int) -> None:
    """Raise LeadershipLostError when a newer generation exists."""
    newest = newest_generation(store)
    if newest > generation:
        msg = f"a JobManager of generation {newest} has taken over from generation {generation} in {store.uri}"
        raise LeadershipLostError(msg, hint="this process steps down and leaves everything as it is")


def write_record(store: ObjectStore, record: JobRecord) -> None:
    """Write a job's record.

    Raises:
        LeadershipLostError: a newer leader wrote it.
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
    msg = f"the record of job {record.job_id} changes too fast"
    raise StorageError(msg, hint="several JobManagers fight for the same HA root")


def read_records(store: ObjectStore, generation: int = 0) -> tuple[JobRecord, ...]:
    """Return all job records, oldest first.

    Records of jobs that have not ended become those of the leader `generation`, if it is given: what an older one had
    begun to write of them when it was superseded is refused from then on.

    Raises:
        LeadershipLostError: a newer leader owns one. StorageError: one cannot be decoded; names it.
    """
    found = []
    for key in store.list("jobs/"):
        try:
            record = _taken(store, key, generation)
        except FileNotFoundError:
            continue  # another leader has forgotten it
        except msgspec.MsgspecError as error:
            msg = f"job record {store.uri}/{key} is damaged: {error}"
            raise StorageError(msg, hint="move it away to start without that job") from error
        if record.graph_sha256 not in {"", hashlib.sha256(record.graph).hexdigest()}:
            msg = f"the job graph in {store.uri}/{key} is not the one that was submitted: its SHA-256 has changed"
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
    msg = f"{store.uri}/{key} changes too fast"
    raise StorageError(msg, hint="several JobManagers fight for the same HA root")


def delete_record(store: ObjectStore, job_id: str) -> None:
    """Forget a job that has ended."""
    store.delete(_job_key(job_id))


def _job_key(job_id: str) -> str:
    return f"jobs/{job_id}.json"


def _leader_key(generation: int) -> str:
    return f"leader/{generation:012d}.json"
