"""What a pane table stores.

The key's schema and a list of accumulators, and how both look as words and as columns of a segment.

A cell is a row of 64-bit words. Word 0 is the number of rows (doubled, plus the dirty bit); every accumulator has one
to three words. Made by `operators.window`, read by `PaneTable`, the segment writer and restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.kernels import accumulate, merge
from penstock.kernels.compile import F64, I64, U8

Combine: TypeAlias = Literal["sum", "min", "max", "moments", "first", "last"]

KEY_HASH, NAMESPACE, DELETED, SEQ, ROWS = "__key_hash", "__namespace", "__deleted", "__seq", "__rows"
#: Tells rows of one key and time apart, where a state holds several.
ROW = "__row"
#: Microseconds since the epoch, in states with a time-to-live.
LAST_ACCESS = "__ttl"
#: Field ids from here to 1000 are columns that tell the rows of one key and namespace apart.
FIRST_ENTRY = 501
_OPS: dict[tuple[str, str], int] = {
    ("sum", "int64"): merge.SUM_I,
    ("min", "int64"): merge.MIN_I,
    ("max", "int64"): merge.MAX_I,
    ("sum", "float64"): merge.SUM_F,
    ("min", "float64"): merge.MIN_F,
    ("max", "float64"): merge.MAX_F,
    ("moments", "float64"): merge.MOMENTS,
    ("first", "int64"): merge.FIRST,
    ("first", "float64"): merge.FIRST,
    ("last", "int64"): merge.LAST,
    ("last", "float64"): merge.LAST,
}
#: What the one-pass kernel does with a row; the others (moments, first, last) are none of its business.
_ROW_OPS: dict[tuple[str, str], int] = {
    ("sum", "int64"): accumulate.SUM_I,
    ("min", "int64"): accumulate.MIN_I,
    ("max", "int64"): accumulate.MAX_I,
    ("sum", "float64"): accumulate.SUM_F,
    ("min", "float64"): accumulate.MIN_F,
    ("max", "float64"): accumulate.MAX_F,
}


@dataclass(frozen=True, slots=True)
class AccumulatorSpec:
    """One accumulator; `moments` is (count, mean, squared deviations), `first`/`last` are (event time, value)."""

    name: str
    dtype: Literal["int64", "float64"]
    combine: Combine

    @property
    def op(self) -> int:
        """The kernel's number of (combine, dtype)."""
        return _OPS[self.combine, self.dtype]

    @property
    def columns(self) -> tuple[tuple[str, Literal["int64", "float64"]], ...]:
        """Name and type of each word's column in a segment."""
        if self.combine == "moments":
            return ((f"{self.name}.count", "float64"), (f"{self.name}.mean", "float64"), (f"{self.name}.m2", "float64"))
        if self.combine in ("first", "last"):
            return ((f"{self.name}.time", "int64"), (self.name, self.dtype))
        return ((self.name, self.dtype),)

    @property
    def initial(self) -> tuple[int | float, ...]:
        """The words of an accumulator that saw nothing."""
        if self.combine == "moments":
            return (0.0, 0.0, 0.0)
        if self.combine == "first":
            return (MAX_TIMESTAMP, 0)
        if self.combine == "last":
            return (MIN_TIMESTAMP, 0)
        if self.combine == "sum":
            return (0 if self.dtype == "int64" else 0.0,)
        if self.dtype == "int64":
            return (MAX_TIMESTAMP if self.combine == "min" else MIN_TIMESTAMP,)
        return (float("nan") if self.combine == "min" else float("-inf"),)


@dataclass(frozen=True, slots=True)
class AccumulatorInput:
    """A batch's values for one accumulator: int64 or float64 by its dtype, None counts the valid rows.

    `times` for first/last.
    """

    values: I64 | F64 | None
    bitmap: U8
    bit_offset: int = 0
    times: I64 | None = None


