"""Aggregates that need the rows of a window: `collect`, `count_distinct`, `quantile` and user-defined ones.

Computed when a window fires, over the values of all windows that fire together; called by
`operators.windows.window_outputs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.kernels.keys.key_columns import fixed_column, fixed_to_arrow
from penstock.kernels.keys.key_types import is_fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.functions.folding_states import Aggregator
    from penstock.kernels.compiler.compile import F64, I64
    from penstock.operators.aggregates.window_schema import Aggregate


def kept_output(aggregate: Aggregate, values: pa.Array, window: I64, windows: int) -> pa.Array:
    """Return an aggregate of each window; value i belongs to `window[i]`, which is sorted. Null means no value."""
    if pt.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        valid = values.is_valid()
        values, window = values.filter(valid), window[valid.to_numpy(zero_copy_only=False)]
    if aggregate.fn == "collect":
        ends = np.cumsum(np.bincount(window, minlength=windows))
        return pa.ListArray.from_arrays(pa.array(np.append(0, ends), pa.int32()), values)
    if aggregate.fn == "count_distinct":
        return pa.array(_distinct(values, window, windows))
    return _quantiles(_floats(values), window, windows, aggregate.quantile)


def aggregated(
    aggregator: Aggregator[Any, Any, Any], windows: Sequence[Sequence[Any]], column: str | None
) -> list[Any]:
    """Return a user-defined aggregate of each window's rows, or of the non-null values of `column`."""
    results = []
    for rows in windows:
        held = aggregator.create_accumulator()
        for row in rows:
            value = row if column is None else getattr(row, column)
            if value is not None:
                held = aggregator.add(value, held)
        results.append(aggregator.get_result(held))
    return results


def _distinct(values: pa.Array, window: I64, windows: int) -> I64:
    if is_fixed(values.type):
        _, codes = np.unique(fixed_column(values).values, return_inverse=True)
    else:
        codes = values.dictionary_encode().indices.to_numpy()
    most = int(codes.max(initial=0)) + 1
    pairs = np.unique(window * most + codes)
    return np.bincount(pairs // most, minlength=windows)


def _floats(values: pa.Array) -> F64:
    kind = values.type
    found: F64 = (values.cast(pa.float64(), safe=False) if not pt.is_float64(kind) else values).to_numpy(
        zero_copy_only=False
    )
    return found


def _quantiles(values: F64, window: I64, windows: int, quantile: float) -> pa.Array:
    """Interpolate between the two nearest values, as SQL's `PERCENTILE_CONT`; NaN is the greatest."""
    order = np.lexsort((values, window))
    values = np.append(values[order], 0.0)
    count = np.bincount(window, minlength=windows)
    first = np.cumsum(count) - count
    place = quantile * np.maximum(count - 1, 0)
    low = np.floor(place).astype(np.int64)
    high = np.ceil(place).astype(np.int64)
    below, above = values[first + low], values[first + high]
    part = place - low
    with np.errstate(invalid="ignore"):  # the mean of the two infinities is undefined
        found = np.where(below == above, below, below * (1 - part) + above * part)
    found = np.where(low == high, below, found)
    valid = (count > 0).astype(np.uint8)
    return fixed_to_arrow(np.where(valid == 1, found, 0.0).view(np.int64), valid, pa.float64())
