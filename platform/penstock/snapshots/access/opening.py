"""Finds a snapshot by URI, and reserves the folder of a new savepoint for one run.

A snapshot is a savepoint's folder, a job's folder of checkpoints, or one of their manifests; only manifests are
read. A run holds its reservation until the manifest is written. A user who empties the folder removes the
reservation too, and the run then leaves no savepoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from penstock.checkpoint.manifest_log import (
    FORMAT_VERSION,
    PREFIX,
    SAVEPOINT_MANIFEST,
    Manifest,
    decode_manifest,
    key_of,
    read_entries,
    sequence_of,
)
from penstock.checkpoint.recovery import present_manifests
from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import join_uri, open_store, read_file
from penstock.core.errors import NotFoundError, SnapshotDamagedError, StorageError, UsageError
from penstock.core.snapshot import FileRef

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


Made = TypeVar("Made")

#: Exists in the target while a run writes there.
RESERVATION = "writing.lock"


def reserve(store: ObjectStore, run_id: str) -> None:
    """Reserve a target for one run, so that no other one writes there until its manifest is written.

    Raises:
        UsageError: another run has reserved it, or files were added since it was found empty.
    """
    if not store.put_if_absent(RESERVATION, run_id.encode()):
        msg = f"another run is writing to {store.uri}: {store.read(RESERVATION).decode()}"
        raise UsageError(msg, hint="give a new folder, or remove this one if that run has failed")
    found = [key for key in store.list("") if key != RESERVATION]
    if found:
        store.delete(RESERVATION)
        raise UsageError(f"{store.uri} is no longer empty: it holds {found[0]}", hint="give a new folder")


def publish(store: ObjectStore, run_id: str, write: Callable[[], Made]) -> Made:
    """Write the manifest, which protects the target from now on, and remove the reservation.

    `write` writes only the manifest. A clean-up removes the reservation before any other file. So a check before and
    after the manifest detects that files of the savepoint may be gone.

    Raises:
        StorageError: the run has lost the target, and there is no savepoint; or the error of `write`.
    """
    _require_reserved(store, run_id)
    made = write()
    try:
        _require_reserved(store, run_id)
    except StorageError:
        store.delete(SAVEPOINT_MANIFEST)
        raise
    store.delete(RESERVATION)
    return made


def _require_reserved(store: ObjectStore, run_id: str) -> None:
    try:
        holder = store.read(RESERVATION).decode()
    except FileNotFoundError:
        holder = "no run"
    if holder != run_id:
        msg = f"{store.uri} was emptied while {run_id} wrote there; it now belongs to {holder}"
        raise StorageError(msg, hint="start the run again, in a new folder")
