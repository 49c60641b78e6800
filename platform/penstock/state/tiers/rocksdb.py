"""RocksDB as the cold store of keyed state: the only module that imports the library.

It is a spill area, so the write-ahead log is off and the folder is removed at the end. All stores of one process share
one block cache and one write-buffer manager. For remote state the bytes of its records are counted by region. Opened by
`state.state_backend`, called through `state.tiers.cold_panes` and `state.tiers.cold_records`.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.core.errors import UsageError, extra_hint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64

_PIECE = 16_384
_BLOOM_BITS = 10
#: Levels from this one on are compressed. Those above take up to about 256 MB, and reads of them a third less CPU.
_COMPRESSED_LEVEL = 2
#: Bytes by which a memtable grows. RocksDB's 1 MB would fill a small write buffer with the first record.
_ARENA_BLOCK = 16 << 10
_shared: tuple[Any, Any] | None = None


def require() -> None:
    """Check that a store can be opened.

    Raises:
        UsageError: rocksdict is not installed.
    """
    _library()


def _library() -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise UsageError("state_backend=rocksdb needs rocksdict", hint=extra_hint("state")) from error
    return rocksdict


def _shared_memory(library: Any, memory_bytes: int) -> tuple[Any, Any]:
    """Return the process's shared block cache and the write-buffer manager that is charged to it."""
    global _shared  # noqa: PLW0603 - one per process is the point
    if _shared is None:
        cache = library.Cache(memory_bytes)
        _shared = cache, library.WriteBufferManager.new_write_buffer_manager_with_cache(memory_bytes // 2, False, cache)
    return _shared


#: Approximate overhead of a record in a store on the local disk.
RECORD_BYTES = 48


class LocalBytes:
    """The approximate bytes on the local disk by region, an even part of the hashes."""

    def __init__(self, owned: HashRange, regions: int) -> None:
        """Start at zero for `regions` regions."""
        self.regions = owned.split(regions)
        self._lows = np.array([part.low for part in self.regions], np.int64)
        self.sizes = np.zeros(len(self.regions), np.int64)

    def regions_of(self, hashes: I64) -> I64:
        """Return the region of each hash."""
        return np.searchsorted(self._lows, hashes, side="right") - 1

    def add(self, hashes: I64, sizes: I64) -> None:
        """Add the bytes of rows with these hashes; negative ones were removed."""
        np.add.at(self.sizes, self.regions_of(hashes), sizes)
        np.maximum(self.sizes, 0, out=self.sizes)


class SortedStore(Protocol):
    """Records by key on the local disk, in the order of the keys' bytes; used in one thread.

    `StateBackend.open_store` chooses the class. A store starts empty: checkpoints have everything in it.
    """

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write or replace; keys are in any order."""

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys, None where there is none; keys are sorted by their first 16 bytes."""

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove keys, of which some may not exist."""

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove all keys from `low` up to, without, `high`."""

    def scan(self, low: bytes, high: bytes, piece: int = _PIECE) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield keys from `low` up to, without, `high`, and their values, in order and in batches of `piece`."""

    def close(self) -> None:
        """Free the store and remove its files."""


class RocksStore(SortedStore):
    """One database in a separate folder."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        """Open an empty store; `memory_bytes` bounds cache and memtables, shared by all stores of the process.

        Raises:
            UsageError: rocksdict is not installed.
        """
        library = _library()
        self._library = library
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        cache, manager = _shared_memory(library, memory_bytes)
        table = library.BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_bloom_filter(_BLOOM_BITS, False)
        options = library.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(manager)
        options.set_arena_block_size(_ARENA_BLOCK)
        options.set_max_background_jobs(2)
        options.set_compression_type(library.DBCompressionType.lz4())
        options.set_min_level_to_compress(_COMPRESSED_LEVEL)
        self._db = library.Rdict(str(folder), options)
        writes = library.WriteOptions()
        writes.disable_wal = True
        self._writes = writes
        self._db.set_write_options(writes)

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write or replace, in batches."""
        for first in range(0, len(keys), _PIECE):
            batch = self._library.WriteBatch(raw_mode=True)
            for key, value in zip(keys[first : first + _PIECE], values[first : first + _PIECE], strict=True):
                batch[key] = value
            self._db.write(batch, self._writes)

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys in one call, None where there is none."""
        return list(self._db.get(keys))

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove."""
        batch = self._library.WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(key)
        self._db.write(batch, self._writes)

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove all keys from `low` up to, without, `high`."""
        self._db.delete_range(low, high)

    def scan(self, low: bytes, high: bytes, piece: int = _PIECE) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield keys from `low` up to, without, `high` in order, in batches of `piece`."""
        keys: list[bytes] = []
        values: list[bytes] = []
        for key, value in self._db.items(from_key=low):
            if key >= high:
                break
            keys.append(key)
            values.append(value)
            if len(keys) == piece:
                yield keys, values
                keys, values = [], []
        if keys:
            yield keys, values

    def close(self) -> None:
        """Close and remove the files."""
        self._db.close()
        shutil.rmtree(self._folder, ignore_errors=True)
