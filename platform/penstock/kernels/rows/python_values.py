"""Arrow columns as Python values, faster than `to_pylist` for the most frequent types."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def python_values(array: pa.Array) -> list[Any]:
    """Return an array as Python values; timestamps via numpy, which is five times faster."""
    if not pt.is_timestamp(array.type) or array.type.tz not in ("UTC", None) or array.null_count:
        values: list[Any] = array.to_pylist()
        return values
    times = array.to_numpy(zero_copy_only=False).astype("datetime64[us]")
    if array.type.tz is None:
        naive: list[Any] = times.tolist()
        return naive
    # a sixth of the time of `replace(tzinfo=...)`
    return list(map(_EPOCH.__add__, times.view("timedelta64[us]").tolist()))


def plain_values(array: pa.Array) -> list[Any]:
    """Return an array as Python values; integers and floats are ten times faster."""
    if not (pt.is_int64(array.type) or pt.is_float64(array.type)):
        return python_values(array)
    if array.null_count == 0:
        values: list[Any] = array.to_numpy().tolist()
        return values
    values = array.fill_null(0).to_numpy().tolist()
    for place in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
        values[place] = None
    return values
