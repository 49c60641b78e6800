"""Rows of `TimedRows` that memory has no room for: one local file a run, mapped, in the order they are searched in.

A spill area: it starts empty, and a file has no name once it is written, so it is gone with whoever looks at it. What
is mapped counts as resident memory of the process until it is given back (`release`).
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class SpilledRows:
    """The columns of a file; slots may be written to, the rest not."""

    slots: I32
    times: I64
    values: list[pa.Array]
    mapped: mmap.mmap

    def release(self) -> None:
        """Give back the memory of what was looked at; it is read again when it is needed."""
        self.mapped.madvise(mmap.MADV_DONTNEED)


class SpillArea:
    """A folder of the subtask's own."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made when the first rows come."""
        self._folder = folder

    def write(self, slots: I32, times: I64, values: Sequence[pa.Array]) -> SpilledRows:
        """Write rows, at least one, and return them as they lie in the file.

        Raises:
            StorageError: the disk is full or broken.
        """
        times_at = _aligned(slots.nbytes)
        values_at = _aligned(times_at + times.nbytes)
        batch = pa.record_batch(list(values), names=[str(place) for place in range(len(values))])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w+b") as file:
                Path(name).unlink()
                for at, array in ((0, slots), (times_at, times)):
                    file.seek(at)
                    file.write(np.ascontiguousarray(array).data)
                file.seek(values_at)
                if values:
                    with pa.ipc.new_stream(file, batch.schema) as writer:
                        writer.write_batch(batch)
                file.flush()
                mapped = mmap.mmap(file.fileno(), 0)
        except OSError as error:
            msg = f"rows that do not fit in memory cannot be written to {self._folder}: {error}"
            raise StorageError(msg, hint="free space on the TaskManager's local disk") from error
        found: list[pa.Array] = []
        if values:
            with pa.ipc.open_stream(pa.py_buffer(memoryview(mapped)[values_at:])) as reader:
                found = list(reader.read_next_batch().columns)
        count = len(slots)
        return SpilledRows(
            np.frombuffer(mapped, np.int32, count), np.frombuffer(mapped, np.int64, count, times_at), found, mapped
        )


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
