"""The rows of one state in its log as records by key, which remote keys fetch for each state.

The state decides what a record contains: the columns of its rows (values, lists, maps), or cells (sessions). Used by
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
    """The conversion of a segment's rows to records."""

    key_schema: pa.Schema
    #: Selects the columns of a record from those of a segment.
    columns: Callable[[pa.RecordBatch], list[pa.Array]]
    records: ColdRecords
    #: The column by which the rows of a key are sorted, if their order matters.
    ordered_by: str = ""


class RemoteRecords:
    """One state with fetched records."""

    def __init__(
        self,
        source: FrozenSource,
        reader: Reader,
        frozen: Callable[[int, Sequence[HashRange]], Iterable[pa.Table]],
        form: RecordForm,
    ) -> None:
        """Read the log of `source`; `frozen` returns rows of segments in some ranges until they are durable."""
        source.remote = True
        self.source = source
        self.log = RemoteLog(source, reader)
        self.records = form.records
        self._frozen = frozen
        self._form = form

    def rows(self, ranges: Sequence[HashRange]) -> pa.Table:
        """Return the current rows of the log in some hash ranges."""
        tables, saved = list[pa.Table](), iter(self.log.tables(ranges))
        for entry in self.source.log.entries:
            tables += self._frozen(entry.position, ranges) if entry.segment is None else next(saved)
        return self.merged(tables)

    def merged(self, tables: Iterable[pa.Table]) -> pa.Table:
        """Return the newest rows, sorted by hash; any thread."""
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
        """Yield the current rows of the log, one hash range after the other."""
        for part in ranges:
            rows = self.rows([part])
            if rows.num_rows:
                yield rows.combine_chunks().to_batches(max_chunksize=rows.num_rows)[0]

    def keys(self, ranges: Iterable[HashRange]) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the key of each of these rows, and its hash."""
        names = tuple(self._form.key_schema.names)
        for batch in self.pieces(ranges):
            yield key_columns(batch, names), batch.column(KEY_HASH).to_numpy()


def in_memory(view: KeyView, count: int, ranges: Sequence[HashRange]) -> tuple[KeyView, np.ndarray]:
    """Return the view and the slots of the first `count` keys that are in some hash ranges."""
    return view, np.flatnonzero(inside(view.hashes[:count], ranges)).astype(np.int32)


def _found(index: KeyIndex, keys: KeyView, slots: np.ndarray) -> np.ndarray:
    """Return the slots of an index whose keys are among some keys of another."""
    count = index.count
    arrays = keys.gather(slots)
    columns = tuple(key_column(array, name) for array, name in zip(arrays, keys.schema.names, strict=True))
    found = index.upsert(columns, keys.hashes[slots])
    return found[found < count]
