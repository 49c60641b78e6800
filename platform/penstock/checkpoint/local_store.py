"""An object store in a local folder, the embedded default; opened by `checkpoint.stores.open_store`.

Objects appear whole (temporary file, fsync, rename or link). Compare-and-set holds a lock file, which the kernel
releases when the process dies. Names of temporary files and locks begin with a dot and are never listed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from penstock.core.errors import Cause, StorageError, UsageError
from penstock.core.rand import SystemRand

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore

_UNUSABLE = "check that the folder exists, is writable and has space"
_FILE_IN_THE_WAY = "a file is where a folder should be: move it away"
_NO_PERMISSION = "give this user access, or name another folder"
#: Reasons that another attempt meets again. A full disk is none.
_HINTS = {
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.ENOENT: "name a folder in which this user can make others",
    errno.EROFS: "name a folder of a file system that is mounted writable",
    errno.ENOTDIR: _FILE_IN_THE_WAY,
    errno.EEXIST: _FILE_IN_THE_WAY,
    errno.EISDIR: "a folder is where a file should be: move it away",
    errno.ENAMETOOLONG: "use a shorter path",
}
#: Reasons why a file cannot be linked that do not keep it from being copied.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)
_counter = itertools.count()
#: Part of the names of temporary files: processes of other machines and containers have the same pids.
_WRITER = SystemRand().token(16)


class LocalStore:
    """An object store whose keys are files below a folder."""

    def __init__(self, uri: str) -> None:
        """Take a plain path or a `file://` URI; the first write creates the folder."""
        path = urllib.parse.unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri
        self._root = Path(path).expanduser().absolute()
        #: As a text: a checkpoint makes and removes files, and a `Path` of each costs as much as the calls.
        self._folder = str(self._root).rstrip("/")

    @property
    def uri(self) -> str:
        """Return the root URI, always with its scheme."""
        return f"file://{self._root}"

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return (part of) an object; raises FileNotFoundError."""
        with self._guard("read", key), Path(self.path_of(key)).open("rb") as source:
            if offset:
                source.seek(offset)
            return source.read() if length is None else source.read(length)

    def size(self, key: str) -> int:
        """Return the size of an object in bytes; raises FileNotFoundError, also for a folder."""
        path = Path(self.path_of(key))
        with self._guard("read", key):
            if not path.is_file():
                raise FileNotFoundError(f"{self.uri}/{key}")
            return path.stat().st_size

    def read_with_etag(self, key: str) -> tuple[bytes, str]:
        """Return an object and its version tag; raises FileNotFoundError."""
        data = self.read(key)
        return data, _etag(data)

    def put(self, key: str, data: bytes) -> None:
        """Write or replace, atomically."""
        with self._guard("write", key), self._temporary(key, data) as (temporary, target):
            _replace(temporary, target)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write only if the key does not exist; return False if it does."""
        with self._guard("write", key), self._temporary(key, data) as (temporary, target):
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            _sync_folder(target)
            return True

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Replace only the version `etag`; return False if the object has another version or does not exist."""
        with self._guard("write", key), self._temporary(key, data) as (temporary, target):
            with self._locked(key):  # briefly: a process that is suspended here blocks the others
                try:
                    current = Path(target).read_bytes()
                except FileNotFoundError:
                    return False
                if _etag(current) != etag:
                    return False
                os.replace(temporary, target)  # noqa: PTH105 - see `LocalStore._folder`
            _sync_folder(target)
            return True

    def put_copy(self, key: str, source: ObjectStore, source_key: str) -> bool:
        """Link an object of another folder; False: the file system cannot. Raises FileNotFoundError."""
        if not isinstance(source, LocalStore):
            return False
        target = self.path_of(key)
        temporary = _temporary_beside(target)
        try:
            with self._guard("write", key):
                Path(_folder_of(target)).mkdir(parents=True, exist_ok=True)
            with self._guard("copy", key):
                if not _linked(source.path_of(source_key), temporary):
                    return False
                _replace(temporary, target)
        finally:
            _unlink(temporary)
        return True

    def delete(self, key: str) -> None:
        """Remove the object; an absent one is fine."""
        with self._guard("delete", key):
            _unlink(self.path_of(key))

    def list(self, prefix: str) -> list[str]:
        """Return all keys that start with `prefix`, sorted."""
        folder = prefix.rpartition("/")[0]
        found: list[str] = []
        with self._guard("list", prefix):
            for current, folders, files in os.walk(self._root / folder, onerror=_raise_unless_missing):
                folders[:] = [name for name in folders if not name.startswith(".")]
                base = Path(current).relative_to(self._root).as_posix()
                keys = (name if base == "." else f"{base}/{name}" for name in files if not name.startswith("."))
                found += [key for key in keys if key.startswith(prefix)]
        return sorted(found)

    def path_of(self, key: str) -> str:
        """Return the path of an object's file. Raises UsageError: it is no key."""
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            msg = f"bad object key {key!r}"
            raise UsageError(msg, hint="keys are names joined by single slashes")
        return f"{self._folder}/{key}"

    @contextlib.contextmanager
    def _temporary(self, key: str, data: bytes) -> Iterator[tuple[str, str]]:
        """Write a durable file beside that of the object, for a rename or a link; yield the names of both."""
        target = self.path_of(key)
        temporary = _temporary_beside(target)
        try:
            with _created(temporary) as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            yield temporary, target
        finally:
            _unlink(temporary)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        target = Path(self.path_of(key))
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target.parent / f".lock-{target.name}", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _guard(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and verb != "write":
                raise
            msg = f"cannot {verb} {self.uri}/{key}: {error.strerror or error}"
            code = error.errno or 0
            raise StorageError(
                msg, hint=_HINTS.get(code, _UNUSABLE), cause=Cause.of(permanent=code in _HINTS)
            ) from error


def _raise_unless_missing(error: OSError) -> None:
    """Raise what `os.walk` would ignore; a folder that does not exist has no keys."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _temporary_beside(path: str) -> str:
    return f"{_folder_of(path)}/.tmp-{_WRITER}-{os.getpid()}-{next(_counter)}"


def _linked(path: str, link: str) -> bool:
    """Link a file; return False if that cannot be done between these two places."""
    try:
        os.link(path, link)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _created(path: str) -> BinaryIO:
    """Open a new file for writing; create its folder if there is none."""
    try:
        return open(path, "xb")  # noqa: PTH123 - see `LocalStore._folder`
    except FileNotFoundError:
        Path(_folder_of(path)).mkdir(parents=True, exist_ok=True)
        return Path(path).open("xb")


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - see `LocalStore._folder`


def _replace(temporary: str, target: str) -> None:
    """Give a durable file its name, durably."""
    os.replace(temporary, target)  # noqa: PTH105 - see `LocalStore._folder`
    _sync_folder(target)


def _sync_folder(path: str) -> None:
    """Make the name of a file durable."""
    descriptor = os.open(_folder_of(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
