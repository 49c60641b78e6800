"""Adding rows to cells, in any array of cells: one loop per accumulator.

Called by `PaneTable` for its own cells, and by `state.cells.partials` for those of one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.aggregates import aggregate, merge
from penstock.kernels.aggregates import running_kernels as running
from penstock.state.cells.accumulators import TIMED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import F64, I64, U8
    from penstock.state.cells.accumulators import AccumulatorInput, AccumulatorSpec, PaneTableSpec
    from penstock.state.cells.pane_memory import PaneMemory

_NO_VALUES = np.zeros(0, np.int64)
_NOT_WANTED = np.zeros((0, 0), np.int64)
_SUMS = {
    ("sum", "int64"): aggregate.sum_i64,
    ("min", "int64"): aggregate.min_i64,
    ("max", "int64"): aggregate.max_i64,
    ("sum", "float64"): aggregate.sum_f64,
    ("min", "float64"): aggregate.min_f64,
    ("max", "float64"): aggregate.max_f64,
    ("moments", "float64"): aggregate.moments_f64,
}


def add_rows(
    spec: PaneTableSpec, cells: tuple[I64, F64], cell: I64, inputs: Sequence[AccumulatorInput | None]
) -> str | None:
    """Add row i to cell `cell[i]` (`cells` as integers and as floats); return the name of a sum that overflowed."""
    integers, floats = cells
    aggregate.add_rows(integers, cell)
    for accumulator, word, values in zip(spec.accumulators, spec.words, inputs, strict=True):
        if values is not None:
            table = floats if accumulator.dtype == "float64" and accumulator.combine not in TIMED else integers
            if _add(accumulator, table, word, cell, values):
                return accumulator.name
    return None


def run_input(
    spec: AccumulatorSpec, target: tuple[PaneMemory, I64], word: int, cell: I64, values: AccumulatorInput
) -> int:
    """Add one input and write the accumulator's words after each row; return the number of overflows."""
    memory, words = target
    bitmap, offset = values.bitmap, values.bit_offset
    if spec.combine in TIMED:
        column = (values.times, values.values, bitmap)
        return int(running.run_timed(memory.cells, (spec.op, word), cell, column, offset, words))
    if spec.combine == "registers":
        return int(aggregate.add_registers(memory.cells, word, cell, (values.values, bitmap), offset, words))
    if spec.dtype == "value":
        return int(merge.keep_extremes(memory.cells, (spec.op, word), cell, values.values, words))
    if values.values is None:
        at = (running.COUNT_VALID, word)
        return int(running.run_i64(memory.cells, at, cell, (_NO_VALUES, bitmap), offset, words))
    if spec.dtype == "int64":
        return int(running.run_i64(memory.cells, (spec.op, word), cell, (values.values, bitmap), offset, words))
    kernel = running.run_moments if spec.combine == "moments" else running.run_f64
    floats = words.view(np.float64)
    return int(kernel(memory.float_cells, (spec.op, word), cell, (values.values, bitmap), offset, floats))


def _add(spec: AccumulatorSpec, cells: I64 | F64, word: int, cell: I64, values: AccumulatorInput) -> int:
    """Add one input; return the number of additions that overflowed."""
    bitmap: U8 = values.bitmap
    if spec.combine in TIMED:
        kernel = aggregate.first_i64 if spec.combine == "first" else aggregate.last_i64
        return int(kernel(cells, word, cell, (values.times, values.values), bitmap, values.bit_offset))
    if spec.combine == "registers":
        hashed = (values.values, bitmap)
        return int(aggregate.add_registers(cells, word, cell, hashed, values.bit_offset, _NOT_WANTED))
    if spec.dtype == "value":
        return int(merge.keep_extremes(cells, (spec.op, word), cell, values.values, _NOT_WANTED))
    if values.values is None:
        aggregate.add_valid(cells, word, cell, bitmap, values.bit_offset)
        return 0
    return int(_SUMS[spec.combine, spec.dtype](cells, word, cell, values.values, bitmap, values.bit_offset))
