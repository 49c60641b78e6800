"""Functions that open object stores by URI and read the parts of files that a manifest names.

Used by the JobManager (manifests, leases), by workers (segments, staged output) and by the offline tools.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.memory_store import open_memory_store
from penstock.checkpoint.s3_store import S3Store, s3_endpoint
from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import SnapshotDamagedError, StorageError, UsageError
from penstock.core.snapshot import FileRef


def open_store(uri: str) -> ObjectStore:
    """Return the store at `uri`: a folder, `file://...`, `s3://bucket/prefix` or `memory://name`.

    Raises:
        UsageError: the URI has an unknown scheme.
    """
    if not uri:
        msg = "no checkpoint store was given"
        raise UsageError(msg, hint="set checkpoint_root to a folder or s3://bucket/prefix")
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if scheme == "file":
        return LocalStore(uri)
    if scheme == "s3":
        return S3Store(uri)
    if scheme == "memory":
        return open_memory_store(uri.removeprefix("memory://"))
    msg = f"unknown kind of store {uri!r}"
    raise UsageError(msg, hint="use a folder, file://, s3:// or memory://")


def require_answer(uri: str) -> None:
    """Return if the server of an object store answers one request, at once for other stores.

    For requests that a user waits for; a running job tries again for longer.

    Raises:
        StorageError: it does not answer within 3 s.
    """
    if uri.startswith("s3://"):
        S3Store(uri).require_answer()


@contextlib.contextmanager
def naming_root(checkpoint_root: str) -> Iterator[None]:
    """Name the setting in an error of the store at a checkpoint root."""
    try:
        yield
    except StorageError as error:
        msg = f"checkpoint_root={checkpoint_root!r}: {error.message}"
        raise type(error)(msg, hint=f"{error.hint}, or set another checkpoint_root", cause=error.cause) from error


def place_of(uri: str) -> str:
    """Return a URI for messages: with the server's address for S3."""
    return f"{uri} at {s3_endpoint()}" if uri.startswith("s3://") else uri


def client_modules(uri: str) -> tuple[str, ...]:
    """Return the modules that the store at `uri` imports when it is first used; they start no threads."""
    return ("minio", "minio.error") if uri.startswith("s3://") else ()


def join_uri(root: str, *parts: str) -> str:
    """Return `root/part/...` with single slashes."""
    return "/".join([root.rstrip("/"), *(part.strip("/") for part in parts if part)])


def open_job_store(checkpoint_root: str, job_name: str) -> ObjectStore:
    """Return the store of one job's folder: the paths in its manifests are relative to this."""
    return open_store(join_uri(checkpoint_root, job_name))


def local_folder(store: ObjectStore) -> Path | None:
    """Return the folder of a store of files; None: another store."""
    return Path(_folder(store)) if store.uri.startswith("file://") else None


def same_store(left: ObjectStore, right: ObjectStore) -> bool:
    """Return whether two stores are the same place, also if their URIs are spelled differently."""
    return left.uri == right.uri or os.path.realpath(_folder(left)) == os.path.realpath(_folder(right))


def checksum_of(data: bytes) -> str:
    """Return the checksum in the form that a `FileRef` holds."""
    return f"crc32:{zlib.crc32(data):08x}"


def read_file(store: ObjectStore, ref: FileRef) -> bytes:
    """Return the verified bytes of a part.

    `store` is the job's; for an absolute path its own store is opened.

    Raises:
        SnapshotDamagedError: the part is missing, short, or its checksum is wrong.
    """
    if ref.inline is not None:
        data, where = ref.inline, "(inline)"
    else:
        base, key = _place_of(store, ref)
        where = join_uri(base.uri, key)
        try:
            data = base.read(key, ref.offset, ref.length or None)
        except FileNotFoundError as error:
            raise _missing(where) from error
        if ref.length and len(data) != ref.length:
            raise _short(where, len(data), ref)
    if ref.checksum.startswith("crc32:") and checksum_of(data) != ref.checksum:
        msg = f"{where} is damaged: checksum {checksum_of(data)}, expected {ref.checksum}"
        raise SnapshotDamagedError(msg, hint="restore an older savepoint")
    return data


def copy_file(source: ObjectStore, ref: FileRef, target: ObjectStore, key: str) -> bool:
    """Write a whole object of the job's store `source` to `target` without reading it; False: it has to be read.

    The content is verified when it is read from there.

    Raises:
        SnapshotDamagedError: the object is missing or short.
    """
    if ref.inline is not None or ref.offset or not ref.length:
        return False
    base, name = _place_of(source, ref)
    where = join_uri(base.uri, name)
    try:
        size = base.size(name)
        if size < ref.length:
            raise _short(where, size, ref)
        return size == ref.length and target.put_copy(key, base, name)  # a larger one has other parts too
    except FileNotFoundError as error:
        raise _missing(where) from error


def _place_of(store: ObjectStore, ref: FileRef) -> tuple[ObjectStore, str]:
    return (store, ref.path) if "://" not in ref.path else _split(ref.path)


def _missing(where: str) -> SnapshotDamagedError:
    return SnapshotDamagedError(f"{where} is missing", hint="it is named by a manifest; restore an older savepoint")


def _short(where: str, size: int, ref: FileRef) -> SnapshotDamagedError:
    msg = f"{where} is shorter than its manifest says: {size} of {ref.length} bytes at {ref.offset}"
    return SnapshotDamagedError(msg, hint="restore an older savepoint")


def _split(path: str) -> tuple[ObjectStore, str]:
    root, _, name = path.rpartition("/")
    return open_store(root), name


def _folder(store: ObjectStore) -> str:
    return store.uri.removeprefix("file://")
