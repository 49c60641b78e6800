"""The input of Spark's tasks that read state: hash ranges of one snapshot, or of two for change rows.

Planned in the driver from manifests and footers, read in tasks. `spark_entry` has the options.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.checkpoint.stores import open_store
from penstock.core.errors import NotFoundError, StateMismatchError, UsageError
from penstock.core.keygroup import ALL_HASHES, HashRange
from penstock.core.schema import schema_from_text
from penstock.graph.restore_plan import clip_keyed
from penstock.snapshots.access.content import StateContent, find_state, identity_of
from penstock.snapshots.access.opening import Snapshot, open_snapshot
from penstock.snapshots.access.pruning import (
    ALL_ROWS,
    Pruning,
    hashes_of,
    keys_within,
    pruning_of,
    rows_of_keys,
    rows_that_match,
)
from penstock.snapshots.access.reading import CHANGE, OPERATOR_STATE, changed_rows, columns_of, items_of, keys_of
from penstock.snapshots.rewrite.repartition import StateRange
from penstock.snapshots.rewrite.split_points import intersected, loads_of, ranges_by_size, ranges_of_hashes

if TYPE_CHECKING:
    from penstock.core.snapshot import KeyedStateSnapshot
    from penstock.kernels.compiler.compile import I64

#: The column of change rows with the sequence of the newer checkpoint.
CHECKPOINT = "__checkpoint"
_BATCH_ROWS = 65_536


@dataclass
class StatePart(InputPartition):
    """The input of one task: a hash range of one state, or the items of non-keyed state."""

    store_uri: str
    #: An encoded `StateRange`.
    rows: bytes = b""
    #: For change rows: the same range in the older checkpoint, encoded; and the sequence of the newer one.
    before: bytes = b""
    checkpoint: int = 0
    items: tuple[tuple[int, int, str], ...] = ()
    #: The only keys that are asked for.
    keys: pa.Table | None = None
    #: The condition that rows meet, as Polars serializes it.
    condition: bytes = b""

    def __init__(self, store_uri: str, **values: Any) -> None:
        """Take the fields as keywords."""
        super().__init__(None)
        self.store_uri = store_uri
        for name, value in values.items():
            setattr(self, name, value)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows, or change rows, with the columns of `schema`.

        Raises:
            SnapshotDamagedError: a file is missing or damaged.
        """
        condition = pl.Expr.deserialize(io.BytesIO(self.condition)) if self.condition else None
        names = schema.names if condition is None else [*schema.names, *condition.meta.root_names()]
        for table in self._tables(names):
            shown = table if self.keys is None else rows_of_keys(table, self.keys)
            shown = shown if condition is None else rows_that_match(shown, condition)
            shown = shown.select(schema.names).cast(schema).combine_chunks()
            yield from shown.to_batches(max_chunksize=_BATCH_ROWS)

    def _tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        if self.items:
            rows = [dict(zip(OPERATOR_STATE.names, item, strict=True)) for item in self.items]
            yield pa.Table.from_pylist(rows, schema=OPERATOR_STATE)
        elif self.before:
            yield self._changes(names)
        elif self.rows:
            yield from _decoded(self.rows).rows(open_store(self.store_uri), names, self._hashes)

    @property
    def _hashes(self) -> I64 | None:
        return None if self.keys is None else hashes_of(self.keys)

    def _changes(self, names: Sequence[str]) -> pa.Table:
        store = open_store(self.store_uri)
        after = _decoded(self.rows)
        schema = schema_from_text(after.held[0].schema)
        identity = identity_of(schema)
        wanted = [name for name in schema.names if name in identity or name in names]
        new, old = (
            pl.DataFrame(
                pl.from_arrow(pa.concat_tables([_empty(schema, wanted), *_selected(part, store, wanted, self._hashes)]))
            )
            for part in (after, _decoded(self.before))
        )
        found = changed_rows(old, new, identity).to_arrow()
        marks = pa.array(np.full(found.num_rows, self.checkpoint, np.int64))
        return found.append_column(CHECKPOINT, marks)


def _decoded(part: bytes) -> StateRange:
    return msgspec.msgpack.decode(part, type=StateRange)