@dataclass(frozen=True)
class PaneTableSpec:
    """Key columns and accumulators of one table."""

    key_schema: pa.Schema
    accumulators: tuple[AccumulatorSpec, ...]
    #: Without windows: one pane, which starts at 0 and never closes.
    single_pane: bool = False

    @cached_property
    def words(self) -> tuple[int, ...]:
        """First word of each accumulator."""
        starts, at = [], 1
        for accumulator in self.accumulators:
            starts.append(at)
            at += len(accumulator.columns)
        return tuple(starts)

    @cached_property
    def width(self) -> int:
        """Words of a cell."""
        return 1 + sum(len(a.columns) for a in self.accumulators)

    @cached_property
    def ops(self) -> I64:
        """(op, word) of each accumulator, as the merge kernel takes them."""
        pairs = [(a.op, w) for a, w in zip(self.accumulators, self.words, strict=True)]
        return np.array(pairs, np.int64).reshape(len(pairs), 2)

    @cached_property
    def initial(self) -> I64:
        """A cell that saw nothing."""
        cell = np.zeros(self.width, np.int64)
        for accumulator, word in zip(self.accumulators, self.words, strict=True):
            for k, (value, (_, dtype)) in enumerate(zip(accumulator.initial, accumulator.columns, strict=True)):
                cell[word + k : word + k + 1].view(np.dtype(dtype))[0] = value
        return cell

    @cached_property
    def in_one_pass(self) -> bool:
        """Whether the one-pass kernel can add rows to every accumulator."""
        return all((a.combine, a.dtype) in _ROW_OPS for a in self.accumulators)

    @cached_property
    def exact(self) -> bool:
        """Whether the order in which rows and cells are added makes no difference."""
        return not any(
            a.combine == "moments" or (a.combine == "sum" and a.dtype == "float64") for a in self.accumulators
        )

    def row_inputs(self, inputs: Sequence[AccumulatorInput | None]) -> I64:
        """Return a batch's inputs as the one-pass kernel takes them: addresses, valid as long as the inputs live."""
        rows = []
        for accumulator, word, given in zip(self.accumulators, self.words, inputs, strict=True):
            if given is None:
                continue
            bitmap = address_of(given.bitmap) if len(given.bitmap) else 0
            if given.values is None:
                rows.append((accumulate.COUNT, word, 0, bitmap, given.bit_offset))
            else:
                op = _ROW_OPS[accumulator.combine, accumulator.dtype]
                rows.append((op, word, address_of(given.values), bitmap, given.bit_offset))
        return np.array(rows, np.int64).reshape(len(rows), accumulate.INPUT_COLUMNS)

    @cached_property
    def value_columns(self) -> tuple[tuple[str, Literal["int64", "float64"]], ...]:
        """Name and type of every word's column, the number of rows first."""
        return ((ROWS, "int64"), *(column for a in self.accumulators for column in a.columns))

    @cached_property
    def segment_schema(self) -> pa.Schema:
        """Columns of this state's Parquet files, field ids in the metadata `id` (and where Parquet wants them)."""
        fixed = [(KEY_HASH, pa.int64(), 1), (NAMESPACE, pa.int64(), 2)]
        tail = [(DELETED, pa.bool_(), 3), (SEQ, pa.int64(), 4)]
        values = [(name, pa.type_for_alias(dtype), 1001 + i) for i, (name, dtype) in enumerate(self.value_columns)]
        keys = [_field(f.name, f.type, 101 + i, nullable=True) for i, f in enumerate(self.key_schema)]
        return pa.schema(
            [_field(*fixed[0]), *keys, _field(*fixed[1]), *(_field(*v) for v in values), *(_field(*t) for t in tail)]
        )


def address_of(array: I64 | F64 | U8) -> int:
    """Return where an array's first element lies."""
    return int(array.__array_interface__["data"][0])


def _field(name: str, data_type: pa.DataType, number: int, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, data_type, nullable, {"id": str(number), "PARQUET:field_id": str(number)})
