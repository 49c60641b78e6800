"""The history that each source of a job reads in a backfill: its own, or a table and then its own.

The source takes over where the table ends: after the table's last offset of each partition, or at the user's cut-over.
Called by `run` before anything is read, and by `check --backfill`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.backfill.stages import SourceTask, is_splittable, source_tasks
from penstock.backfill.table_plan import WHOLE, Chunk, Offsets, Table, TablePartition, name_of, open_table
from penstock.backfill.table_reader import TableConfig, TablePart, table_spec, table_split
from penstock.connector.sink import load_factory
from penstock.connector.source import HistorySplit, SourceSpec, SourceSplit
from penstock.core.errors import UsageError, did_you_mean
from penstock.core.schema import schema_from_text
from penstock.graph.job_graph import JobGraph, JobVertex
from penstock.operators.sources.source_operator import bad_record_policy


class TableHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A table with the first part of a source's history."""

    #: Uid of the source.
    uid: str
    #: Folders or files.
    uris: tuple[str, ...]
    #: None: the table has no offsets, and a cut-over has to be given.
    offsets: Offsets | None = None
    #: Offsets may be missing in between.
    sparse: bool = False


class HistoryBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Begin and end of the history, as `connector.source.HistoryFactory` takes it.

    With several sources by `UID/SPLIT`.
    """

    until: dict[str, Any] = {}
    #: Positions where sources take over from their tables; empty: where the tables end.
    cut_over: dict[str, Any] = {}
    #: Approximate rows of one part, if a split may be read in parts.
    piece_rows: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The history of one source."""

    splits: tuple[HistorySplit, ...]
    pieces: tuple[SourceTask, ...]
    #: Split id -> its offsets that are read from the table: first, and one after the last.
    tables: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: The tables' URIs for a repetition; those of Iceberg with their snapshots.
    uris: tuple[str, ...] = ()


def histories(graph: JobGraph, bounds: HistoryBounds, tables: Sequence[TableHistory]) -> dict[str, History]:
    """Return the histories by vertex.

    Raises:
        UsageError: a source has no history or no such position; a table does not fit, or leaves a gap.
        ConnectorError: an outside system cannot be reached.
        StorageError: the store of a table cannot be reached.
    """
    sources = {vertex.operators[0].uid: vertex for vertex in graph.vertices if vertex.is_source}
    by_uid = {table.uid: table for table in tables}
    for uid in by_uid:
        if uid not in sources:
            raise UsageError(f"--history {uid}: the job has no source of that uid", hint=did_you_mean(uid, sources))
    if bounds.cut_over and not tables:
        raise UsageError("a cut-over needs a table with the earlier rows", hint="name it with --history UID=URI")
    found = {}
    for uid, vertex in sources.items():
        until, cut_over = _of_source(bounds.until, uid, sources), _of_source(bounds.cut_over, uid, sources)
        own = HistoryBounds(
            until=until, cut_over=cut_over, piece_rows=bounds.piece_rows if is_splittable(vertex) else None
        )
        found[vertex.id] = _Source(vertex).history(own, by_uid.get(uid))
    return found


def _of_source(bounds: dict[str, Any], uid: str, sources: Mapping[str, JobVertex]) -> dict[str, Any]:
    """Return the begin and end of one source; with several sources, positions are named `UID/SPLIT`."""
    if "positions" not in bounds or len(sources) == 1:
        return bounds
    for name in bounds["positions"]:
        if name.partition("/")[0] not in sources:
            msg = f"position of {name!r}: the job has {len(sources)} sources, and it names none of them"
            raise UsageError(msg, hint=f"write UID/SPLIT=POSITION with a UID of {', '.join(sources)}")
    return {
        "positions": {n.partition("/")[2]: at for n, at in bounds["positions"].items() if n.partition("/")[0] == uid}
    }


