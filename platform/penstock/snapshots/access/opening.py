"""Find a snapshot by URI: a savepoint's folder, a job's folder of checkpoints, or one of their manifests.

Called by `ps.snapshots` and by the commands on snapshots. Reads only manifests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from penstock.checkpoint.log import PREFIX, key_of, read_entries, sequence_of
from penstock.checkpoint.manifest import FORMAT_VERSION, Manifest, decode_manifest
from penstock.checkpoint.recovery import present_manifests
from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import join_uri, open_store, read_file
from penstock.core.errors import NotFoundError, SnapshotDamagedError, UsageError
from penstock.core.snapshot import FileRef

SAVEPOINT_MANIFEST = "manifest.json"
_CHECKPOINT = re.compile(r"(.+)/manifests/(\d{20})\.json")
_JOB = re.compile(r"([^/]+)/manifests/\d{20}\.json")
_SAVEPOINT = re.compile(r"((?:.*/)?[^/]+)/manifest\.json")
_MANY_JOBS = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A manifest and the store that its paths are relative to."""

    #: URI of the manifest.
    uri: str
    store: ObjectStore
    manifest: Manifest

    def read(self, ref: FileRef) -> bytes:
        """Return a file's bytes, verified; raises SnapshotDamagedError."""
        return read_file(self.store, ref)


def open_snapshot(uri: str, *, checkpoint: int | None = None) -> Snapshot:
    """Return the savepoint at `uri`, or a checkpoint of the job's folder there (the newest, or by its sequence).

    Raises:
        NotFoundError: there is none. UsageError: `uri` holds several jobs, or `checkpoint` is given with a savepoint.
        SnapshotDamagedError: the manifest cannot be read.
    """
    base = uri.rstrip("/")
    named = _CHECKPOINT.fullmatch(base)
    if named is not None:
        base, checkpoint = named[1], int(named[2])
    elif base.endswith(f"/{SAVEPOINT_MANIFEST}"):
        base = base.removesuffix(f"/{SAVEPOINT_MANIFEST}")
    store = open_store(base)
    savepoint = _savepoint_of(store)
    if savepoint is not None:
        if checkpoint is not None:
            msg = f"{store.uri} is a savepoint: it has no checkpoint {checkpoint}"
            raise UsageError(msg, hint="leave the sequence out, or pass the job's folder of checkpoints")
        return savepoint
    store = open_store(base) if _is_job(store) else _only_job(base, store)
    return _checkpoint_of(store, checkpoint)


def open_target(uri: str) -> ObjectStore:
    """Return the empty folder for a new savepoint.

    Raises:
        UsageError: the folder is not empty.
    """
    store = open_store(uri.rstrip("/"))
    found = store.list("")
    if found:
        what = "already holds a savepoint" if SAVEPOINT_MANIFEST in found else f"is not empty: it holds {found[0]}"
        raise UsageError(f"{store.uri} {what}", hint="give a new folder")
    return store


def read_log(store: ObjectStore) -> tuple[Manifest, ...]:
    """Return all entries of a job's log, oldest first.

    Raises:
        SnapshotDamagedError: an entry cannot be decoded, or is listed but missing.
    """
    return read_entries(store, lambda key: _decoded(store, key))


def _savepoint_of(store: ObjectStore) -> Snapshot | None:
    try:
        manifest = _decoded(store, SAVEPOINT_MANIFEST)
    except FileNotFoundError:
        return None
    return Snapshot(join_uri(store.uri, SAVEPOINT_MANIFEST), store, manifest)


def savepoints_of(store: ObjectStore, folder: str = "savepoints/") -> tuple[str, ...]:
    """Return the URIs of the savepoints in a job's own folder of savepoints, or in another folder of the store."""
    found = map(_SAVEPOINT.fullmatch, store.list(folder))
    return tuple(join_uri(store.uri, m[1]) for m in found if m is not None)


def jobs_of(store: ObjectStore) -> tuple[str, ...]:
    """Return the names of the jobs with a folder in a checkpoint root."""
    return tuple(sorted({m[1] for m in map(_JOB.fullmatch, store.list("")) if m is not None}))


def _is_job(store: ObjectStore) -> bool:
    return any(sequence_of(key) is not None for key in store.list(PREFIX))


def _only_job(base: str, store: ObjectStore) -> ObjectStore:
    jobs = jobs_of(store)
    if len(jobs) == 1:
        return open_store(join_uri(base, jobs[0]))
    if not jobs:
        msg = f"there is no snapshot at {store.uri}"
        raise NotFoundError(msg, hint="pass a savepoint's folder, or CHECKPOINT_ROOT/JOB")
    more = "..." if len(jobs) > _MANY_JOBS else ""
    msg = f"{store.uri} holds the checkpoints of {len(jobs)} jobs"
    raise UsageError(msg, hint=f"add the job's name to it: {', '.join(jobs[:_MANY_JOBS])}{more}")


def _checkpoint_of(store: ObjectStore, sequence: int | None) -> Snapshot:
    log = read_log(store)
    found = [m for m in (present_manifests(log) if sequence is None else log) if m.kind == "checkpoint"]
    wanted = [m for m in found if sequence is None or m.sequence == sequence]
    if not wanted:
        what = "no checkpoint" if sequence is None else f"no checkpoint {sequence}"
        there = ", ".join(str(m.sequence) for m in found) or "no complete one"
        msg = f"{store.uri} holds {what}"
        raise NotFoundError(msg, hint=f"there is: {there}")
    manifest = wanted[-1]
    return Snapshot(join_uri(store.uri, key_of(manifest.sequence)), store, manifest)


def _decoded(store: ObjectStore, key: str) -> Manifest:
    where = join_uri(store.uri, key)
    try:
        manifest = decode_manifest(store.read(key))
    except msgspec.MsgspecError as error:
        msg = f"{where} is damaged: {error}"
        raise SnapshotDamagedError(msg, hint="use another snapshot") from error
    if manifest.version > FORMAT_VERSION:
        msg = f"{where} has format version {manifest.version}, but this penstock reads up to {FORMAT_VERSION}"
        raise SnapshotDamagedError(msg, hint="read it with the version that wrote it, or a newer one")
    return manifest
