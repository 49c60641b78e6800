"""Rows of `TimedRows` that memory has no room for: local files, mapped, run by run, each with its keys.

A spill area: it starts empty, and a file has no name, so it is gone with whoever looks at it. Runs share files, of
which each takes a descriptor for as long as one of its runs is there. What is mapped counts as resident memory of the
process until it is given back (`release`).
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
#: What a file takes at least, as long as there is room on the disk; more than one run is written behind one another.
_FILE = 64 << 20
#: A new file takes one part in so many of what was written before, so that few are open however much there is.
_LARGER = 8
_HINTS = {
    errno.EMFILE: "raise the TaskManager's limit of open files (ulimit -n)",
    errno.ENFILE: "raise the host's limit of open files (fs.file-max)",
    errno.ENOMEM: "raise the host's limit of mapped files (vm.max_map_count)",
}


@dataclass(frozen=True, slots=True)
class SpilledRows:
    """The columns of a run in a file: the number of each row's key, its time, its values."""

    keys: RunKeys
    numbers: I32
    times: I64
    values: list[pa.Array]
    mapped: mmap.mmap
    #: Where it lies in the file.
    at: int
    length: int

    def release(self) -> None:
        """Give back the memory of what was looked at; it is read again when it is needed."""
        self.mapped.madvise(mmap.MADV_DONTNEED, self.at, self.length)


class _File:
    """A file that runs are written to one behind the other."""

    def __init__(self, folder: Path, size: int) -> None:
        handle, name = tempfile.mkstemp(dir=folder)
        try:
            Path(name).unlink()
            os.truncate(handle, size)
            self.mapped = mmap.mmap(handle, size)  # with a descriptor of its own, which it closes
        except BaseException:
            os.close(handle)
            raise
        self._handle, self._size, self._end = handle, size, 0

    def close(self) -> None:
        """Nothing more is written."""
        os.close(self._handle)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes fit in."""
        return self._end + size <= self._size

    def write(self, data: memoryview) -> int:
        """Write behind what is there and return where that is."""
        at, done = self._end, 0
        while done < len(data):
            done += os.pwrite(self._handle, data[done:], at + done)
        self._end = at + -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
        return at


class SpillArea:
    """A folder of the subtask's own."""

    def __init__(
        self, folder: Path, least: int = _FILE, larger: int = _LARGER, *, limits: StateLimits = PRODUCTION
    ) -> None:
        """`folder` is made when the first rows come.

        A file takes at least `least` bytes, and one part in `larger` of what was written before.
        """
        self._folder, self._least, self._larger = folder, least, larger
        self._file: _File | None = None
        self._written = 0
        self.limits = limits

    def close(self) -> None:
        """Write nothing more; what was written stays for who has it."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def __del__(self) -> None:
        """Close what nobody has closed."""
        self.close()

    def write(self, keys: RunKeys, numbers: I32, times: I64, values: Sequence[pa.Array]) -> SpilledRows:
        """Write rows, at least one, and return them as they lie in the file; `numbers` are those of their keys.

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
            msg = f"rows that do not fit in memory cannot be written to {self._folder}: {error}"
            hint = _HINTS.get(error.errno or 0, "free space on the TaskManager's local disk")
            raise StorageError(msg, hint=hint) from error


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where columns lie among the bytes of a run; nowhere if there are none."""

    first: int
    stop: int

    @classmethod
    def write(cls, packed: io.BytesIO, columns: Sequence[pa.Array]) -> _Columns:
        """Write columns of the same length behind what is there."""
        packed.seek(_aligned(packed.tell()))
        first = packed.tell()
        if columns:
            batch = pa.record_batch(list(columns), names=[str(place) for place in range(len(columns))])
            with pa.ipc.new_stream(packed, batch.schema) as writer:
                writer.write_batch(batch)
        return cls(first, packed.tell())

    def read(self, data: memoryview) -> list[pa.Array]:
        """Return the columns as they lie there."""
        if self.first == self.stop:
            return []
        with pa.ipc.open_stream(pa.py_buffer(data[self.first : self.stop])) as reader:
            return list(reader.read_next_batch().columns)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
