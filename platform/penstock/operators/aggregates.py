"""From aggregate functions to accumulators and back.

Which accumulators a window keeps, what a batch adds, what a window shows.

All are associative, so that panes merge, and rows that `operators.combine` put together before the shuffle. SQL's rules
for nulls: an aggregate of no value is null, `count(column)` counts values. Sums and means of integers are exact;
leaving 64 bits is an error. `mean` = sum and count, `var` and `std` are of a sample (null below two values). `first`
and `last` go by event time, then by arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import TS_COLUMN
from penstock.kernels.columns import FixedColumn, fixed_column, fixed_to_arrow, float_column
from penstock.operators.window_schema import key_schema
from penstock.state.accumulators import AccumulatorInput, AccumulatorSpec, Combine, PaneTableSpec

if TYPE_CHECKING:
    from penstock.kernels.compile import F64, I64, U8
    from penstock.operators.window_schema import Aggregate, Grouping

_NONE = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True)
class _Need:
    """An accumulator some aggregate needs; `count` counts the values of a nullable column."""

    combine: Combine
    column: str
    counts: bool = False

    @property
    def name(self) -> str:
        return f"{'count' if self.counts else self.combine}_{self.column}"


class AggregatePlan:
    """The accumulators of one operator, with or without windows."""

    def __init__(self, config: Grouping, input_schema: pa.Schema, *, single_pane: bool = False) -> None:
        """Collect what the aggregates need; two that need the same share it."""
        self._schema = input_schema
        self._aggregates = config.aggregates
        self._needs: list[_Need] = []
        for aggregate in config.aggregates:
            for need in self._needs_of(aggregate):
                if need not in self._needs:
                    self._needs.append(need)
        keys = key_schema(config, input_schema)
        self.spec = PaneTableSpec(keys, self._specs(set(keys.names)), single_pane)
        self._word = dict(zip(self._needs, self.spec.words, strict=True))

    def _needs_of(self, aggregate: Aggregate) -> list[_Need]:
        column = aggregate.column
        if column is None:
            return []
        count = [_Need("sum", column, counts=True)] if self._schema.field(column).nullable else []
        combines: dict[str, Combine] = {"mean": "sum", "var": "moments", "std": "moments"}
        if aggregate.fn == "count":
            return count
        if aggregate.fn in ("var", "std"):
            return [_Need("moments", column)]
        combine: Combine = combines.get(aggregate.fn, aggregate.fn)  # type: ignore[arg-type]
        return [_Need(combine, column), *count]

    def _specs(self, taken: set[str]) -> tuple[AccumulatorSpec, ...]:
        specs = []
        for need in self._needs:
            floats = pt.is_floating(self._schema.field(need.column).type) or need.combine == "moments"
            name = need.name
            while name in taken:
                name += "_"
            taken.add(name)
            specs.append(AccumulatorSpec(name, "float64" if floats and not need.counts else "int64", need.combine))
        return tuple(specs)

    def word(self, combine: Combine, column: str) -> int:
        """Return the place of an accumulator's first word in a cell."""
        return self._word[_Need(combine, column)]

    def inputs(self, batch: pa.RecordBatch) -> list[AccumulatorInput | None]:
        """Return what a batch adds to each accumulator."""
        fixed: dict[str, FixedColumn] = {}
        floats: dict[str, F64] = {}
        inputs: list[AccumulatorInput | None] = []
        for need, spec in zip(self._needs, self.spec.accumulators, strict=True):
            array = batch.column(need.column)
            if need.counts:
                inputs.append(_validity(array))
                continue
            as_bits = need.combine in ("first", "last") or spec.dtype == "int64"
            if as_bits:
                if need.column not in fixed:
                    fixed[need.column] = fixed_column(array)
                column = fixed[need.column]
                values: I64 | F64 = column.values
                bitmap, bit_offset = column.bitmap, column.bit_offset
            else:
                if need.column not in floats:
                    floats[need.column] = float_column(array)
                values = floats[need.column]
                bitmap, bit_offset = _bits(array)
            times = _times(batch) if need.combine in ("first", "last") else None
            inputs.append(AccumulatorInput(values, bitmap, bit_offset, times))
        return inputs

    def outputs(self, cells: I64) -> list[pa.Array]:
        """Return the aggregates of merged cells (word 0 = number of rows)."""
        return [self._output(a, cells) for a in self._aggregates]

    def _output(self, aggregate: Aggregate, cells: I64) -> pa.Array:
        if aggregate.column is None:
            return pa.array(np.ascontiguousarray(cells[:, 0]))
        field = self._schema.field(aggregate.column)
        if aggregate.fn in ("var", "std"):
            return _spread(_column(cells, self._word[_Need("moments", aggregate.column)], 3), aggregate.fn)
        count = cells[:, 0]
        if field.nullable:
            count = cells[:, self._word[_Need("sum", aggregate.column, counts=True)]]
        if aggregate.fn == "count":
            return pa.array(np.ascontiguousarray(count))
        valid = (count > 0).astype(np.uint8) if field.nullable else None
        combine: Combine = "sum" if aggregate.fn == "mean" else aggregate.fn  # type: ignore[assignment]
        word = self._word[_Need(combine, aggregate.column)] + (combine in ("first", "last"))
        bits = np.ascontiguousarray(cells[:, word])
        if aggregate.fn == "mean":
            total = bits.view(np.float64) if pt.is_floating(field.type) else bits
            return fixed_to_arrow((total / np.maximum(count, 1)).view(np.int64), valid, pa.float64())
        if aggregate.fn == "sum":
            return fixed_to_arrow(bits, valid, pa.float64() if pt.is_floating(field.type) else pa.int64())
        if valid is not None:  # what an accumulator holds that saw nothing need not fit the column's type
            bits = np.where(valid == 1, bits, 0)
        return fixed_to_arrow(bits, valid, field.type)


def _times(batch: pa.RecordBatch) -> I64:
    """Event times; without any, all rows count as of one time, so that the order of arrival decides."""
    if TS_COLUMN not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    times: I64 = batch.column(TS_COLUMN).to_numpy()
    return times


def _bits(array: pa.Array) -> tuple[U8, int]:
    if array.null_count == 0:
        return _NONE, 0
    return np.frombuffer(array.buffers()[0], np.uint8), int(array.offset)


def _validity(array: pa.Array) -> AccumulatorInput:
    if pt.is_null(array.type):
        array = pa.nulls(len(array), pa.int64())
    return AccumulatorInput(None, *_bits(array))


def _column(cells: I64, word: int, words: int) -> F64:
    return np.ascontiguousarray(cells[:, word : word + words]).view(np.float64)


def _spread(moments: F64, fn: str) -> pa.Array:
    count, squares = moments[:, 0], moments[:, 2]
    variance = np.maximum(squares, 0.0) / np.maximum(count - 1.0, 1.0)
    values = variance if fn == "var" else np.sqrt(variance)
    return fixed_to_arrow(np.ascontiguousarray(values).view(np.int64), (count >= 2).astype(np.uint8), pa.float64())