class _Source:
    """One source of the job."""

    def __init__(self, vertex: JobVertex) -> None:
        self.uid = vertex.operators[0].uid
        self.spec = msgspec.convert(vertex.operators[0].config["source"], SourceSpec)
        self.factory = load_factory(self.spec.factory)
        if not hasattr(self.factory, "history"):
            msg = f"source {self.uid!r} ({self.spec.factory.rpartition(':')[2]}) has no readable history"
            raise UsageError(msg, hint="backfills support Kafka, files and the generators")

    def history(self, bounds: HistoryBounds, declared: TableHistory | None) -> History:
        if declared is None:
            if "begin" in bounds.until:
                msg = f"source {self.uid!r} has no table, and so no cut-over as its end"
                raise UsageError(msg, hint="name one with --history UID=URI, or another --until")
            if bounds.cut_over.get("positions"):
                msg = f"source {self.uid!r} has no table, and so no cut-over"
                raise UsageError(msg, hint=f"name one with --history {self.uid}=URI, or remove its positions")
            splits = self.factory.history(self.spec, bounds.until, bounds.piece_rows)
            return History(splits, source_tasks(splits))
        where = f"table of source {self.uid!r}"
        table = open_table(where, declared.uris, schema_from_text(self.spec.schema), declared.offsets)
        if declared.offsets is None:
            return self._after_whole_table(table, bounds, declared)
        return self._after_offsets(table, bounds, declared)

    def _after_whole_table(self, table: Table, bounds: HistoryBounds, declared: TableHistory) -> History:
        """Stitch with a table without offsets: all of it comes first."""
        if not bounds.cut_over:
            way = f"name its columns with --offsets {self.uid}=PARTITION,OFFSET, or say where the topic takes over"
            raise UsageError(
                f"{table.where} has no offsets", hint=f"{way} with --cut-over SPLIT=POSITION,... or a time"
            )
        if bounds.piece_rows is None:
            msg = (
                f"{table.where} has no offsets, but operators after source {self.uid!r} need the rows of "
                "each split separately"
            )
            raise UsageError(msg, hint=f"name its columns with --offsets {self.uid}=PARTITION,OFFSET")
        splits: tuple[HistorySplit, ...] = self.factory.history(
            self.spec, bounds.until, bounds.piece_rows, bounds.cut_over
        )
        if not splits:
            raise UsageError(f"source {self.uid!r} has no split that continues where its table ends")
        for split in splits:
            if split.begin < split.start:
                msg = f"{split.rest.id!r} ends at {split.begin}, before the cut-over at {split.start}"
                way = f"all of {table.where} is read: set an end after the cut-over, or name columns with --offsets"
                raise UsageError(msg, hint=way)
        spec = self._table_spec(table, declared)
        parts = [TablePart(place=WHOLE, chunks=c) for c in _runs(table.chunks.get(WHOLE, []), bounds.piece_rows)]
        # the table's rows count for the first split, and do not affect the watermark of any
        first = [SourceTask(split=table_split(splits[0].rest.id, p), number=0, source=spec, quiet=True) for p in parts]
        return History(splits, (*first, *source_tasks(splits)), uris=table.uris)

    def _after_offsets(self, table: Table, bounds: HistoryBounds, declared: TableHistory) -> History:
        starts = {s.rest.id: s.start for s in self.factory.history(self.spec, {"begin": True}, None)}
        places = _places(table, list(starts))
        if not declared.sparse:
            for place in table.chunks:
                table.require_dense(place)
        ends = {split_id: max(c.last for c in table.chunks[place]) + 1 for split_id, place in places.items()}
        known = dict.fromkeys(starts, 0) | ends
        named = bounds.cut_over.get("positions", {})
        begin = bounds.cut_over if "timestamp" in bounds.cut_over else {"positions": {**known, **named}}
        splits: tuple[HistorySplit, ...] = self.factory.history(self.spec, bounds.until, bounds.piece_rows, begin)
        spec = self._table_spec(table, declared)
        pieces: list[SourceTask] = []
        read: dict[str, tuple[int, int]] = {}
        for number, split in enumerate(splits):
            split_id, end = split.rest.id, ends.get(split.rest.id, 0)
            if split.begin > end and not declared.sparse:
                msg = f"gap: {split_id!r} takes over at {split.begin}, but the {table.where} ends before offset {end}"
                raise UsageError(msg, hint=f"offsets {end} to {split.begin - 1} are in neither of them")
            parts = _parts(table, places.get(split_id), min(end, split.begin), bounds.piece_rows)
            low, start = parts[0].low if parts else split.begin, starts.get(split_id, 0)
            if low > start and not declared.sparse:
                msg = f"gap: offsets {start} to {low - 1} of {split_id!r}, where the job starts, are not in its table"
                way = (
                    f"add them, let the job start at {low}, or, if these offsets have no rows, pass --sparse {self.uid}"
                )
                raise UsageError(msg, hint=way)
            if parts:
                read[split_id] = parts[0].low, parts[-1].high
            pieces += _stitched(number, split, parts, spec, whole=bounds.piece_rows is None)
        return History(splits, tuple(pieces), read, table.uris)

    def _table_spec(self, table: Table, declared: TableHistory) -> SourceSpec:
        return table_spec(
            TableConfig(
                where=table.where,
                offsets=declared.offsets,
                sparse=declared.sparse,
                source=self.spec,
                on_bad_record=bad_record_policy(self.spec),
            )
        )


