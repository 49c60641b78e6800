"""The rows of one key of a live table, as columns of a segment, without changing anything: for questions from outside.

Used by the tables' `look_up`, which `penstock.task.questions` calls between two batches.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.state.key_index import KeyIndex
from penstock.state.pane_rows import rows_to_table
from penstock.state.panes import Rows
from penstock.state.segment_columns import DELETED, KEY_HASH, NAMESPACE, SEQ
from penstock.state.values import ValueHeap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kernels.columns import KeyColumns
    from penstock.kernels.compile import I64
    from penstock.state.cold import ColdPanes
    from penstock.state.entry_codec import EntryCodec
    from penstock.state.hot import HotPanes
    from penstock.state.row_spec import RowSpec

#: What a row says that no function has written.
_PLAIN = {KEY_HASH: 0, NAMESPACE: 0, DELETED: False}


def rows_of(schema: pa.Schema, given: Mapping[str, pa.Array], rows: int) -> pa.Table:
    """Return `rows` rows of a segment with the given columns; what is left out is null, or as of any live row."""
    columns = []
    for field in schema:
        if field.name in given:
            columns.append(given[field.name].cast(field.type))
        elif field.name == SEQ:
            columns.append(pa.array(np.arange(rows)))
        else:
            columns.append(pa.repeat(pa.scalar(_PLAIN.get(field.name), field.type), rows))
    return pa.Table.from_arrays(columns, schema=schema)


def alive_entries(container: Any, first: int, expired: Sequence[Any], most: int) -> list[tuple[Any, Any]]:
    """Return the first `most` elements of a list (by index, from `first` on) or entries of a map that have not expired.

    `expired` are map keys, of a list the places at its front.
    """
    if isinstance(container, list):
        return list(islice(enumerate(container, first), len(expired), len(expired) + most))
    dead = set(expired)
    return list(islice(((key, value) for key, value in container.items() if key not in dead), most))


def entry_rows(spec: RowSpec, codec: EntryCodec, key: list[pa.Array], found: list[tuple[Any, Any]]) -> pa.Table:
    """Return elements or entries of one key as rows of a segment."""
    if not found:
        return spec.segment_schema.empty_table()
    arrays = [
        *(array.take(pa.array([0] * len(found))) for array in key),
        *codec.encode_keys([name for name, _ in found]),
        *codec.encode_values([value for _, value in found]),
    ]
    names = [*spec.key_schema.names, *(field.name for field in spec.entries), *spec.value_names]
    return rows_of(spec.segment_schema, dict(zip(names, arrays, strict=True)), len(found))


def pane_rows(table: tuple[HotPanes, ColdPanes | None], keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
    """Return the rows of one key in the first `most` panes of a table: those in memory are newer than cold ones."""
    hot, cold = table
    found: dict[int, I64] = {}
    slots = hot.index.find(keys, hashes)
    for pane in hot.memory.panes if len(slots) else ():
        cell = int(hot.memory.find(slots, pane)[0])
        if cell >= 0 and hot.memory.cells[cell, 0]:
            found[pane] = hot.memory.cells[cell].copy()
    asked, heap = KeyIndex(hot.spec.key_schema), ValueHeap()
    asked.upsert(keys, hashes)
    for pane in [] if cold is None else cold.panes:
        if cold is not None and pane not in found:
            row = np.zeros((1, hot.spec.width), np.int64)
            cold.look_up(asked.view(), pane, row, heap)
            found[pane] = row[0]
    panes = sorted(pane for pane, words in found.items() if words[0] > 1)[:most]
    if not panes:
        return hot.spec.segment_schema.empty_table()
    cells = np.stack([found[pane] for pane in panes])
    return rows_to_table(hot.spec, asked.view(), Rows(np.zeros(len(panes), np.int32), np.array(panes, np.int64), cells))
