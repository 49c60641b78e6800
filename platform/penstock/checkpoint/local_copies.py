"""Copies of a job's checkpoint files on the disk of a TaskManager, for restarts there; Flink's local recovery.

A worker copies each object of state that it writes, and drops the copy when the newest complete checkpoint and the
later ones do not name it. `<folder>/<worker>/` has the copies of a live worker, `<folder>/ended/<worker>/` those that
an ended one has left (`taskmanager.copy_folders`). Those that a worker restores become hard links in its folder.

A copy is used only if it has the length and the checksum that the manifest names. The row groups of a segment have
theirs in its footer: `state.log.segment_file` compares them, and reads a wrong one again. An error of the disk drops
copies and never fails a checkpoint or a restore. Called by `task.drive.runtime`, from any thread.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import checksum_of, read_file
from penstock.core.snapshot import FileRef, SubtaskSnapshot

#: Folder of the folders of ended workers.
ENDED = "ended"
#: A copy is not written if less than one part in this many of the disk would stay free.
_FREE_PART = 20
#: A written object that no snapshot names is dropped at this completed checkpoint: a compaction enters a later one.
_MOST_UNNAMED = 2
#: Snapshots of a subtask that are remembered: more only if no checkpoint completes.
_MOST_SNAPSHOTS = 64


def free_bytes(folder: Path) -> int:
    """Return how much may be written to the disk of a folder, which has other uses too."""
    usage = shutil.disk_usage(folder)
    return usage.free - usage.total // _FREE_PART


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlace:
    """Where and how a worker keeps copies."""

    #: The job's folder on this TaskManager.
    folder: Path
    worker_id: str
    #: Most bytes of one worker's copies.
    most_bytes: int
    #: The folder of a store on the local disk, whose files are linked instead of written; None: of another store.
    store_folder: Path | None = None
    #: Bytes that may be written to the disk of a folder.
    free: Callable[[Path], int] = free_bytes


@dataclass(slots=True)
class _Copy:
    size: int
    #: Whether a snapshot has named it, and the checkpoints that were completed before.
    named: bool = False
    unnamed: int = 0


class LocalCopies:
    """The copies of one worker for one job."""

    def __init__(self, place: CopyPlace | None) -> None:
        """Start without copies; without a place there are never any."""
        self._place = place
        self._copies: dict[str, _Copy] = {}
        self._bytes = 0
        #: Paths that the snapshots of each subtask name, by checkpoint.
        self._snapshots: dict[str, dict[int, frozenset[str]]] = {}
        #: Folders that ended workers had left before the restore.
        self._left: list[Path] = []
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """The bytes of all copies."""
        return self._bytes

    def adopt(self, files: Iterable[FileRef]) -> None:
        """Take over the copies of restored files that ended workers have left."""
        place = self._place
        if place is None:
            return
        self._left = _folders_in(place.folder / ENDED)
        for key in dict.fromkeys(ref.path for ref in files if _may_be_copied(ref)):
            if key not in self._copies and any(self._link(folder / key, key) for folder in self._left):
                self._copies[key].named = True

    def keep(self, key: str, data: bytes) -> None:
        """Copy an object that was written to the store, if there is room."""
        place = self._place
        if place is None:
            return
        if place.store_folder is not None and self._link(place.store_folder / key, key):
            return
        path = place.folder / place.worker_id / key
        if not self._reserve(len(data)):
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if place.free(path.parent) < len(data):
                self._release(len(data))
                return
            with path.open("xb") as out:
                out.write(data)
        except OSError:
            self._release(len(data))
            _remove(path)
            return
        with self._lock:
            self._copies[key] = _Copy(len(data))

    def read(self, ref: FileRef) -> bytes | None:
        """Return the bytes of a part, verified if the reference has a checksum; None: only the store has them."""
        place = self._place
        copy = None if place is None else self._copies.get(ref.path)
        if place is None or copy is None or not ref.length:
            return None
        path = place.folder / place.worker_id / ref.path
        try:
            data = _part(path, ref)
        except OSError:
            data = None
        if data is None:
            self._refused(ref.path)
        return data

    def acknowledged(self, checkpoint_id: int, snapshot: SubtaskSnapshot) -> None:
        """Note the files of a snapshot that is about to be acknowledged."""
        if self._place is None:
            return
        named = frozenset(ref.path for ref in files_of_subtask(snapshot) if _may_be_copied(ref))
        with self._lock:
            subtask = f"{snapshot.vertex_id}/{snapshot.subtask}"
            snapshots = self._snapshots.setdefault(subtask, {})
            snapshots[checkpoint_id] = named
            if len(snapshots) > _MOST_SNAPSHOTS:
                del snapshots[sorted(snapshots)[1]]  # the first one is of the newest complete checkpoint

    def completed(self, checkpoint_id: int) -> Callable[[], None] | None:
        """Return the deletion of the copies that no longer count, which may block; None: there are none.

        Dropped is what neither the newest complete checkpoint nor a later one names, and all that ended workers left:
        by then every subtask of the job has restored its state.
        """
        with self._lock:
            named: set[str] = set()
            for snapshots in self._snapshots.values():
                base = max((number for number in snapshots if number <= checkpoint_id), default=0)
                for number in [number for number in snapshots if number < base]:
                    del snapshots[number]
                named = named.union(*snapshots.values())
            dropped = []
            for key, copy in self._copies.items():
                if key in named:
                    copy.named = True
                    continue
                copy.unnamed += 1
                if copy.named or copy.unnamed >= _MOST_UNNAMED:
                    dropped.append(key)
            left, self._left = self._left, []
        return partial(self._delete, dropped, left) if dropped or left else None

    def _delete(self, keys: Iterable[str], folders: Iterable[Path]) -> None:
        self._drop(keys)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _link(self, existing: Path, key: str) -> bool:
        """Link a file under the name of an object; return whether that is possible."""
        place = self._place
        assert place is not None  # noqa: S101 - its callers have looked
        path, size = place.folder / place.worker_id / key, 0
        try:
            size = existing.stat().st_size
            if not self._reserve(size):
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(existing, path)
        except FileNotFoundError:
            self._release(size)
            return False
        except OSError:  # another file system, or one without links
            self._release(size)
            return False
        with self._lock:
            self._copies[key] = _Copy(size)
        return True

    def _refused(self, key: str) -> None:
        """Drop a copy that is damaged or cannot be read."""
        self._drop([key])

    def _reserve(self, size: int) -> bool:
        place = self._place
        with self._lock:
            if place is None or self._bytes + size > place.most_bytes:
                return False
            self._bytes += size
            return True

    def _release(self, size: int) -> None:
        with self._lock:
            self._bytes -= size

    def _drop(self, keys: Iterable[str]) -> None:
        place = self._place
        for key in keys:
            with self._lock:
                copy = self._copies.pop(key, None)
                self._bytes -= 0 if copy is None else copy.size
            if place is not None and copy is not None:
                _remove(place.folder / place.worker_id / key)


class StateFiles:
    """The files of state of one subtask: reads copies, else the store, and counts; from any thread."""

    def __init__(self, store: ObjectStore, copies: LocalCopies) -> None:
        """Read from the job's `store`, and from `copies` of its files."""
        self._store, self._copies = store, copies
        self._lock = threading.Lock()
        #: Bytes read from copies and from the store; those in a manifest are neither.
        self.local_bytes = self.remote_bytes = 0

    def read(self, ref: FileRef) -> bytes:
        """Return the bytes of a part, verified if the reference has a checksum.

        Raises:
            SnapshotDamagedError, StorageError: as `read_file`.
        """
        if ref.inline is not None:
            return read_file(self._store, ref)
        found = self._copies.read(ref)
        data = read_file(self._store, ref) if found is None else found
        with self._lock:
            if found is None:
                self.remote_bytes += len(data)
            else:
                self.local_bytes += len(data)
        return data


def files_of_subtask(snapshot: SubtaskSnapshot) -> list[FileRef]:
    """Return the files that a restore of a subtask reads: state, and rows in flight."""
    state = [segment.file for keyed in snapshot.keyed for segment in keyed.segments]
    return state + [rows.file for rows in snapshot.in_flight]


def _may_be_copied(ref: FileRef) -> bool:
    """Return whether a file is an object of the job's store: not in a manifest, and not of another snapshot."""
    return ref.inline is None and not {"", ".", ".."} & set(ref.path.split("/"))


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # none has ended
        return []


def _part(path: Path, ref: FileRef) -> bytes | None:
    """Return a part if it has its length and checksum."""
    with path.open("rb") as source:
        source.seek(ref.offset)
        data = source.read(ref.length)
    return data if len(data) == ref.length and ref.checksum in ("", checksum_of(data)) else None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # the TaskManager removes the folder at the job's end
        return