def _stitched(
    number: int, split: HistorySplit, parts: Sequence[TablePart], spec: SourceSpec, *, whole: bool
) -> list[SourceTask]:
    """Return the parts of one split; `whole`: as a single part, since watermarks or operators need all of it."""
    own = source_tasks((split,))
    behind = [msgspec.structs.replace(piece, number=number) for piece in own]
    split_id = split.rest.id
    if whole and parts:
        then: list[SourceSplit | None] = [piece.split for piece in behind if not piece.empty]
        return [SourceTask(split=table_split(split_id, parts[0], *then), number=number, source=spec)]
    return [*(SourceTask(split=table_split(split_id, part), number=number, source=spec) for part in parts), *behind]


def _parts(table: Table, place: TablePartition | None, end: int, piece_rows: int | None) -> list[TablePart]:
    """Return a partition's rows below an offset as parts of about `piece_rows` rows."""
    chunks = table.chunks[place] if place is not None else []
    low = min((c.first for c in chunks), default=end)
    if place is None or low >= end:
        return []
    found = []
    step = piece_rows or end - low
    for first in range(low, end, step):
        stop = min(first + step, end)
        own = tuple(c for c in chunks if c.first < stop and c.last >= first)
        found.append(TablePart(place=place, chunks=own, low=first, high=stop))
    return found


def _runs(chunks: Sequence[Chunk], rows: int) -> list[tuple[Chunk, ...]]:
    """Group row groups into runs of about `rows` rows."""
    found: list[list[Chunk]] = []
    held = rows
    for chunk in chunks:
        if held >= rows:
            found.append([])
            held = 0
        found[-1].append(chunk)
        held += chunk.rows
    return [tuple(run) for run in found]


def _places(table: Table, split_ids: Sequence[str]) -> dict[str, TablePartition]:
    """Return split id -> its partition in the table."""
    found = {}
    for place in table.chunks:
        topic, number = place
        fits = [s for s in split_ids if s == name_of(place) or (not topic and s.rpartition("-")[2] == str(number))]
        if not fits:
            msg = f"{table.where} has rows of partition {name_of(place)}, which the source does not have"
            raise UsageError(msg, hint=f"the source has {', '.join(split_ids)}")
        if len(fits) > 1:
            msg = f"{table.where} has no topic column, and partition {number} may be {' or '.join(fits)}"
            raise UsageError(msg, hint="name the topic column: --offsets UID=PARTITION,OFFSET,TOPIC")
        found[fits[0]] = place
    return found
