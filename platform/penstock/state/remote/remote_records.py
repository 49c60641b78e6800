"""The rows of one state in its log, as records by key: what remote keys fetch of each state.

What a record holds is the state's own: the columns of its rows (values, lists, maps), or cells (sessions). Used by
`state.remote.remote_keys`; `merged` and `packed` in any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.evolution import conform
from penstock.kernels.keys.key_columns import key_column, key_columns
from penstock.state.keys.hash_ranges import inside
from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import KEY_HASH
from penstock.state.log.segments import newest_rows
from penstock.state.remote.remote_log import RemoteLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.remote.remote_log import Reader
    from penstock.state.spill.cold_records import ColdRecords, PackedRows


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How rows of a segment become records."""

    key_schema: pa.Schema
    #: The columns of a record of those of a segment.
    columns: Callable[[pa.RecordBatch], list[pa.Array]]
    records: ColdRecords
    #: The column that orders the rows of a key, if their order counts.
    ordered_by: str = ""


class RemoteRecords:
    """One state whose records are fetched."""

    def __init__(
        self,
        source: FrozenSource,
        reader: Reader,
        frozen: Callable[[int, Sequence[HashRange]], Iterable[pa.Table]],
        form: RecordForm,
    ) -> None:
        """`frozen` returns the rows frozen at a position in some ranges, while they are not durable."""
        source.remote = True
        self.source = source
        self.log = RemoteLog(source, reader)
        self.records = form.records
        self._frozen = frozen
        self._form = form

    def rows(self, ranges: Sequence[HashRange]) -> pa.Table:
        """Return the rows that the log means in some ranges as of now."""
        tables, saved = list[pa.Table](), iter(self.log.tables(ranges))
        for entry in self.source.log.entries:
            tables += self._frozen(entry.position, ranges) if entry.segment is None else next(saved)
        return self.merged(tables)

    def merged(self, tables: Iterable[pa.Table]) -> pa.Table:
        """Return the rows that count, sorted by hash; any thread."""
        schema = self.source.spec.segment_schema
        every = [conform(table, schema) for table in tables if table.num_rows]
        if not every:
            return schema.empty_table()
        return newest_rows(pa.concat_tables(every), schema, keep_deleted=False)

    def packed(self, rows: pa.Table, known: tuple[KeyView, np.ndarray] | None) -> PackedRows | None:
        """Return merged rows as records of their keys, without those of keys in memory; any thread."""
        if rows.num_rows == 0:
            return None
        batch = rows.combine_chunks().to_batches(max_chunksize=rows.num_rows)[0]
        form = self._form
        index = KeyIndex(form.key_schema)
        hashes = batch.column(KEY_HASH).to_numpy()
        slots = index.upsert(key_columns(batch, tuple(form.key_schema.names)), hashes).copy()
        wanted = np.ones(index.count, np.bool_)
        if known is not None and len(known[1]):
            wanted[_found(index, *known)] = False
        if form.ordered_by:
            order = np.lexsort((batch.column(form.ordered_by).to_numpy(), slots))
        else:
            order = np.argsort(slots, kind="stable")
        order = order[wanted[slots[order]]]
        if len(order) == 0:
            return None
        columns = [column.take(pa.array(order)) for column in form.columns(batch)]
        counts = np.bincount(slots[order], minlength=index.count)
        kept = np.flatnonzero(counts).astype(np.int32)
        return self.records.packed(index.view(), kept, counts[kept], columns)

    def pieces(self, ranges: Iterable[HashRange]) -> Iterator[pa.RecordBatch]:
        """Yield all rows that the log means, those of one range after the other."""
        for part in ranges:
            rows = self.rows([part])
            if rows.num_rows:
                yield rows.combine_chunks().to_batches(max_chunksize=rows.num_rows)[0]

    def keys(self, ranges: Iterable[HashRange]) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the keys of these rows, one for each row, and their hashes."""
        names = tuple(self._form.key_schema.names)
        for batch in self.pieces(ranges):
            yield key_columns(batch, names), batch.column(KEY_HASH).to_numpy()


def in_memory(view: KeyView, count: int, ranges: Sequence[HashRange]) -> tuple[KeyView, np.ndarray]:
    """Return the first `count` keys as far as they lie in some ranges."""
    return view, np.flatnonzero(inside(view.hashes[:count], ranges)).astype(np.int32)


def _found(index: KeyIndex, keys: KeyView, slots: np.ndarray) -> np.ndarray:
    """Return the slots of an index that have one of some keys of another."""
    count = index.count
    arrays = keys.gather(slots)
    columns = tuple(key_column(array, name) for array, name in zip(arrays, keys.schema.names, strict=True))
    found = index.upsert(columns, keys.hashes[slots])
    return found[found < count]
