"""The folder of a savepoint that many tasks write: it exists once its manifest does, and stray files are removed.

A value that travels to the tasks. All files of one write have its token in their names, so that files of failed or
duplicate attempts differ from those in the manifest. Called by `snapshots.rewrite.parts`.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.checkpoint.manifest import Manifest, decode_manifest
from penstock.checkpoint.retention import files_of
from penstock.checkpoint.stores import open_store
from penstock.core.errors import SavepointInUseError, StorageError, UsageError
from penstock.snapshots.access.opening import SAVEPOINT_MANIFEST, open_target
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.checkpoint.store import ObjectStore
    from penstock.core.snapshot import KeyedStateSnapshot

_CLAIM = "claimed.json"
#: Files of a write that was aborted without being able to remove them.
_REMAINS = re.compile(r"(?:[^/]+/[^/]+/part|pending/chunk)-[0-9a-f]{12}-[^/]+")
#: Files of a savepoint by any other writer of penstock, by the operator's uid. A write that replaced it may have died
#: before removing them.
_REPLACED = re.compile(r"(?:([^/]+)/[^/]+/part-[\w-]*\d{5}\.parquet|pending/chunk-[\w-]*\d{5}\.arrow)")


@dataclass(frozen=True)
class Target:
    """The folder of a savepoint, as it was when the write began."""

    uri: str
    #: Twelve hex digits, unique to this write.
    token: str
    #: Version of the manifest to replace; empty: there is none.
    replaces: str = ""
    #: Files left by an earlier write.
    remains: tuple[str, ...] = ()

    @property
    def store(self) -> ObjectStore:
        """Return the folder's store."""
        return open_store(self.uri)

    def writer(self, name: str, source: ObjectStore | None = None) -> SavepointWriter:
        """Return a writer of files; each needs its own `name`."""
        store = self.store
        return SavepointWriter(source or store, store, f"{self.token}-{name}-")

    def require_open(self, written: Iterable[KeyedStateSnapshot]) -> None:
        """Remove a task's files if the write has ended without it.

        Called after the last file and before the task ends. If the write ends, either its clean-up finds the files, or
        this call finds that it has ended.

        Raises:
            StorageError: it has, or another savepoint was written to the folder.
        """
        store = self.store
        if _version(store) == self.replaces:
            return
        for state in written:
            for segment in state.segments:
                store.delete(segment.file.path)
        msg = f"another savepoint was written to {self.uri} while a task was writing there"
        raise StorageError(msg, hint="a late attempt of a task does no harm; otherwise write to another folder")

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, then remove the replaced savepoint and the files of unused attempts.

        Raises:
            StorageError: another savepoint was written to the folder meanwhile, or it cannot be written.
            SavepointInUseError: a job was started from the savepoint to be replaced.
        """
        store = self.store
        old: set[str] = set()
        if self.replaces:
            _require_unclaimed(store)
            with contextlib.suppress(FileNotFoundError):  # then it cannot be replaced either, which is reported below
                old = files_of(decode_manifest(store.read(SAVEPOINT_MANIFEST)))
        SavepointWriter(store, store).manifest(manifest, replaces=self.replaces)
        for key in sorted({*old, *self.remains} - files_of(manifest)):
            store.delete(key)
        self.sweep()

    def sweep(self) -> None:
        """Remove the files of this write that the savepoint does not name: all of them if there is none."""
        store = self.store
        named: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            named = files_of(decode_manifest(store.read(SAVEPOINT_MANIFEST)))
        own = re.compile(rf"(?:[^/]+/[^/]+/part|pending/chunk)-{self.token}-[^/]+")
        for key in store.list(""):
            if own.fullmatch(key) and key not in named:
                store.delete(key)


def new_target(uri: str, token: str) -> Target:
    """Return an empty folder as target; raises UsageError if it is not empty."""
    return Target(open_target(uri).uri, token)


def replaced_target(uri: str, token: str) -> Target:
    """Return a folder that is empty, or holds a savepoint or files of a write to it, and will be replaced.

    Raises:
        UsageError: the folder has other content.
        SavepointInUseError: a job was started from the savepoint.
    """
    store = open_store(uri.rstrip("/"))
    keys = store.list("")
    version = _version(store)
    named: set[str] = set()
    uids: set[str | None] = set()
    if version:
        _require_unclaimed(store)
        try:
            manifest = decode_manifest(store.read(SAVEPOINT_MANIFEST))
        except msgspec.MsgspecError as error:
            msg = f"{store.uri}/{SAVEPOINT_MANIFEST} is not the manifest of a savepoint: {error}"
            raise UsageError(msg, hint="give a new folder") from error
        named = {*files_of(manifest), SAVEPOINT_MANIFEST}
        uids = {None, *manifest.operators}
    rest = [key for key in keys if key not in named]
    for key in rest:
        replaced = _REPLACED.fullmatch(key)
        if not _REMAINS.fullmatch(key) and (replaced is None or replaced[1] not in uids):
            msg = f"{store.uri} holds {key}, which does not belong to a savepoint"
            raise UsageError(msg, hint="such a folder is never replaced: use another one")
    return Target(store.uri, token, version, tuple(rest))


def _version(store: ObjectStore) -> str:
    try:
        return store.read_with_etag(SAVEPOINT_MANIFEST)[1]
    except FileNotFoundError:
        return ""


def _require_unclaimed(store: ObjectStore) -> None:
    if store.list(_CLAIM):
        msg = f"a job was started from the savepoint {store.uri} and may still read its files"
        raise SavepointInUseError(msg, hint="give another folder, or dispose of this one")
