"""Packing of rows as bytes: the columns of one key's rows become one record for a cold store, and back.

A record is (number of rows), then a matrix of one line per row, then the bytes of each variable-length column. A line
has bits that say which columns are valid, and a word for each column (its canonical value; for strings and bytes the
length). The number is omitted if all columns have a fixed width. Only `state.spill.cold_records` uses it; it keeps no
state.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.kernels.keys import hash_index as kernels
from penstock.kernels.keys.key_columns import (
    BytesColumn,
    bytes_to_arrow,
    fixed_column,
    fixed_to_arrow,
    float_column,
    key_column,
)
from penstock.kernels.keys.key_types import is_fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import I64, U8

_WORD = 8
#: Validity bits in a word.
_BITS = 63


class RowPacker:
    """A packer of rows whose columns have these key types; dictionaries are returned plain."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        """Prepare for columns of `types`; without any, a record says only that a row exists."""
        self._types = tuple(t.value_type if pt.is_dictionary(t) else t for t in types)
        #: Words of a line before those of the columns.
        self._heads = max(1, -(-len(self._types) // _BITS))
        self._texts = [k for k, data_type in enumerate(self._types) if not is_fixed(data_type)]
        self._line = (self._heads + len(self._types)) * _WORD

    def pack(self, columns: Sequence[pa.Array], counts: I64) -> list[bytes]:
        """Return a record for each of `counts`, the number of its rows: at least one."""
        rows = int(counts.sum())
        lines = np.zeros((rows, self._line // _WORD), np.int64)
        texts: list[tuple[bytes, list[int]]] = []
        edges = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=edges[1:])
        for k, (array, data_type) in enumerate(zip(columns, self._types, strict=True)):
            if array.null_count:
                there = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
            else:
                there = np.ones(rows, np.int64)
            lines[:, k // _BITS] |= there << (k % _BITS)
            word = lines[:, self._heads + k]
            if is_fixed(data_type):
                plain = array.dictionary_decode() if pt.is_dictionary(array.type) else array
                floats = pt.is_floating(data_type)
                word[:] = float_column(plain).view(np.int64) if floats else fixed_column(plain).values
                continue
            data, starts = _compact(array)
            word[:] = np.diff(starts)
            texts.append((data.tobytes(), starts[edges].tolist()))
        flat, cuts = lines.tobytes(), (edges * self._line).tolist()
        records = [flat[a:b] for a, b in pairwise(cuts)]
        if not self._texts:
            return records
        heads = counts.astype(np.int64).tobytes()
        parts = [[heads[i : i + _WORD] for i in range(0, len(heads), _WORD)], records]
        parts += [[data[a:b] for a, b in pairwise(at)] for data, at in texts]
        return [b"".join(fields) for fields in zip(*parts, strict=True)]

    def unpack(self, records: Sequence[bytes]) -> tuple[I64, list[pa.Array]]:
        """Return the number of rows of each record, and the columns of all."""
        if not self._texts:
            lines = np.frombuffer(b"".join(records), np.int64).reshape(-1, self._line // _WORD)
            sizes = np.fromiter(map(len, records), np.int64, len(records))
            return sizes // self._line, self._arrays(lines, [])
        counts = np.frombuffer(b"".join([record[:_WORD] for record in records]), np.int64)
        stops = (_WORD + counts * self._line).tolist()
        flat = b"".join([record[_WORD:stop] for record, stop in zip(records, stops, strict=True)])
        lines = np.frombuffer(flat, np.int64).reshape(-1, self._line // _WORD)
        firsts = np.cumsum(counts) - counts
        texts = []
        for k in self._texts:
            sizes = np.add.reduceat(lines[:, self._heads + k], firsts)
            ends = (np.array(stops, np.int64) + sizes).tolist()
            texts.append(b"".join([r[a:b] for r, a, b in zip(records, stops, ends, strict=True)]))
            stops = ends
        return counts, self._arrays(lines, texts)

    def _arrays(self, lines: I64, texts: list[bytes]) -> list[pa.Array]:
        arrays, data = [], iter(texts)
        for k, data_type in enumerate(self._types):
            there = ((lines[:, k // _BITS] >> (k % _BITS)) & 1).astype(np.uint8)
            valid = None if there.all() else there
            words = np.ascontiguousarray(lines[:, self._heads + k])
            if is_fixed(data_type):
                arrays.append(fixed_to_arrow(words, valid, data_type))
                continue
            offsets = np.zeros(len(words) + 1, np.int64)
            np.cumsum(words, out=offsets[1:])
            arrays.append(bytes_to_arrow(np.frombuffer(next(data), np.uint8), offsets, valid, data_type))
        return arrays


def _compact(array: pa.Array) -> tuple[U8, I64]:
    """Return the bytes of all rows without gaps, and the offset of each; a null has none."""
    column = key_column(array)
    assert isinstance(column, BytesColumn)  # noqa: S101 - what is not fixed is bytes
    rows = np.arange(len(array), dtype=np.int32)
    data = np.empty(int(kernels.bytes_of_rows(column.offsets, rows)), np.uint8)
    starts = np.zeros(len(array) + 1, np.int64)
    valid = np.empty(len(array), np.uint8)
    source = (column.data, column.offsets, column.bitmap)
    kernels.append_bytes(source, column.bit_offset, rows, 0, (data, starts, valid))
    return data[: starts[-1]], starts
