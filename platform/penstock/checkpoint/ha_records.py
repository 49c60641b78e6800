"""The records of the HA store: leader, jobs with their newest upgrade, archives of ended jobs, event logs of leaders.

Used by the dispatcher in a store thread; a new leader recovers all jobs from them. Records are written by compare-
and-set and carry the leader's generation, so a superseded leader cannot overwrite them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, TypeVar

import msgspec

from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import LeadershipLostError, StorageError
from penstock.core.event_log import Entry
from penstock.core.rand import Rand
from penstock.core.secrets import redact
from penstock.core.structs import prepare

_LOGGER = logging.getLogger(__name__)
T = TypeVar("T")

#: `cut`: the old version runs until its checkpoint is taken; `trial`: the new one runs and may be rolled back. The
#: others are ends: `completed`, `rolled-back` (the old version runs again), `refused` (it was never replaced), `kept`
#: (the new version did not become healthy but keeps running, as the user chose).
UpgradePhase = Literal["cut", "trial", "completed", "rolled-back", "refused", "kept"]


class UpgradePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an upgrade, and its criteria of health."""

    #: Start from a checkpoint instead of a stop with a savepoint: nothing is copied, and output stops for less time.
    from_checkpoint: bool = False
    #: Path for the savepoint, and whether it has the checkpoint's files as they are: the output stops for less time.
    target: str = ""
    native: bool = True
    #: Checkpoints the new version has to complete.
    checkpoints: int = 3
    #: Restarts that the new version may take meanwhile.
    max_restarts: int = 0
    #: The new version has to be healthy by then; counted from its start, across JobManager restarts.
    deadline_ms: int = 300_000
    #: Healthy only when the user confirms it.
    confirm: bool = False
    #: Roll back when it is not healthy.
    rollback: bool = True
    #: Sinks (uids) that cannot withhold output: after a rollback, their output of the trial stays and is written again.
    accept: tuple[str, ...] = ()
    #: State that the new version does not restore: `uid` or `uid/state`.
    allow_non_restored_state: tuple[str, ...] = ()
    #: Use the parallelism of the running version, not that of the new file.
    keep_parallelism: bool = True
    #: File of the new version, as the user named it; only shown.
    file: str = ""


class UpgradeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The newest upgrade of a job."""

    token: str
    phase: UpgradePhase
    policy: UpgradePolicy
    #: Of the new version.
    run_id: str
    #: Of the old version, after a rollback.
    back_run_id: str
    #: The version that does not run now (`graph.job_graph.encode_graph`); empty at the end.
    other: bytes = b""
    #: Sequence of the checkpoint both versions start from; 0 before it was taken.
    base: int = 0
    #: The savepoint, when there is one.
    savepoint: str = ""
    #: Wall time at which the present phase ends.
    deadline_ms: int = 0
    #: Uid -> subtasks of the running version, of the new version's file, and of the new version as it runs, if these
    #: differ.
    parallelism: dict[str, tuple[int, int, int]] = {}
    #: File of the version that ran before; empty if it is that of the job's submission.
    old_file: str = ""
    #: Why it did not end as `completed`.
    reason: str = ""
    #: Wall times of its request and of its outcome; -1: not ended, or recorded by an older version.
    begun_ms: int = -1
    ended_ms: int = -1

    @property
    def ended(self) -> bool:
        """Return whether nothing is left to do."""
        return self.phase not in ("cut", "trial")

    @property
    def running_file(self) -> str:
        """Return the file of the version that runs, also on trial; empty if it is that of the job's submission."""
        return self.policy.file if self.phase in ("trial", "completed", "kept") else self.old_file


class UpgradeRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """An upgrade that was refused before anything was changed, so that the job's record does not have it."""

    token: str
    #: File of the new version, as the user named it.
    file: str
    at_ms: int
    reason: str


#: The way out of a damaged record.
RECORD_HINT = (
    "restore the file and restart the JobManager, or move it away and run the job's file again: "
    "the job resumes from its newest checkpoint"
)
_MAX_RACES = 1000
_CLUSTER_KEY = "cluster.json"
_REFUSALS = "refusals/"


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
    #: Number of leaders that took the job over from an earlier one.
    takeovers: int = 0
    #: Id of the rescale request that led to this definition of the job.
    rescale_token: str = ""
    #: Id of the request that stopped the job, and the path of its savepoint.
    stop_token: str = ""
    stop_uri: str = ""
    #: The newest upgrade.
    upgrade: UpgradeRecord | None = None


class DamagedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job record that cannot be used; the job is suspended until it can."""

    job_id: str
    #: The job's name, if that can be read.
    name: str
    #: The file, its fault, and the way out.
    error: str


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of one generation."""

    generation: int
    jobmanager_id: str
    pid: int


prepare(LeaderRecord, JobRecord, UpgradeRefusal)


def cluster_id(store: ObjectStore, rand: Rand) -> str:
    """Return the id of this HA root, created at the first call; lease holders are named by it across restarts."""
    store.put_if_absent(_CLUSTER_KEY, msgspec.json.encode({"cluster_id": rand.token()}))
    found: str = msgspec.json.decode(store.read(_CLUSTER_KEY), type=dict[str, str])["cluster_id"]
    return found


def take_generation(store: ObjectStore, record: LeaderRecord) -> bool:
    """Take the generation of `record`; from then on writes of older leaders are refused. False: another has it."""
    key, data = _leader_key(record.generation), msgspec.json.encode(record)
    # a put with an unknown outcome that is repeated finds its own record
    return store.put_if_absent(key, data) or store.read(key) == data


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


def read_records(store: ObjectStore, generation: int = 0) -> tuple[tuple[JobRecord, ...], tuple[DamagedRecord, ...]]:
    """Return all job records, oldest first, and those that cannot be decoded.

    With `generation`, records of jobs that have not ended are taken over by that leader. From then on, writes of an
    older leader are refused, also those it had begun.

    Raises:
        LeadershipLostError: a newer leader owns one. StorageError: the store cannot be read.
    """
    found, damaged = list[JobRecord](), list[DamagedRecord]()
    for key in store.list("jobs/"):
        job_id = key.removeprefix("jobs/").removesuffix(".json")
        try:
            record = _take_over(store, key, generation)
        except FileNotFoundError:
            continue  # deleted by another leader
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            text = f"job record {store.uri}/{key} is damaged: {error} ({RECORD_HINT})"
            damaged.append(DamagedRecord(job_id=job_id, name=job_id, error=text))
            continue
        if record.graph_sha256 not in {"", hashlib.sha256(record.graph).hexdigest()}:
            text = f"the job graph in {store.uri}/{key} differs from the submitted one: its SHA-256 has changed"
            damaged.append(DamagedRecord(job_id=job_id, name=record.name, error=f"{text} ({RECORD_HINT})"))
            continue
        found.append(msgspec.structs.replace(record, graph_sha256=""))
    return tuple(sorted(found, key=lambda record: (record.submitted_ms, record.job_id))), tuple(damaged)


def _take_over(store: ObjectStore, key: str, generation: int) -> JobRecord:
    for _ in range(_MAX_RACES):
        present, etag = store.read_with_etag(key)
        record = msgspec.json.decode(present, type=JobRecord)
        if not generation or record.ended or record.generation == generation:
            return record
        if record.generation > generation:
            msg = f"a newer leader owns job {record.job_id}"
            raise LeadershipLostError(msg, hint="this process steps down")
        mine = msgspec.structs.replace(record, generation=generation, takeovers=record.takeovers + 1)
        if store.put_if_match(key, msgspec.json.encode(mine), etag):
            return mine
    msg = f"{store.uri}/{key} changed during every attempt to take it over"
    raise StorageError(msg, hint="several JobManagers compete for the same HA root: give each its own")


def delete_record(store: ObjectStore, job_id: str) -> None:
    """Delete all records of a job that has ended, except its event logs."""
    delete_archive(store, job_id)
    store.delete(_refusal_key(job_id))
    store.delete(_job_key(job_id))


def write_archive(store: ObjectStore, job_id: str, data: bytes) -> None:
    """Write the last views of a job that ends (`jobmanager.jobs.job_archive`); nothing depends on them."""
    store.put(_archive_key(job_id), data)


def delete_archive(store: ObjectStore, job_id: str) -> None:
    """Delete the last views of an ended job; its record stays."""
    store.delete(_archive_key(job_id))


def read_archive(store: ObjectStore, job_id: str, kind: type[T]) -> T | None:
    """Return the last views of an ended job; None if there are none, or (logged) none that can be decoded.

    Raises:
        StorageError: the store cannot be read.
    """
    return _decoded(store, _archive_key(job_id), kind)


