"""Layout of a pane table: key columns and accumulators, as words of a cell and as columns of a segment.

A cell is a row of 64-bit words. Word 0 is the number of rows (doubled, plus the dirty bit); every accumulator has one
to three words, or 64. Made by `operators.windows.window_aggregate`, read by `PaneTable`, the segment writer and
restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.evolution import (
    DEFAULT,
    FIRST_VALUE_ID,
    LAST_ID,
    NULL,
    UNSAVED,
    AggregatePart,
    Evolution,
    aggregates_metadata,
    default_text,
)
from penstock.kernels.aggregates import accumulate, merge
from penstock.kernels.compiler.compile import F64, I64, U8
from penstock.state.log.segment_columns import LAST_ACCESS, segment_field, state_schema

Combine: TypeAlias = Literal["sum", "min", "max", "moments", "first", "last", "registers"]
#: Combines that keep a value by the time of its row.
TIMED = ("first", "last")
Dtype: TypeAlias = Literal["int64", "float64", "value"]

#: Column of the number of rows of a cell, in a segment.
ROWS = "__rows"
#: Number of words of the registers of `approx_count_distinct`.
_REGISTER_WORDS = 64
#: The numbers of an operation: of the merge kernel, and of the one-pass kernel, which does not have all of them.
_OPS: dict[tuple[str, str], tuple[int, int | None]] = {
    ("sum", "int64"): (merge.SUM_I, accumulate.SUM_I),
    ("min", "int64"): (merge.MIN_I, accumulate.MIN_I),
    ("max", "int64"): (merge.MAX_I, accumulate.MAX_I),
    ("sum", "float64"): (merge.SUM_F, accumulate.SUM_F),
    ("min", "float64"): (merge.MIN_F, accumulate.MIN_F),
    ("max", "float64"): (merge.MAX_F, accumulate.MAX_F),
    ("moments", "float64"): (merge.MOMENTS, None),
    ("first", "int64"): (merge.FIRST, None),
    ("first", "float64"): (merge.FIRST, None),
    ("last", "int64"): (merge.LAST, None),
    ("last", "float64"): (merge.LAST, None),
    ("registers", "int64"): (merge.REGISTERS, None),
    ("min", "value"): (merge.MIN_V, None),
    ("max", "value"): (merge.MAX_V, None),
    ("first", "value"): (merge.FIRST, None),
    ("last", "value"): (merge.LAST, None),
}


@dataclass(frozen=True, slots=True)
class AccumulatorSpec:
    """One accumulator; `moments` is (count, mean, squared deviations), `first`/`last` are (event time, value).

    `registers` are those of HyperLogLog, eight to a word (`operators.aggregates.aggregate_plan`). For `value` the word
    is an address in the table's `ValueHeap`.
    """

    name: str
    dtype: Dtype
    combine: Combine
    #: Arrow type of a value of any length.
    value: pa.DataType | None = None

    @property
    def op(self) -> int:
        """The merge kernel's number for (combine, dtype)."""
        return _OPS[self.combine, self.dtype][0]

    @property
    def row_op(self) -> int | None:
        """The one-pass kernel's number; None: it cannot add rows to the accumulator."""
        return _OPS[self.combine, self.dtype][1]

    @property
    def columns(self) -> tuple[tuple[str, Dtype], ...]:
        """The name and type of each word's column in a segment."""
        if self.combine == "moments":
            return ((f"{self.name}.count", "float64"), (f"{self.name}.mean", "float64"), (f"{self.name}.m2", "float64"))
        if self.combine == "registers":
            return tuple((f"{self.name}.{k:02}", "int64") for k in range(_REGISTER_WORDS))
        if self.combine in TIMED:
            return ((f"{self.name}.time", "int64"), (self.name, self.dtype))
        return ((self.name, self.dtype),)

    @property
    def initial(self) -> tuple[int | float, ...]:
        """The words of an empty accumulator."""
        if self.combine == "moments":
            return (0.0, 0.0, 0.0)
        if self.combine == "registers":
            return (0,) * _REGISTER_WORDS
        if self.combine == "first":
            return (MAX_TIMESTAMP, 0)
        if self.combine == "last":
            return (MIN_TIMESTAMP, 0)
        if self.dtype == "value":
            return (0,)
        if self.combine == "sum":
            return (0 if self.dtype == "int64" else 0.0,)
        if self.dtype == "int64":
            return (MAX_TIMESTAMP if self.combine == "min" else MIN_TIMESTAMP,)
        return (float("nan") if self.combine == "min" else float("-inf"),)


@dataclass(frozen=True, slots=True)
class AccumulatorInput:
    """A batch's values for one accumulator: int64 or float64 by its dtype; None counts the valid rows.

    `times` for first/last.
    """

    values: I64 | F64 | None
    bitmap: U8
    bit_offset: int = 0
    times: I64 | None = None


