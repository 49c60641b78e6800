"""The accumulators of aggregate functions: their input from a batch, and their results.

Contains the HyperLogLog estimate of `approx_count_distinct`. Used by the aggregating operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import TS_COLUMN
from penstock.core.evolution import AggregatePart
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import FixedColumn, fixed_column, fixed_to_arrow, float_column, key_column
from penstock.kernels.keys.key_types import is_fixed
from penstock.operators.aggregates.aggregate_schema import WindowConfig, key_schema, plain_type
from penstock.state.cells.accumulators import TIMED, AccumulatorInput, AccumulatorSpec, Combine, PaneTableSpec
from penstock.state.cells.value_heap import ValueHeap, take_values

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import F64, I64, U8
    from penstock.operators.aggregates.aggregate_schema import Aggregate, Grouping

#: As in `kernels.aggregates.aggregate`: words and registers of an accumulator, the highest rank a register can hold.
WORDS, _REGISTERS, _HIGHEST = 64, 512, 56
#: Accumulators processed together, with one histogram each.
_PIECE = 4096
_APPROXIMATE = "approx_count_distinct"
#: Aggregates whose result is one of the values, so they take any type.
_SELECTING = ("min", "max", "first", "last")
_NONE = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True)
class _NeededAccumulator:
    """One accumulator that some aggregate needs; `counts`: the number of values of a nullable column."""

    combine: Combine
    column: str
    counts: bool = False

    @property
    def name(self) -> str:
        return f"{'count' if self.counts else self.combine}_{self.column}"


class AggregatePlan:
    """The accumulators of one operator, with or without windows."""

    def __init__(
        self, config: Grouping, input_schema: pa.Schema, *, single_pane: bool = False, expires: bool = False
    ) -> None:
        """Collect the accumulators; aggregates share equal ones. `expires`: rows have a time-to-live."""
        self._schema = input_schema
        self._aggregates = config.aggregates
        self._needed: list[_NeededAccumulator] = []
        for aggregate in config.aggregates:
            for need in self._needed_by(aggregate):
                if need not in self._needed:
                    self._needed.append(need)
        keys = key_schema(config, input_schema)
        accumulators = self._specs(set(keys.names))
        self._named = dict(zip(self._needed, accumulators, strict=True))
        parts = tuple(self._part_of(aggregate) for aggregate in config.aggregates if aggregate.column is not None)
        window = _window_description(config) if isinstance(config, WindowConfig) else ""
        self.spec = PaneTableSpec(
            keys, accumulators, single_pane, expires=expires, evolves=True, parts=parts, window=window
        )
        self._word = dict(zip(self._needed, self.spec.words, strict=True))
        #: The store of strings and other variable-size values that cells refer to: the table's heap, if there is a
        #: table.
        self.heap = ValueHeap()

    def _needed_by(self, aggregate: Aggregate) -> list[_NeededAccumulator]:
        column = aggregate.column
        if column is None:
            return []
        field = self._schema.field(column)
        if aggregate.fn in _SELECTING and not is_fixed(plain_type(field.type)):
            return [_NeededAccumulator(aggregate.fn, column)]  # type: ignore[arg-type]  # null where there was no value
        count = [_NeededAccumulator("sum", column, counts=True)] if field.nullable else []
        combines: dict[str, Combine] = {"mean": "sum", "var": "moments", "std": "moments"}
        if aggregate.fn == "count":
            return count
        if aggregate.fn in ("var", "std"):
            return [_NeededAccumulator("moments", column)]
        if aggregate.fn == _APPROXIMATE:
            return [_NeededAccumulator("registers", column)]
        combine: Combine = combines.get(aggregate.fn, aggregate.fn)  # type: ignore[arg-type]
        return [_NeededAccumulator(combine, column), *count]

    def _part_of(self, aggregate: Aggregate) -> AggregatePart:
        """Return the accumulators of an aggregate, recorded in the snapshot for later versions of the job."""
        column, needs = str(aggregate.column), self._needed_by(aggregate)
        values = [need for need in needs if not need.counts or aggregate.fn == "count"]
        counts = [need for need in needs if need not in values]
        nullable = bool(counts) or (aggregate.fn == "count" and bool(needs))
        picks = aggregate.fn in _SELECTING and is_fixed(plain_type(self._schema.field(column).type))
        return AggregatePart(
            what=f"{aggregate.fn}({column})",
            columns=tuple(name for need in values for name, _ in self._named[need].columns),
            count=self._named[counts[0]].name if counts else "",
            late=not picks and aggregate.fn != "mean",
            whole=aggregate.fn == "mean" and not counts,
            absent=f"count_{column}" if not nullable and (picks or aggregate.fn in ("mean", "count")) else "",
        )

    def _specs(self, taken: set[str]) -> tuple[AccumulatorSpec, ...]:
        specs = []
        for need in self._needed:
            kind = plain_type(self._schema.field(need.column).type)
            floats = pt.is_floating(kind) or need.combine == "moments"
            name = need.name
            while name in taken:
                name += "_"
            taken.add(name)
            if need.combine == "registers":
                specs.append(AccumulatorSpec(name, "int64", need.combine))
            elif need.counts or is_fixed(kind):
                specs.append(AccumulatorSpec(name, "float64" if floats and not need.counts else "int64", need.combine))
            else:
                specs.append(AccumulatorSpec(name, "value", need.combine, kind))
        return tuple(specs)

    def word(self, combine: Combine, column: str) -> int:
        """Return the index of an accumulator's first word in a cell."""
        return self._word[_NeededAccumulator(combine, column)]

    def inputs(self, batch: pa.RecordBatch) -> list[AccumulatorInput | None]:
        """Return the input of each accumulator from a batch."""
        fixed: dict[str, FixedColumn] = {}
        floats: dict[str, F64] = {}
        addresses: dict[str, I64] = {}
        inputs: list[AccumulatorInput | None] = []
        for need, spec in zip(self._needed, self.spec.accumulators, strict=True):
            array = batch.column(need.column)
            if need.counts:
                inputs.append(_validity(array))
                continue
            if need.combine == "registers":
                hashes = hash_key_columns((key_column(array),), len(array))
                inputs.append(AccumulatorInput(hashes, *_bits(array)))
                continue
            if pt.is_dictionary(array.type):
                array = array.dictionary_decode()
            times = _times(batch) if need.combine in TIMED else None
            if spec.dtype == "value":
                if need.column not in addresses:
                    addresses[need.column] = self.heap.put(array)
                inputs.append(AccumulatorInput(addresses[need.column], *_bits(array), times))
                continue
            as_bits = need.combine in TIMED or spec.dtype == "int64"
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
            return _variance(
                _column(cells, self._word[_NeededAccumulator("moments", aggregate.column)], 3), aggregate.fn
            )
        if aggregate.fn == _APPROXIMATE:
            word = self._word[_NeededAccumulator("registers", aggregate.column)]
            return pa.array(estimates(cells[:, word : word + WORDS]))
        count = cells[:, 0]
        if aggregate.fn in _SELECTING and not is_fixed(plain_type(field.type)):
            word = self._word_of(aggregate.fn, aggregate.column)
            return take_values(cells[:, word], self.spec.value_words[word])
        if field.nullable:
            count = cells[:, self._word[_NeededAccumulator("sum", aggregate.column, counts=True)]]
        if aggregate.fn == "count":
            return pa.array(np.ascontiguousarray(count))
        valid = (count > 0).astype(np.uint8) if field.nullable else None
        bits = np.ascontiguousarray(cells[:, self._word_of(aggregate.fn, aggregate.column)])
        if aggregate.fn == "mean":
            total = bits.view(np.float64) if pt.is_floating(field.type) else bits
            return fixed_to_arrow((total / np.maximum(count, 1)).view(np.int64), valid, pa.float64())
        if aggregate.fn == "sum":
            return fixed_to_arrow(bits, valid, pa.float64() if pt.is_floating(field.type) else pa.int64())
        if valid is not None:  # the content of an empty accumulator need not fit the column's type
            bits = np.where(valid == 1, bits, 0)
        return fixed_to_arrow(bits, valid, plain_type(field.type))

    def _word_of(self, fn: str, column: str) -> int:
        """Return the word of an aggregate's value."""
        combine: Combine = "sum" if fn == "mean" else fn  # type: ignore[assignment]
        return self._word[_NeededAccumulator(combine, column)] + (fn in ("first", "last"))


