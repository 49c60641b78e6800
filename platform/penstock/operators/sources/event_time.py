"""Conversion of a batch's timestamp column to `__ts`: int64 microseconds, with a mask of nulls and out-of-range values.

Called by `penstock.operators.sources.source_operator` for every batch, so the usual case (microseconds, no nulls)
copies nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import GraphError
from penstock.eventtime.strategy import EARLIEST_US, LATEST_US, microseconds_per

if TYPE_CHECKING:
    from penstock.eventtime.strategy import Unit

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

_US_PER_DAY = 86_400_000_000


class TimestampColumn:
    """Reads one column as event time."""

    def __init__(self, name: str, unit: Unit, schema: pa.Schema) -> None:
        """Resolve the column.

        Raises:
            GraphError: the column has no time type.
        """
        self.name = name
        self._type = schema.field(self.name).type
        #: Microseconds per raw unit; None = raw values are nanoseconds.
        self._scale = _scale_of(self._type, unit, name)
        if self._scale is None:
            self._low, self._high = EARLIEST_US * 1000, LATEST_US * 1000
            self._low = max(self._low, -(1 << 63))
            self._high = min(self._high, (1 << 63) - 1)
        else:
            self._low, self._high = -(-EARLIEST_US // self._scale), LATEST_US // self._scale

    def read(self, batch: pa.RecordBatch) -> tuple[Int64s, Bools | None]:
        """Return microseconds by row, and a mask of the rows without a time (None: every row has one)."""
        column = self.raw(batch)
        bad: Bools | None = None
        if column.null_count:
            bad = pc.is_null(column).to_numpy(zero_copy_only=False)
            column = pc.fill_null(column, 0)
        values: Int64s = column.to_numpy()
        if len(values) and (values.min() < self._low or values.max() > self._high):
            outside = (values < self._low) | (values > self._high)
            bad = outside if bad is None else bad | outside
            values = np.where(outside, 0, values)
        return self._microseconds(values), bad

    def raw(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the column as int64 in its own unit, nulls kept."""
        column = batch.column(self.name)
        if pa.types.is_timestamp(self._type):
            return column.view(pa.int64())
        if pa.types.is_date32(self._type):
            return column.view(pa.int32()).cast(pa.int64())
        return column if column.type == pa.int64() else column.cast(pa.int64())

    def _microseconds(self, values: Int64s) -> Int64s:
        if self._scale is None:
            return values // 1000
        return values if self._scale == 1 else values * self._scale


def _scale_of(arrow_type: pa.DataType, unit: Unit, name: str) -> int | None:
    if pa.types.is_timestamp(arrow_type):
        return microseconds_per(arrow_type.unit)
    if pa.types.is_date32(arrow_type):
        return _US_PER_DAY
    if pa.types.is_integer(arrow_type) and arrow_type != pa.uint64():
        return microseconds_per(unit)
    msg = f"watermark strategy: column {name!r} is {arrow_type}, which is no event time"
    raise GraphError(msg, hint="use a datetime or date field, or an integer field with unit='ms'")


def largest_by_split(times: Int64s, split_index: np.ndarray[Any, Any] | None, splits: int) -> Int64s:
    """Return the largest time of each of `splits` splits; the smallest integer for a split without rows."""
    largest: Int64s = np.full(splits, np.iinfo(np.int64).min, dtype=np.int64)
    if split_index is None:
        largest[0] = times.max()
    else:
        np.maximum.at(largest, split_index, times)
    return largest
