"""Where a savepoint is written by many tasks: it shows when its manifest does, and what does not count is removed.

A value that travels to the tasks. All files of one write have its token in their names, so those of tries that failed,
or came second, are told from those that the manifest names. Called by `snapshots.rewrite.parts`.
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
#: Files of a write that was given up without being able to remove them.
_REMAINS = re.compile(r"(?:[^/]+/[^/]+/part|pending/chunk)-[0-9a-f]{12}-[^/]+")
#: Files of a savepoint that anything else of ours has written, by the operator's uid: a write that has replaced it died
#: before it could remove them.
_REPLACED = re.compile(r"(?:([^/]+)/[^/]+/part-[\w-]*\d{5}\.parquet|pending/chunk-[\w-]*\d{5}\.arrow)")


@dataclass(frozen=True)
class Target:
    """The folder of a savepoint, as it was when the write began."""

    uri: str
    #: Twelve hex digits, of this write alone.
    token: str
    #: Version of the manifest that is to be replaced; empty: there is none.
    replaces: str = ""
    #: Files that an earlier write has left.
    remains: tuple[str, ...] = ()

    @property
    def store(self) -> ObjectStore:
        """The folder, opened."""
        return open_store(self.uri)

    def writer(self, name: str, source: ObjectStore | None = None) -> SavepointWriter:
        """Return what writes files; no two have one `name`."""
        store = self.store
        return SavepointWriter(source or store, store, f"{self.token}-{name}-")

    def require_open(self, written: Iterable[KeyedStateSnapshot]) -> None:
        """Take a task's files back when the write has ended without it.

        Asked behind the last file and before the task ends: either whoever ended the write has seen the files and
        removed them, or this sees that it has ended.

        Raises:
            StorageError: it has, or the place was given another savepoint.
        """
        store = self.store
        if _version(store) == self.replaces:
            return
        for state in written:
            for segment in state.segments:
                store.delete(segment.file.path)
        msg = f"{self.uri} was given a savepoint while a task was writing to it"
        raise StorageError(msg, hint="a try that came too late does no harm; else write to another folder")

    def publish(self, manifest: Manifest) -> None:
        """Make the savepoint exist, then remove what it has replaced and what tries that do not count have left.

        Raises:
            StorageError: the place was given another savepoint meanwhile, or cannot be written.
            SavepointInUseError: a job was started from the one that was to be replaced.
        """
        store = self.store
        old: set[str] = set()
        if self.replaces:
            _require_unclaimed(store)
            with contextlib.suppress(FileNotFoundError):  # then it cannot be replaced either, which is said below
                old = files_of(decode_manifest(store.read(SAVEPOINT_MANIFEST)))
        SavepointWriter(store, store).manifest(manifest, replaces=self.replaces)
        for key in sorted({*old, *self.remains} - files_of(manifest)):
            store.delete(key)
        self.sweep()

    def sweep(self) -> None:
        """Remove the files of this write that the savepoint does not name: all of them when there is none."""
        store = self.store
        named: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            named = files_of(decode_manifest(store.read(SAVEPOINT_MANIFEST)))
        own = re.compile(rf"(?:[^/]+/[^/]+/part|pending/chunk)-{self.token}-[^/]+")
        for key in store.list(""):
            if own.fullmatch(key) and key not in named:
                store.delete(key)


def new_target(uri: str, token: str) -> Target:
    """Return an empty place; raises UsageError where something lies there."""
    return Target(open_target(uri).uri, token)


def replaced_target(uri: str, token: str) -> Target:
    """Return a place that is empty, or holds a savepoint or what a write to it has left: it will be replaced.

    Raises:
        UsageError: something else lies there. SavepointInUseError: a job was started from the savepoint.
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
            msg = f"{store.uri}/{SAVEPOINT_MANIFEST} is not a savepoint's: {error}"
            raise UsageError(msg, hint="give a new folder") from error
        named = {*files_of(manifest), SAVEPOINT_MANIFEST}
        uids = {None, *manifest.operators}
    rest = [key for key in keys if key not in named]
    for key in rest:
        replaced = _REPLACED.fullmatch(key)
        if not _REMAINS.fullmatch(key) and (replaced is None or replaced[1] not in uids):
            msg = f"{store.uri} holds {key}, which is no part of a savepoint"
            raise UsageError(msg, hint="nothing is replaced there: give another folder")
    return Target(store.uri, token, version, tuple(rest))


def _version(store: ObjectStore) -> str:
    try:
        return store.read_with_etag(SAVEPOINT_MANIFEST)[1]
    except FileNotFoundError:
        return ""


def _require_unclaimed(store: ObjectStore) -> None:
    if store.list(_CLAIM):
        msg = f"a job was started from the savepoint {store.uri}, and may still read its files"
        raise SavepointInUseError(msg, hint="give another folder, or dispose of this one")