def _window_description(window: WindowConfig) -> str:
    """Return the part of a window's definition that its panes depend on."""
    numbers = {"size": window.size, "slide": window.slide, "offset": window.offset, "step": window.step}
    if window.slide == window.size:
        del numbers["slide"]
    shown = [f"{name} {value / 1_000_000:g} s" for name, value in numbers.items() if value]
    return ", ".join([*shown, *([window.time_zone] if window.time_zone else [])])


def _times(batch: pa.RecordBatch) -> I64:
    """Return event times; without any, equal times for all rows, so that the order of arrival decides."""
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


def _variance(moments: F64, fn: str) -> pa.Array:
    count, squares = moments[:, 0], moments[:, 2]
    variance = np.maximum(squares, 0.0) / np.maximum(count - 1.0, 1.0)
    values = variance if fn == "var" else np.sqrt(variance)
    return fixed_to_arrow(np.ascontiguousarray(values).view(np.int64), (count >= 2).astype(np.uint8), pa.float64())


def estimates(words: I64) -> I64:
    """Return the estimated number of distinct values for each row of words."""
    rows = len(words)
    found = np.empty(rows, np.int64)
    for first in range(0, rows, _PIECE):
        registers = np.ascontiguousarray(words[first : first + _PIECE]).view(np.uint8)
        count = len(registers)
        ranks = registers.astype(np.int64) + np.arange(count)[:, np.newaxis] * (_HIGHEST + 1)
        histogram = np.bincount(ranks.reshape(-1), minlength=count * (_HIGHEST + 1)).reshape(count, -1)
        found[first : first + count] = _estimate(histogram.astype(np.float64))
    return found


def _estimate(histogram: F64) -> I64:
    size = float(_REGISTERS)
    total = size * _tau(1.0 - histogram[:, _HIGHEST] / size)
    for rank in range(_HIGHEST - 1, 0, -1):
        total = 0.5 * (total + histogram[:, rank])
    total += size * _sigma(histogram[:, 0] / size)
    found: I64 = np.rint(size * size / (2.0 * np.log(2.0)) / total).astype(np.int64)
    return found


def _sigma(empty: F64) -> F64:
    """Sum x^(2^k) 2^(k-1) over k from 1 on, and x: the share of empty registers; infinite if all are empty."""
    power, factor, found = empty.copy(), 1.0, empty.copy()
    power[empty >= 1.0] = 0.0
    while True:
        power *= power
        before = found.copy()
        found += power * factor
        factor *= 2.0
        if (found == before).all():
            return np.where(empty >= 1.0, np.inf, found)


def _tau(rest: F64) -> F64:
    """Return the share of saturated registers."""
    root, factor, found = rest.copy(), 1.0, 1.0 - rest
    inside = (rest > 0.0) & (rest < 1.0)
    while True:
        root = np.sqrt(root)
        before = found.copy()
        factor *= 0.5
        found -= np.where(inside, (1.0 - root) ** 2 * factor, 0.0)
        if (found == before).all():
            return np.where(inside, found / 3.0, 0.0)
