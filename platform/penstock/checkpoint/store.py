"""The object store interface of the checkpoint code: eight blocking primitives, safe to call from several threads.

Implementations: `checkpoint.local_store` (a folder), `checkpoint.s3_store` (MinIO/S3), and the simulator's. Keys are
`/`-separated and relative to the store's root.
"""

from __future__ import annotations

from typing import Protocol


class LeaseStore(Protocol):
    """The interface of the election of a leader: small JSON objects, written by compare-and-set.

    Each write is atomic, and a read sees every write that was answered before. Methods raise `StorageError` when the
    outcome is unknown: the write may take effect later. Implementations: `checkpoint.kubernetes_leases`, and every
    `ObjectStore`.
    """

    @property
    def uri(self) -> str:
        """Return the place, for messages."""

    def read_with_etag(self, key: str) -> tuple[bytes, str]:
        """Return an object and its version tag for `put_if_match`. Raises FileNotFoundError."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write only if the key does not exist; return False if it does."""

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Replace only the version `etag`; return False if the object has another version or does not exist."""


class ObjectStore(LeaseStore, Protocol):
    """A store of whole objects under keys.

    Every method raises `StorageError` (with the URI) when the store cannot be reached or refuses.
    """

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return (part of) an object.

        Raises:
            FileNotFoundError: no such key.
        """

    def size(self, key: str) -> int:
        """Return the size of an object in bytes.

        Raises:
            FileNotFoundError: no such key.
        """

    def put(self, key: str, data: bytes) -> None:
        """Write or replace, atomically."""

    def put_copy(self, key: str, source: ObjectStore, source_key: str) -> bool:
        """Write or replace, atomically, with an object of another store that is not read here.

        Objects never change, so both may share their bytes. False: this store cannot copy from that one.

        Raises:
            FileNotFoundError: no such key in `source`.
        """

    def delete(self, key: str) -> None:
        """Remove the object; an absent one is fine."""

    def list(self, prefix: str) -> list[str]:
        """Return all keys that start with `prefix`, sorted."""
