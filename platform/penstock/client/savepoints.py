"""Lists savepoints below a folder, selects those that a retention expires, and asks a cluster to delete one.

Called by the Airflow provider, which takes savepoints regularly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from penstock.checkpoint.manifest_log import SAVEPOINT_MANIFEST
from penstock.checkpoint.retention import files_of
from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import join_uri, open_store
from penstock.client.rest_client import RestClient
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError, SavepointInUseError, UsageError
from penstock.snapshots.access.content import watermark_of
from penstock.snapshots.access.opening import RESERVATION, open_snapshot

_POLL_MS = 100.0


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A complete savepoint."""

    uri: str
    job_id: str
    job_name: str
    #: Wall-clock time of its manifest.
    created_ms: int
    #: See `snapshots.access.content.watermark_of`.
    watermark: int | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """A policy that keeps the newest `keep` savepoints of each job, and all that are at most `keep_ms` old."""

    keep: int
    keep_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse a policy that keeps nothing."""
        if self.keep < 1 or self.keep_ms < 0:
            msg = f"invalid retention: keep={self.keep}, keep_ms={self.keep_ms}"
            raise UsageError(msg, hint="keep must be at least 1, keep_ms at least 0")

    def expired(self, savepoints: Iterable[Savepoint], now_ms: int) -> list[Savepoint]:
        """Return the expired savepoints, oldest first."""
        kept: dict[str, int] = {}
        found = []
        for savepoint in sorted(savepoints, key=_age, reverse=True):
            rank = kept[savepoint.job_name] = kept.get(savepoint.job_name, 0) + 1
            if rank > self.keep and now_ms - savepoint.created_ms > self.keep_ms:
                found.append(savepoint)
        return found[::-1]


def list_savepoints(uri: str) -> list[Savepoint]:
    """Return the complete savepoints in folders directly below `uri`, newest first.

    Raises:
        UsageError: the URI scheme is unknown. SnapshotDamagedError: a manifest cannot be read.
    """
    store = open_store(uri)
    keys = [key for key in store.list("") if key.count("/") == 1 and key.endswith(f"/{SAVEPOINT_MANIFEST}")]
    found = []
    for key in keys:
        folder = join_uri(store.uri, key.removesuffix(f"/{SAVEPOINT_MANIFEST}"))
        manifest = open_snapshot(folder).manifest
        found.append(Savepoint(folder, manifest.job_id, manifest.job_name, manifest.created_ms, watermark_of(manifest)))
    return sorted(found, key=_age, reverse=True)


def remove_unfinished(uri: str, name: str) -> list[str]:
    """Delete folders directly below `uri` that begin with `name` and contain no complete savepoint.

    Returns the complete savepoints. A savepoint that a run completes during the deletion is deleted too: the run
    then finds its reservation missing, before or after it wrote the manifest, when files may be gone.

    Raises:
        UsageError: the URI scheme is unknown. SnapshotDamagedError: a manifest cannot be read.
        StorageError: the store is unreachable or refuses the request.
    """
    store = open_store(uri)
    keys = set(store.list(name))
    folders = sorted({key.partition("/")[0] for key in keys if "/" in key})
    complete = [folder for folder in folders if _is_complete(store, folder, keys)]
    gone = {folder: f"{folder}/{SAVEPOINT_MANIFEST}" for folder in folders if folder not in complete}
    for folder in gone:
        store.delete(f"{folder}/{RESERVATION}")
    for manifest in gone.values():
        store.delete(manifest)
    for key in store.list(name):
        if key.partition("/")[0] in gone:
            store.delete(key)
    return [join_uri(store.uri, folder) for folder in complete]


def dispose(client: RestClient, uri: str, clock: Clock, timeout_ms: float) -> None:
    """Ask a cluster to delete a savepoint, and wait for the outcome.

    Raises:
        SavepointInUseError: a job still uses it. PenstockError: it was not deleted, or not in time.
    """
    request_id = client.dispose_savepoint(uri)
    deadline = clock.monotonic_ms() + timeout_ms
    while clock.monotonic_ms() < deadline:
        answer = client.disposal_status(request_id)
        if answer["status"]["id"] == "COMPLETED":
            cause = (answer["operation"] or {}).get("failure-cause")
            if cause is not None:
                in_use = cause.get("class") == SavepointInUseError.__name__
                kind = SavepointInUseError if in_use else PenstockError
                raise kind(str(cause.get("stack-trace") or cause.get("class")))
            return
        clock.sleep_ms(_POLL_MS)
    msg = f"savepoint {uri} was not deleted within {timeout_ms / 1000:.0f} s"
    raise PenstockError(msg, hint="the deletion may still complete: check its folder")


def _is_complete(store: ObjectStore, folder: str, keys: Collection[str]) -> bool:
    """Return whether the manifest and all its files exist: a run may write a manifest after its files were deleted."""
    if f"{folder}/{SAVEPOINT_MANIFEST}" not in keys:
        return False
    named = files_of(open_snapshot(join_uri(store.uri, folder)).manifest)
    return all(f"{folder}/{path}" in keys for path in named)


def _age(savepoint: Savepoint) -> tuple[int, str]:
    return savepoint.created_ms, savepoint.uri