def read_archives(store: ObjectStore, job_ids: Iterable[str], kind: type[T]) -> dict[str, T]:
    """Return the last views of these jobs, by job id; a job whose views cannot be read is logged and left out."""
    return _readable(store, (_archive_key(job_id) for job_id in job_ids), kind)


def _job_key(job_id: str) -> str:
    return f"jobs/{job_id}.json"


def write_refusal(store: ObjectStore, job_id: str, refusal: UpgradeRefusal) -> None:
    """Write the newest refused upgrade of a job.

    It is no part of the job's record, whose writes decide what runs: nothing depends on it.
    """
    redacted = msgspec.structs.replace(refusal, reason=redact(refusal.reason))
    store.put(_refusal_key(job_id), msgspec.json.encode(redacted))


def read_refusals(store: ObjectStore) -> dict[str, UpgradeRefusal]:
    """Return the newest refused upgrade of each job that has one, by job id; one that cannot be read is logged."""
    try:
        keys = store.list(_REFUSALS)
    except StorageError as error:
        _LOGGER.warning("the refused upgrades in %s/%s could not be listed: %s", store.uri, _REFUSALS, error)
        return {}
    return _readable(store, keys, UpgradeRefusal)


def _readable(store: ObjectStore, keys: Iterable[str], kind: type[T]) -> dict[str, T]:
    """Return, by job id, the files that can be read, of files that nothing depends on; the others are logged."""
    found = {}
    for key in keys:
        try:
            value = _decoded(store, key, kind)
        except StorageError as error:
            _LOGGER.warning("%s/%s could not be read: %s", store.uri, key, error)
            continue
        if value is not None:
            found[key.rpartition("/")[2].removesuffix(".json")] = value
    return found


def _decoded(store: ObjectStore, key: str, kind: type[T]) -> T | None:
    """Return a decoded file; None if it is absent, or (logged) of another version or damaged. Raises StorageError."""
    try:
        return msgspec.json.decode(store.read(key), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _LOGGER.warning("%s/%s is of another version or damaged: %s", store.uri, key, error)
        return None


def _refusal_key(job_id: str) -> str:
    return f"{_REFUSALS}{job_id}.json"


def _archive_key(job_id: str) -> str:
    return f"archives/{job_id}.json"


def _leader_key(generation: int) -> str:
    return f"leader/{generation:012d}.json"


#: Number of leaders whose event logs are kept for a job.
RETAINED_LEADERS = 20


def write_event_log(store: ObjectStore, job_id: str, generation: int, entries: Iterable[Entry]) -> None:
    """Write the event log of the leader of `generation`, replacing its earlier version."""
    records = [replace(entry, text=redact(entry.text), generation=generation) for entry in entries]
    store.put(_key(job_id, generation), msgspec.json.encode(records))


def decoded_records(store: ObjectStore, keys: Iterable[str], kind: type[T], *, what: str, hint: str) -> list[T]:
    """Return the JSON records under `keys`, without those that were deleted meanwhile.

    Raises:
        StorageError: the store cannot be read, or a record is damaged; says `what` it is, its place and the `hint`.
    """
    records: list[T] = []
    for key in keys:
        try:
            records.append(msgspec.json.decode(store.read(key), type=kind))
        except FileNotFoundError:
            continue
        except msgspec.MsgspecError as error:
            msg = f"{what} {store.uri}/{key} is damaged: {error}"
            raise StorageError(msg, hint=hint) from error
    return records


def read_event_logs(store: ObjectStore, job_id: str, except_generation: int = 0) -> tuple[Entry, ...]:
    """Return the entries of all leaders except that of generation `except_generation`, ordered by generation.

    Raises:
        StorageError: a file cannot be decoded; names it.
    """
    keys = [key for key in store.list(_key(job_id)) if key != _key(job_id, except_generation)]
    logs = decoded_records(store, keys, list[Entry], what="the event log", hint="delete it; no job needs it")
    return tuple(entry for log in logs for entry in log)


def prune_event_logs(store: ObjectStore, job_id: str, keep: int = RETAINED_LEADERS) -> None:
    """Delete the event logs of all leaders but the last `keep`; 0 deletes all."""
    keys = store.list(_key(job_id))
    for key in keys[: max(0, len(keys) - keep)]:
        store.delete(key)


def _key(job_id: str, generation: int | None = None) -> str:
    return f"stories/{job_id}/" + ("" if generation is None else f"{generation:012d}.json")
