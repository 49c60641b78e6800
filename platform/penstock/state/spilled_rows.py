"""Rows of `TimedRows` that memory has no room for: local files, mapped, run by run in the order they are searched in.

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compile import I32, I64

_ALIGNED = 64
#: What a file takes at least, as long as there is room on the disk; more than one run is written behind one another.
_FILE = 64 << 20
_HINTS = {
    errno.EMFILE: "raise the TaskManager's limit of open files (ulimit -n)",
    errno.ENFILE: "raise the host's limit of open files (fs.file-max)",
    errno.ENOMEM: "raise the host's limit of mapped files (vm.max_map_count)",
}


@dataclass(frozen=True, slots=True)
class SpilledRows:
    """The columns of a run in a file; slots may be written to, the rest not."""

    slots: I32
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

    def __init__(self, folder: Path) -> None:
        """`folder` is made when the first rows come."""
        self._folder = folder
        self._file: _File | None = None

    def close(self) -> None:
        """Write nothing more; what was written stays for who has it."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def __del__(self) -> None:
        """Close what nobody has closed."""
        self.close()

    def write(self, slots: I32, times: I64, values: Sequence[pa.Array]) -> SpilledRows:
        """Write rows, at least one, and return them as they lie in the file.

        Raises:
            StorageError: the disk is full or broken.
        """
        times_at = _aligned(slots.nbytes)
        values_at = _aligned(times_at + times.nbytes)
        batch = pa.record_batch(list(values), names=[str(place) for place in range(len(values))])
        packed = io.BytesIO()
        for at, array in ((0, slots), (times_at, times)):
            packed.seek(at)
            packed.write(np.ascontiguousarray(array).data)
        packed.seek(values_at)
        if values:
            with pa.ipc.new_stream(packed, batch.schema) as writer:
                writer.write_batch(batch)
        mapped, at = self._placed(packed.getbuffer())
        length = packed.tell()
        found: list[pa.Array] = []
        if values:
            with pa.ipc.open_stream(pa.py_buffer(memoryview(mapped)[at + values_at : at + length])) as reader:
                found = list(reader.read_next_batch().columns)
        count = len(slots)
        return SpilledRows(
            np.frombuffer(mapped, np.int32, count, at),
            np.frombuffer(mapped, np.int64, count, at + times_at),
            found,
            mapped,
            at,
            length,
        )

    def _placed(self, data: memoryview) -> tuple[mmap.mmap, int]:
        try:
            if self._file is None or not self._file.has_room(len(data)):
                self.close()
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = _File(self._folder, max(_FILE, len(data)))
            return self._file.mapped, self._file.write(data)
        except OSError as error:
            msg = f"rows that do not fit in memory cannot be written to {self._folder}: {error}"
            hint = _HINTS.get(error.errno or 0, "free space on the TaskManager's local disk")
            raise StorageError(msg, hint=hint) from error


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
