"""The arithmetic of the checksum sink: Arrow columns to the compiled loops, sums out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock_lab.workloads.kernels import TEXT_BYTES, add_rows, add_timed_rows, add_windows, unspell

if TYPE_CHECKING:
    from penstock_lab.workloads.checksum_config import Config

Int64s = np.ndarray[Any, np.dtype[np.int64]]

#: The value of a null key in the checksum.
NULL_KEY = -1


class Checksum:
    """The four sums of one epoch."""

    def __init__(self, config: Config) -> None:
        """Take `config`, which names the columns and the form."""
        self._columns = config.columns
        self._windows = config.form == "windows"
        self._scale = np.array([config.unit_us, config.cut_us], np.int64)
        self._sums = np.zeros(4, np.int64)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        user, first, second, third = (self._numbers(batch.column(name)) for name in self._columns)
        if self._windows:
            add_windows(user, first, second, third, self._scale, self._sums)
        else:
            timed = pa.types.is_timestamp(batch.column(self._columns[1]).type)
            (add_timed_rows if timed else add_rows)(user, first, second, third, self._sums)

    def take(self) -> list[int]:
        """Return the sums and reset them to zero."""
        sums: list[int] = self._sums.tolist()
        self._sums[:] = 0
        return sums

    def _numbers(self, column: pa.Array) -> Int64s:
        if pa.types.is_string(column.type):
            return self._keys_of(column)
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        elif pa.types.is_decimal128(column.type):  # the unscaled number; only its low half is used
            halves = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset :]
            return np.ascontiguousarray(halves[: 2 * len(column) : 2])
        if column.null_count:
            column = pc.fill_null(column, NULL_KEY)
        values: Int64s = column.to_numpy()
        return values

    def _keys_of(self, column: pa.Array) -> Int64s:
        """Read keys that are strings; null keys have no bytes and are filtered before."""
        keys = np.full(len(column), NULL_KEY, np.int64)
        valid: Any = slice(None)
        if column.null_count:
            valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            column = column.drop_null()
        _, ends, data = column.buffers()
        start = int(np.frombuffer(ends, np.int32)[column.offset]) if len(column) else 0
        text = np.frombuffer(data, np.uint8)[start : start + TEXT_BYTES * len(column)] if data else keys[:0].view("u1")
        found = np.empty(len(column), np.int64)
        unspell(text, found)
        keys[valid] = found
        return keys
