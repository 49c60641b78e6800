"""The content of a table by the footers of its files: column types, and the row groups of each partition.

Called by `histories` before anything runs. The columns of partition and offset are read only if a footer does not give
a row group's offsets, or the row group has several partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backfill.iceberg import IcebergSnapshot, open_iceberg
from penstock.backfill.table_files import (
    TableFile,
    files_of,
    open_parquet,
    partition_values,
    read_group,
    require_once,
)
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Topic (empty if there is no such column) and number of a partition.
TablePartition = tuple[str, int]
#: All rows of a table without offsets.
WHOLE: TablePartition = ("", -1)
_FAMILIES = (
    (pa.types.is_integer, "integer"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "text"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "bytes"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_decimal, "decimal"),
)


class Offsets(msgspec.Struct, frozen=True, kw_only=True):
    """The columns with a row's position in a topic."""

    partition: str
    offset: str
    #: Required if the source has several topics.
    topic: str = ""

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return [name for name in (self.partition, self.offset, self.topic) if name]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one partition in one row group; for a table without offsets, all its rows."""

    file: TableFile
    group: int
    rows: int
    #: Its smallest and its largest offset.
    first: int = 0
    last: int = -1


class Table:
    """A table whose files were examined."""

    def __init__(
        self, where: str, chunks: dict[TablePartition, list[Chunk]], offsets: Offsets | None, uris: tuple[str, ...]
    ) -> None:
        """Take `where`, the beginning of messages, and `uris`, which name the table again with snapshot ids."""
        self.where = where
        self.chunks = chunks
        self.offsets = offsets
        self.uris = uris

    def require_dense(self, place: TablePartition) -> None:
        """Refuse a partition with missing or repeated offsets between the first and the last.

        Raises:
            UsageError: names the first of them.
        """
        chunks = self.chunks[place]
        low, end = min(c.first for c in chunks), max(c.last for c in chunks) + 1
        if sum(chunk.rows for chunk in chunks) == end - low:
            return  # the tasks check each offset
        assert self.offsets is not None  # noqa: S101 - else there are no partitions
        found = [offsets_in(open_parquet(c.file), c.file, c.group, self.offsets).get(place) for c in chunks]
        offsets = np.sort(np.concatenate([part for part in found if part is not None]))
        require_next(offsets, low, f"{self.where}: partition {name_of(place)}", sparse=False)


def open_table(where: str, uris: Sequence[str], schema: pa.Schema, offsets: Offsets | None) -> Table:
    """Examine all files of a table.

    Raises:
        UsageError: there is none, or one does not have the columns of `schema` and `offsets`.
        ConnectorError: one cannot be read.
        StorageError: the store cannot be reached.
    """
    chunks: dict[TablePartition, list[Chunk]] = {}
    listed, named = _listed(uris)
    wanted = [*schema, *(pa.field(name, pa.int64(), nullable=False) for name in (offsets.names if offsets else ()))]
    for known, snapshot in listed:
        file, opened = known, open_parquet(known)
        if snapshot is not None:
            file = snapshot.fitted(f"{where}: {file.uri}", file, opened.schema_arrow, wanted)
        _require_columns(f"{where}: {file.uri}", opened.schema_arrow, partition_values(file), schema, offsets)
        for group in range(opened.metadata.num_row_groups):
            rows = opened.metadata.row_group(group).num_rows
            if not rows:
                continue
            if offsets is None:
                chunks.setdefault(WHOLE, []).append(Chunk(file=file, group=group, rows=rows))
                continue
            for place, first, last, count in _spans(opened, file, group, offsets):
                chunk = Chunk(file=file, group=group, rows=count, first=first, last=last)
                chunks.setdefault(place, []).append(chunk)
    return Table(where, chunks, offsets, named)


def _listed(uris: Sequence[str]) -> tuple[list[tuple[TableFile, IcebergSnapshot | None]], tuple[str, ...]]:
    """Return all files, each with its snapshot, and the names under which they are found again."""
    found: list[tuple[TableFile, IcebergSnapshot | None]] = []
    named = []
    for uri in uris:
        snapshot = open_iceberg(uri)
        found += [(file, snapshot) for file in (files_of(uri) if snapshot is None else snapshot.files)]
        named.append(uri if snapshot is None else snapshot.uri)
    require_once(file for file, _ in found)
    return found, tuple(named)


def name_of(place: TablePartition) -> str:
    """Return the name of a partition for messages."""
    topic, partition = place
    return f"{topic}-{partition}" if topic else str(partition)


def require_next(offsets: np.ndarray[Any, Any], due: int, where: str, *, sparse: bool) -> int:
    """Check that sorted offsets continue at `due`; return the next offset after them.

    Raises:
        UsageError: an offset is repeated, or, unless the table is `sparse`, missing.
    """
    if not len(offsets):
        return due
    steps = np.diff(offsets, prepend=due - 1)
    twice = np.flatnonzero(steps <= 0)
    if len(twice):
        msg = f"{where} has offset {int(offsets[twice[0]])} twice"
        raise UsageError(msg, hint="remove the rows that were archived twice from the table")
    if not sparse and (missing := np.flatnonzero(steps > 1)).size:
        behind = int(offsets[missing[0]])
        first = behind - int(steps[missing[0]]) + 1
        raise missing_offsets_error(where, first, behind)
    return int(offsets[-1]) + 1


def missing_offsets_error(where: str, first: int, end: int) -> UsageError:
    """Return the error about missing offsets from `first` to before `end`."""
    msg = f"{where} has a gap: offsets {first} to {end - 1} are missing"
    way = "if transactions, compaction or skipped records leave such gaps in the topic itself, pass --sparse UID"
    return UsageError(msg, hint=way)


def offsets_in(
    opened: pq.ParquetFile, file: TableFile, group: int, offsets: Offsets
) -> dict[TablePartition, np.ndarray[Any, Any]]:
    """Return the offsets of each partition in a row group, in the order of its rows.

    Raises:
        UsageError: a row has none.
    """
    table = read_group(opened, file, group, offsets.names)
    return {place: at[mask] for place, at, mask in _by_place(table, file, offsets)}


def rows_of_partition(table: pa.Table, file: TableFile, offsets: Offsets, place: TablePartition) -> Any:
    """Return (mask of the rows of one partition, their offsets) of a row group."""
    for found, at, mask in _by_place(table, file, offsets):
        if found == place:
            return mask, at[mask]
    return np.zeros(table.num_rows, bool), np.empty(0, np.int64)


def _by_place(table: pa.Table, file: TableFile, offsets: Offsets) -> Iterator[tuple[TablePartition, Any, Any]]:
    for name in offsets.names:
        if table.column(name).null_count:
            raise UsageError(f"{file.uri} has rows without {name!r}", hint="every row needs its position in the topic")
    numbers = table.column(offsets.partition).cast(pa.int64()).to_numpy()
    at = table.column(offsets.offset).cast(pa.int64()).to_numpy()
    topics = table.column(offsets.topic).cast(pa.string()) if offsets.topic else None
    for topic in sorted(pc.unique(topics).to_pylist()) if topics is not None else [""]:
        own = np.ones(len(at), bool) if topics is None else pc.equal(topics, topic).to_numpy(zero_copy_only=False)
        for number in np.unique(numbers[own]).tolist():
            yield (topic, number), at, own & (numbers == number)


def _spans(
    opened: pq.ParquetFile, file: TableFile, group: int, offsets: Offsets
) -> Iterator[tuple[TablePartition, int, int, int]]:
    """Yield (partition, first offset, last offset, rows) of a row group."""
    about, folder_values = opened.metadata.row_group(group), partition_values(file)
    partition, at = _bounds(about, offsets.partition, folder_values), _bounds(about, offsets.offset, folder_values)
    topic = _bounds(about, offsets.topic, folder_values) if offsets.topic else ("", "")
    if partition and at and topic and partition[0] == partition[1] and topic[0] == topic[1]:
        yield (str(topic[0]), int(partition[0])), int(at[0]), int(at[1]), about.num_rows
        return
    for place, found in offsets_in(opened, file, group, offsets).items():
        yield place, int(found.min()), int(found.max()), len(found)


def _bounds(about: Any, name: str, folder_values: dict[str, str | None]) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value of a row group's column; None if the footer is not exact."""
    for number in range(about.num_columns):
        column = about.column(number)
        if column.path_in_schema == name:
            stats = column.statistics
            exact = stats is not None and stats.has_min_max and stats.has_null_count and not stats.null_count
            return (stats.min, stats.max) if exact else None
    value = folder_values.get(name)
    return None if value is None else (value, value)