@dataclass(frozen=True)
class PaneTableSpec:
    """The key columns and accumulators of one table."""

    key_schema: pa.Schema
    accumulators: tuple[AccumulatorSpec, ...]
    #: Whether the table has no windows, but one pane that starts at 0 and never closes.
    single_pane: bool = False
    #: Whether the last word of a cell is the time of its last access.
    expires: bool = False
    #: Whether its aggregates may change between versions of a job; `parts` and `window` describe them then.
    evolves: bool = False
    parts: tuple[AggregatePart, ...] = ()
    window: str = ""
    #: What the columns of accumulators take over from a snapshot.
    evolution: Evolution = UNSAVED

    @cached_property
    def words(self) -> tuple[int, ...]:
        """The first word of each accumulator."""
        starts, at = [], 1
        for accumulator in self.accumulators:
            starts.append(at)
            at += len(accumulator.columns)
        return tuple(starts)

    @cached_property
    def width(self) -> int:
        """The number of words of a cell."""
        return 1 + sum(len(a.columns) for a in self.accumulators) + self.expires

    @cached_property
    def ops(self) -> I64:
        """(op, word) of each accumulator, as the merge kernel takes them."""
        pairs = [(a.op, w) for a, w in zip(self.accumulators, self.words, strict=True)]
        return np.array(pairs, np.int64).reshape(len(pairs), 2)

    @cached_property
    def initial(self) -> I64:
        """An empty cell."""
        cell = np.zeros(self.width, np.int64)
        for accumulator, word in zip(self.accumulators, self.words, strict=True):
            for k, (value, (_, dtype)) in enumerate(zip(accumulator.initial, accumulator.columns, strict=True)):
                kind = np.dtype(np.int64 if dtype == "value" else dtype)
                cell[word + k : word + k + 1].view(kind)[0] = value
        return cell

    @cached_property
    def in_one_pass(self) -> bool:
        """Whether the one-pass kernel can add rows to every accumulator."""
        return all(a.row_op is not None for a in self.accumulators)

    @cached_property
    def value_words(self) -> dict[int, pa.DataType]:
        """The words that are addresses of values, with their Arrow types."""
        return {
            word + len(a.columns) - 1: a.value
            for a, word in zip(self.accumulators, self.words, strict=True)
            if a.value is not None
        }

    @cached_property
    def exact(self) -> bool:
        """Whether the result is independent of the order in which rows and cells are added."""
        return not any(
            a.combine == "moments" or (a.combine == "sum" and a.dtype == "float64") for a in self.accumulators
        )

    @cached_property
    def timed(self) -> bool:
        """Whether the time of a row decides which value is kept."""
        return any(a.combine in TIMED for a in self.accumulators)

    def row_inputs(self, inputs: Sequence[AccumulatorInput | None]) -> I64:
        """Return a batch's inputs in the one-pass kernel's form: addresses, valid while the inputs exist."""
        rows: list[tuple[int | None, ...]] = []
        for accumulator, word, given in zip(self.accumulators, self.words, inputs, strict=True):
            if given is None:
                continue
            bitmap = address_of(given.bitmap) if len(given.bitmap) else 0
            if given.values is None:
                rows.append((accumulate.COUNT, word, 0, bitmap, given.bit_offset))
            else:
                rows.append((accumulator.row_op, word, address_of(given.values), bitmap, given.bit_offset))
        return np.array(rows, np.int64).reshape(len(rows), accumulate.INPUT_COLUMNS)

    @cached_property
    def value_columns(self) -> tuple[tuple[str, Dtype], ...]:
        """The name and type of every word's column, the number of rows first."""
        age: tuple[tuple[str, Dtype], ...] = ((LAST_ACCESS, "int64"),) if self.expires else ()
        return ((ROWS, "int64"), *(column for a in self.accumulators for column in a.columns), *age)

    @cached_property
    def value_types(self) -> tuple[pa.DataType, ...]:
        """The Arrow types of `value_columns`."""
        return tuple(
            self.value_words.get(word) or pa.type_for_alias(dtype) for word, (_, dtype) in enumerate(self.value_columns)
        )

    @cached_property
    def segment_schema(self) -> pa.Schema:
        """The columns of this state's Parquet files; field ids are in the metadata `id` and in Parquet's own."""
        columns = self.value_columns[: self.width - self.expires]
        ids = self.evolution.ids or range(FIRST_VALUE_ID, FIRST_VALUE_ID + len(columns))
        carried = self.evolution.carried or ({},) * len(columns)
        values = []
        for word, ((name, dtype), number, more) in enumerate(zip(columns, ids, carried, strict=True)):
            said = {**(self._evolution_metadata(word, dtype) if self.evolves else {}), **more}
            values.append(segment_field(name, self.value_types[word], number, nullable=dtype == "value", more=said))
        if self.expires:
            values.append(segment_field(LAST_ACCESS, pa.int64(), 6))
        last = str(max([self.evolution.last_id, *ids])).encode()
        metadata = {**aggregates_metadata(self.parts, self.window), LAST_ID: last} if self.evolves else None
        return state_schema(self.key_schema, values, metadata)

    def _evolution_metadata(self, word: int, dtype: Dtype) -> dict[bytes, bytes]:
        """Return the column's default (an empty accumulator), kept for later schema evolution."""
        if dtype == "value":
            return {NULL: b"1"}
        first = self.initial[word : word + 1].view(np.dtype(dtype))[0].item()
        return {DEFAULT: default_text(first, pa.type_for_alias(dtype))}


def address_of(array: I64 | F64 | U8) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])
