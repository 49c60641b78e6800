"""Reads the part of a table that replaces the beginning of a split, then continues with the split itself.

A task of a source uses it instead of the source's own reader. Rows come in the order of offsets, not of files: row
groups with overlapping offsets are sorted together. Every offset is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.backfill.table_files import TableFile, open_parquet, read_group
from penstock.backfill.table_plan import (
    Chunk,
    Offsets,
    TablePartition,
    missing_offsets_error,
    name_of,
    require_next,
    rows_of_partition,
)
from penstock.connector.sink import load_factory
from penstock.connector.source import PollResult, SourceBatch, SourceSpec, SourceSplit
from penstock.core.errors import ConnectorError
from penstock.core.schema import schema_from_text
from penstock.core.structs import prepare
from penstock.operators.rows.columns import conform

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from penstock.connector.source import SourceContext, SourceReader

FACTORY = "penstock.backfill.table_reader:TableFactory"


class TableConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `SourceSpec.config`: the same for all tasks of a source."""

    #: The beginning of messages about the table.
    where: str
    offsets: Offsets | None
    sparse: bool
    #: The job's own source.
    source: SourceSpec
    #: Setting of the job's own source for invalid times.
    on_bad_record: str


class TablePart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a table for one task: offsets from `low` to before `high` of a partition, or whole row groups."""

    place: TablePartition
    chunks: tuple[Chunk, ...]
    low: int = 0
    high: int = 0


prepare(TableConfig, TablePart)


def table_spec(config: TableConfig) -> SourceSpec:
    """Return the source that replaces the job's own."""
    return SourceSpec(factory=FACTORY, config=msgspec.to_builtins(config), schema=config.source.schema, bounded=True)


def table_split(split_id: str, part: TablePart, then: SourceSplit | None = None) -> SourceSplit:
    """Return the input of a task: a part of a table as the beginning of a split, `then` a part of the split."""
    state = {"table": msgspec.to_builtins(part), "then": None if then is None else msgspec.to_builtins(then)}
    return SourceSplit(id=split_id, state=state)


class TableFactory:
    """Creates readers; splits come from `histories`."""

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> TableReader:
        """Return a reader of one task."""
        return TableReader(msgspec.convert(spec.config, TableConfig), schema_from_text(spec.schema), context)


class TableReader:
    """Reads one part of a table, then the split that follows it."""

    def __init__(self, config: TableConfig, schema: pa.Schema, context: SourceContext) -> None:
        self._config, self._schema, self._context = config, schema, context
        self._rows: Iterator[pa.RecordBatch] = iter(())
        self._held = pa.RecordBatch.from_pylist([], schema=schema)
        self._behind: SourceReader | None = None

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Take the one split."""
        (self._split,) = splits
        part = msgspec.convert(self._split.state["table"], TablePart)
        self._rows = rows_of(part, self._schema, self._config)

    def poll(self, max_rows: int) -> PollResult:
        """Return the next rows: of the table, then of the split that follows it."""
        if self._behind is not None:
            return self._behind.poll(max_rows)
        if not self._held.num_rows:
            found = next(self._rows, None)
            if found is None:
                return self._poll_split()
            self._held = found
        rows, self._held = self._held.slice(0, max_rows), self._held.slice(max_rows)
        return PollResult((SourceBatch(rows, (self._split.id,)),))

    def _poll_split(self) -> PollResult:
        then = self._split.state["then"]
        if then is None:
            return PollResult(finished=(self._split.id,))
        spec = self._config.source
        reader: SourceReader = load_factory(spec.factory).create_reader(spec, self._context)
        self._behind = reader
        reader.add_splits((msgspec.convert(then, SourceSplit),))
        return PollResult()

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        """Do nothing: a task has a single split."""

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return the split unchanged: the driver decides where the live job continues."""
        return (self._split,)

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Do nothing: no outside system needs it."""

    def close(self) -> None:
        """Free all open resources."""
        if self._behind is not None:
            self._behind.close()


def rows_of(part: TablePart, schema: pa.Schema, config: TableConfig) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part in order: by offset, or without offsets by file and row group.

    Raises:
        UsageError: an offset is missing or repeated.
        ConnectorError: a file was changed or is damaged.
        ColumnError: values do not fit the schema.
    """
    files: dict[TableFile, pq.ParquetFile] = {}
    if config.offsets is None:
        for chunk in part.chunks:
            yield from _conform(_load(chunk, schema.names, files), schema, chunk)
        return
    names = [*schema.names, *(name for name in config.offsets.names if name not in schema.names)]
    where = f"{config.where}: partition {name_of(part.place)}"
    due = part.low
    for group in overlapping(part.chunks):
        found = [_within(_load(chunk, names, files), chunk, part, config.offsets) for chunk in group]
        rows = pa.concat_tables([table for table, _ in found], promote_options="permissive")
        offsets = np.concatenate([at for _, at in found])
        order = np.argsort(offsets, kind="stable")
        due = require_next(offsets[order], due, where, sparse=config.sparse)
        if len(offsets) > 1 and np.any(order[1:] < order[:-1]):
            rows = rows.take(pa.array(order))
        yield from _conform(rows, schema, group[0])
    if due != part.high and not config.sparse:
        raise missing_offsets_error(where, due, part.high)


def overlapping(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Yield row groups in the order of offsets, those with overlapping offsets together."""
    group: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda c: (c.first, c.last, c.file.uri, c.group)):
        if group and chunk.first > max(c.last for c in group):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _load(chunk: Chunk, names: Sequence[str], files: dict[TableFile, pq.ParquetFile]) -> pa.Table:
    if chunk.file not in files:
        files.clear()  # the next groups are seldom in the same files
        files[chunk.file] = open_parquet(chunk.file)
    return read_group(files[chunk.file], chunk.file, chunk.group, names)


def _within(table: pa.Table, chunk: Chunk, part: TablePart, offsets: Offsets) -> tuple[pa.Table, Any]:
    """Return the rows of one partition in the range, and their offsets."""
    mask, at = rows_of_partition(table, chunk.file, offsets, part.place)
    if len(at) != chunk.rows:
        msg = (
            f"{chunk.file.uri} has {len(at)} rows of {name_of(part.place)} in row group {chunk.group}, "
            f"expected {chunk.rows}"
        )
        raise ConnectorError(msg, hint="a table must not change while it is read: start the backfill again")
    inside = (at >= part.low) & (at < part.high)
    mask[mask] = inside
    return table.filter(pa.array(mask)), at[inside]


def _conform(table: pa.Table, schema: pa.Schema, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    for batch in table.select(schema.names).combine_chunks().to_batches():
        yield conform(batch, schema, f"{chunk.file.uri}: row group {chunk.group}")
