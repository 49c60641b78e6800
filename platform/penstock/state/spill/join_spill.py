"""Spilled rows of `TimedRows`: mapped local files of runs, each run with its keys.

A spill area: it starts empty, and a file has no name, so it is deleted with its last user. Runs share files; a file
takes a descriptor as long as one of its runs exists. Mapped pages count as resident memory of the process until they
are released (`release`).
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.errors import StorageError
from penstock.state.keys.run_keys import RunKeys
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import I32, I64

_ALIGNED = 64
#: Smallest file, while the disk has room; it takes several runs.
_FILE = 64 << 20
#: A new file takes one part in this many of the bytes written before, so that few files are open.
_LARGER = 8
_HINTS = {
    errno.EMFILE: "raise the TaskManager's limit of open files (ulimit -n)",
    errno.ENFILE: "raise the host's limit of open files (fs.file-max)",
    errno.ENOMEM: "raise the host's limit of mapped files (vm.max_map_count)",
}


@dataclass(frozen=True, slots=True)
class SpilledRows:
    """The columns of a run in a file: each row's key number, time and values."""

    keys: RunKeys
    numbers: I32
    times: I64
    values: list[pa.Array]
    mapped: mmap.mmap
    #: Offset in the file.
    at: int
    length: int

    def release(self) -> None:
        """Release the memory of pages that were read; they are read again on demand."""
        self.mapped.madvise(mmap.MADV_DONTNEED, self.at, self.length)


class _File:
    """A file to which runs are appended."""

    def __init__(self, folder: Path, size: int) -> None:
        handle, name = tempfile.mkstemp(dir=folder)
        try:
            Path(name).unlink()
            os.truncate(handle, size)
            self.mapped = mmap.mmap(handle, size)  # duplicates the descriptor, and closes the duplicate
        except BaseException:
            os.close(handle)
            raise
        self._handle, self._size, self._end = handle, size, 0

    def close(self) -> None:
        """Close the file for writing."""
        os.close(self._handle)

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes fit."""
        return self._end + size <= self._size

    def write(self, data: memoryview) -> int:
        """Append data and return its offset."""
        at, done = self._end, 0
        while done < len(data):
            done += os.pwrite(self._handle, data[done:], at + done)
        self._end = at + -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
        return at


class SpillArea:
    """The spill folder of a subtask."""

    def __init__(
        self, folder: Path, least: int = _FILE, larger: int = _LARGER, *, limits: StateLimits = PRODUCTION
    ) -> None:
        """Prepare to write to `folder`, which is created with the first rows.

        A file takes at least `least` bytes, and one part in `larger` of the bytes written before.
        """
        self._folder, self._least, self._larger = folder, least, larger
        self._file: _File | None = None
        self._written = 0
        self.limits = limits

    def close(self) -> None:
        """Stop writing; runs that are in use keep their files."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def __del__(self) -> None:
        """Close the area if its owner has not done so."""
        self.close()

    def write(self, keys: RunKeys, numbers: I32, times: I64, values: Sequence[pa.Array]) -> SpilledRows:
        """Write rows, at least one, and return them as mapped columns; `numbers` are those of their keys.

        Raises:
            StorageError: the disk is full or broken.
        """
        packed = io.BytesIO()
        places = []
        for array in (numbers, times, keys.hashes):
            packed.seek(_aligned(packed.tell()))
            places.append(packed.tell())
            packed.write(np.ascontiguousarray(array).data)
        tables = [_Columns.write(packed, columns) for columns in (keys.arrays, values)]
        mapped, at = self._placed(packed.getbuffer())
        length = packed.tell()
        found, rows = memoryview(mapped)[at : at + length], len(numbers)
        hashes = np.frombuffer(found, np.int64, len(keys.hashes), places[2])
        return SpilledRows(
            RunKeys(keys.schema, hashes, tables[0].read(found)),
            np.frombuffer(found, np.int32, rows, places[0]),
            np.frombuffer(found, np.int64, rows, places[1]),
            tables[1].read(found),
            mapped,
            at,
            length,
        )

    def _placed(self, data: memoryview) -> tuple[mmap.mmap, int]:
        try:
            if self._file is None or not self._file.has_room(len(data)):
                self.close()
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = _File(self._folder, max(self._least, self._written // self._larger, len(data)))
            self._written += len(data)
            return self._file.mapped, self._file.write(data)
        except OSError as error:
            msg = f"rows cannot be spilled to {self._folder}: {error}"
            hint = _HINTS.get(error.errno or 0, "free space on the TaskManager's local disk")
            raise StorageError(msg, hint=hint) from error


@dataclass(frozen=True, slots=True)
class _Columns:
    """Offsets of columns in the bytes of a run; empty if there are no columns."""

    first: int
    stop: int

    @classmethod
    def write(cls, packed: io.BytesIO, columns: Sequence[pa.Array]) -> _Columns:
        """Append columns of the same length."""
        packed.seek(_aligned(packed.tell()))
        first = packed.tell()
        if columns:
            batch = pa.record_batch(list(columns), names=[str(place) for place in range(len(columns))])
            with pa.ipc.new_stream(packed, batch.schema) as writer:
                writer.write_batch(batch)
        return cls(first, packed.tell())

    def read(self, data: memoryview) -> list[pa.Array]:
        """Return the columns at these offsets, without a copy."""
        if self.first == self.stop:
            return []
        with pa.ipc.open_stream(pa.py_buffer(data[self.first : self.stop])) as reader:
            return list(reader.read_next_batch().columns)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
