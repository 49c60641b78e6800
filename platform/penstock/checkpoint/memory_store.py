"""An object store in memory with fault hooks, for tests, the simulator and in-process clusters (`memory://<name>`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from penstock.core.errors import StorageError

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore

_SCHEME = "memory://"

#: Called as (operation, key, phase) before and after each effect; a fault is an exception raised there.
FaultHook = Callable[[str, str, Literal["before", "after"]], None]


def _no_fault(_operation: str, _key: str, _phase: Literal["before", "after"]) -> None:
    return None


class MemoryStore:
    """A dict with the eight primitives of a store; every write creates a new version."""

    _named: dict[str, MemoryStore] = {}  # noqa: RUF012 - one table per process, by design
    _named_lock = threading.Lock()

    def __init__(self, name: str = "anonymous") -> None:
        """Start empty."""
        self._name = name
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._version = 0
        self._lock = threading.Lock()
        #: Replace to inject faults.
        self.fault: FaultHook = _no_fault

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """Return this process's store of that name."""
        with cls._named_lock:
            return cls._named.setdefault(name, cls(name))

    @property
    def uri(self) -> str:
        """Return the root URI."""
        return f"{_SCHEME}{self._name}"

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return (part of) an object; raises FileNotFoundError."""
        data, _etag = self.read_with_etag(key)
        return data[offset:] if length is None else data[offset : offset + length]

    def size(self, key: str) -> int:
        """Return the size of an object in bytes; raises FileNotFoundError."""
        return len(self.read_with_etag(key)[0])

    def read_with_etag(self, key: str) -> tuple[bytes, str]:
        """Return an object and its version tag; raises FileNotFoundError."""
        self.fault("read", key, "before")
        with self._lock:
            if key not in self._objects:
                raise FileNotFoundError(f"{self.uri}/{key}")
            data, version = self._objects[key]
        self.fault("read", key, "after")
        return data, str(version)

    def put(self, key: str, data: bytes) -> None:
        """Write or replace."""
        self._write(key, data, lambda _current: True)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write only when the key does not exist."""
        return self._write(key, data, lambda current: current is None)

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Replace only the version `etag`."""
        return self._write(key, data, lambda current: current is not None and str(current[1]) == etag)

    def put_copy(self, key: str, source: ObjectStore, source_key: str) -> bool:
        """Copy an object of another store in memory; False: it is another kind of store."""
        if not source.uri.startswith(_SCHEME):
            return False
        self.put(key, source.read(source_key))
        return True

    def delete(self, key: str) -> None:
        """Remove the object; an absent one is fine."""
        self.fault("delete", key, "before")
        with self._lock:
            self._objects.pop(key, None)
        self.fault("delete", key, "after")

    def list(self, prefix: str) -> list[str]:
        """Return all keys that start with `prefix`, sorted."""
        self.fault("list", prefix, "before")
        with self._lock:
            found = sorted(key for key in self._objects if key.startswith(prefix))
        self.fault("list", prefix, "after")
        return found

    def _write(self, key: str, data: bytes, allowed: Callable[[tuple[bytes, int] | None], bool]) -> bool:
        self.fault("put", key, "before")
        with self._lock:
            done = allowed(self._objects.get(key))
            if done:
                self._version += 1
                self._objects[key] = (bytes(data), self._version)
        self.fault("put", key, "after")
        return done


class SubStore:
    """A view of a store below one of its prefixes."""

    def __init__(self, store: MemoryStore, prefix: str) -> None:
        """View `store` below `prefix`, which has no slash at its end."""
        self._store = store
        self._prefix = prefix

    @property
    def uri(self) -> str:
        """Return the root URI."""
        return f"{self._store.uri}/{self._prefix}"

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return (part of) an object; raises FileNotFoundError."""
        return self._store.read(self._key(key), offset, length)

    def size(self, key: str) -> int:
        """Return the size of an object in bytes; raises FileNotFoundError."""
        return self._store.size(self._key(key))

    def read_with_etag(self, key: str) -> tuple[bytes, str]:
        """Return an object and its version tag; raises FileNotFoundError."""
        return self._store.read_with_etag(self._key(key))

    def put(self, key: str, data: bytes) -> None:
        """Write or replace."""
        self._store.put(self._key(key), data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write only when the key does not exist."""
        return self._store.put_if_absent(self._key(key), data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Replace only the version `etag`."""
        return self._store.put_if_match(self._key(key), data, etag)

    def put_copy(self, key: str, source: ObjectStore, source_key: str) -> bool:
        """Copy an object of another store in memory; False: it is another kind of store."""
        return self._store.put_copy(self._key(key), source, source_key)

    def delete(self, key: str) -> None:
        """Remove the object; an absent one is fine."""
        self._store.delete(self._key(key))

    def list(self, prefix: str) -> list[str]:
        """Return all keys that start with `prefix`, sorted."""
        return [key.removeprefix(f"{self._prefix}/") for key in self._store.list(self._key(prefix))]

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"


def open_memory_store(path: str) -> MemoryStore | SubStore:
    """Return the store of `name` or `name/prefix`; raises StorageError without a name."""
    name, _, prefix = path.strip("/").partition("/")
    if not name:
        msg = "memory:// needs a name"
        raise StorageError(msg, hint="write memory://<name>")
    store = MemoryStore.named(name)
    return SubStore(store, prefix) if prefix else store