def _empty(schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    return pa.schema([schema.field(name) for name in names]).empty_table()


def _selected(part: StateRange, store: Any, names: Sequence[str], hashes: I64 | None) -> Iterator[pa.Table]:
    for table in part.rows(store, names, hashes):
        yield table.select(names).replace_schema_metadata(None)


def with_changes(schema: pa.Schema) -> pa.Schema:
    """Return the columns of change rows."""
    return schema.append(pa.field(CHANGE, pa.string())).append(pa.field(CHECKPOINT, pa.int64()))


@dataclass(frozen=True)
class StatePlan:
    """One state of a snapshot, and what is asked of it."""

    snapshot: Snapshot
    state: StateContent
    #: The hash ranges that are asked for, without overlaps.
    asked: tuple[HashRange, ...] = (ALL_HASHES,)
    #: Bytes of files for one task.
    size: int = 128 << 20
    #: The only keys and namespaces that are asked for.
    pruning: Pruning = ALL_ROWS
    #: The condition that rows meet, as Polars serializes it.
    condition: bytes = b""

    def columns(self, *, with_hash: bool) -> pa.Schema:
        """Return the columns of the rows."""
        return columns_of(self.state, with_hash=with_hash)

    @property
    def keys(self) -> pa.Schema:
        """Return the columns of the key; none if the state is not keyed."""
        return keys_of(self.state)

    def of_keys(self, keys: pa.Table) -> StatePlan:
        """Return the plan for some keys: only row groups with their hashes are read.

        Raises:
            UsageError: the state is not keyed.
        """
        if not keys.column_names:
            raise UsageError(f"{self.state.uid!r} is not keyed", hint="leave keys out")
        return replace(self, pruning=self.pruning.both(Pruning(keys)))

    def where(self, condition: pl.Expr) -> StatePlan:
        """Return the plan for rows that meet a condition, whose keys and namespaces choose what is read."""
        pruning = self.pruning.both(pruning_of(condition, self.keys))
        return replace(self, pruning=pruning, condition=condition.meta.serialize())

    def parts(self) -> list[StatePart]:
        """Return the tasks that read the live rows."""
        if self.state.kind == "operator":
            return [self._part(items=tuple(items_of(self.state)))]
        found: list[StatePart] = []
        for held in sorted(self.pruning.segments(self.state.keyed), key=lambda held: held.hash_low):
            own = HashRange(held.hash_low, held.hash_high)
            for within in intersected([own], self.asked) if held.segments else ():
                found += [self._part(r, rows=_range_of((held,), r)) for r in self._ranges([held], within)]
        return found

    def _ranges(self, held: Sequence[KeyedStateSnapshot], within: HashRange) -> list[HashRange]:
        """Return the hash range of each task."""
        loads, hashes = loads_of(held), self.pruning.hashes
        if hashes is None:
            return ranges_by_size(loads, within, self.size)
        return ranges_of_hashes(loads, within, hashes, self.size)

    def _part(self, within: HashRange = ALL_HASHES, **values: Any) -> StatePart:
        keys = self.pruning.keys
        mine = None if keys is None else keys_within(keys, within)
        return StatePart(self.snapshot.store.uri, keys=mine, condition=self.condition, **values)

    def changes_since(self, sequence: int) -> list[StatePart]:
        """Return the tasks that compare the state with that of an older checkpoint; 0: all rows are new.

        Hash ranges with the same files in both have no task.

        Raises:
            UsageError: the state is not keyed, or the checkpoint is no longer there.
            StateMismatchError: it had another key.
        """
        if self.state.kind == "operator":
            raise UsageError(f"{self.state.uid!r} is not keyed: it has no change rows", hint="read it without since")
        old, new = (self.pruning.segments(parts) for parts in (self._before(sequence), self.state.keyed))
        found = []
        for within in self.asked:
            for r in self._ranges([*old, *new], within):
                after, before = _near(new, r), _near(old, r)
                if after != before:
                    here = _range_of(after or (_nothing(new[0]),), r)
                    there = _range_of(before or (_nothing(new[0]),), r)
                    place = self.snapshot.manifest.sequence
                    found.append(self._part(r, rows=here, before=there, checkpoint=place))
        return found

    def _before(self, sequence: int) -> tuple[KeyedStateSnapshot, ...]:
        """Return the parts of an older checkpoint, to be read with the present columns."""
        if not sequence:
            return ()
        try:
            older = open_snapshot(self.snapshot.store.uri, checkpoint=sequence)
        except NotFoundError as error:
            msg = f"changes since checkpoint {sequence} cannot be read: {error.message}"
            raise UsageError(
                msg, hint="retain more checkpoints (retained_checkpoints), or start again from all rows"
            ) from error
        try:
            found = find_state(older.manifest, self.state.uid, self.state.name)
        except NotFoundError:
            return ()
        new = self.state.keyed[0].schema
        keys = [[(f.name, f.type) for f in StatePlan(older, content).keys] for content in (found, self.state)]
        if keys[0] != keys[1]:
            msg = f"{self.state.uid!r} has another key since checkpoint {sequence}"
            raise StateMismatchError(msg, hint="read its changes since a later checkpoint")
        return tuple(msgspec.structs.replace(part, schema=new) for part in found.keyed)


def _near(parts: Sequence[KeyedStateSnapshot], within: HashRange) -> tuple[KeyedStateSnapshot, ...]:
    clips = (clip_keyed(part, within) for part in sorted(parts, key=lambda part: part.hash_low))
    return tuple(clip for clip in clips if clip is not None and clip.segments)


def _nothing(part: KeyedStateSnapshot) -> KeyedStateSnapshot:
    return msgspec.structs.replace(part, segments=(), tombstones=())


def _range_of(held: tuple[KeyedStateSnapshot, ...], within: HashRange) -> bytes:
    return msgspec.msgpack.encode(StateRange(number=0, held=held, low=within.low, high=within.high))