def _require_columns(
    where: str, found: pa.Schema, folder_values: dict[str, str | None], schema: pa.Schema, offsets: Offsets | None
) -> None:
    known = [*found.names, *(name for name in folder_values if name not in found.names)]
    for name in [*schema.names, *(offsets.names if offsets is not None else ())]:
        if name not in known:
            raise UsageError(f"{where} has no column {name!r}", hint=f"it has: {', '.join(known)}")
    for field in schema:
        if field.name in found.names and _family(found.field(field.name).type) != _family(field.type):
            msg = f"{where}: column {field.name!r} is {found.field(field.name).type}, but {field.type} in the source"
            raise UsageError(msg, hint="write the table with the columns of the source's schema")
    for name in (offsets.partition, offsets.offset) if offsets is not None else ():
        if name in found.names and not pa.types.is_integer(found.field(name).type):
            raise UsageError(f"{where}: column {name!r} is {found.field(name).type} instead of an integer")
        value = None if name in found.names else folder_values[name]
        if value is not None and not re.fullmatch("[0-9]{1,18}", value):
            raise UsageError(
                f"{where}: the folder {name}={value} has no number as its value", hint="is another column meant?"
            )


def _family(kind: pa.DataType) -> str:
    """Return a name shared by the types between which values can be cast without loss, or not at all."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    for belongs, name in _FAMILIES:
        if belongs(kind):
            return name
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_family(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_family(field.type)}' for field in kind)}>"
    return str(kind)
