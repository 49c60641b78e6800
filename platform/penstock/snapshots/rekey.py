"""`penstock state rekey`: a snapshot written anew as a savepoint, with another key for the state of one operator.

The key's columns can be cast, renamed, computed from one another or left out; whatever else a row says stays. Rows that
would have one key are an error: which of them counts is not for a tool to say. All rows of the operator's states are in
memory at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import NotFoundError, UsageError
from penstock.core.keygroup import hash_range_of
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.graph.validate import near
from penstock.kernels.hashing import hash_columns
from penstock.kernels.key_types import is_key_type
from penstock.snapshots.content import field_id, identity_of
from penstock.snapshots.opening import Snapshot, open_target
from penstock.snapshots.reading import live_rows
from penstock.state.accumulators import FIRST_ENTRY, KEY_HASH, SEQ
from penstock.state.row_spec import TIMERS
from penstock.task.savepoint import SavepointWriter

if TYPE_CHECKING:
    from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot

_KEY_IDS = range(101, FIRST_ENTRY)


@dataclass(frozen=True, slots=True)
class _Rekeyed:
    """One state under its new key: rows sorted by hash."""

    schema: str
    rows: pa.Table
    hashes: np.ndarray


def rekey(snapshot: Snapshot, target_uri: str, *, uid: str, key: Sequence[str]) -> str:
    """Write the snapshot to `target_uri` with `key` for the states of `uid`; return the savepoint's URI.

    `key` has every column of the new key in its order: the `name` of an old one, or `name=expression`, SQL over the old
    key columns such as `user=CAST(user_id AS VARCHAR)`.

    Raises:
        NotFoundError: the snapshot has no keyed state of that uid.
        UsageError: an expression is wrong or gives no key, two rows would have one key, or the target is not empty.
        SnapshotDamagedError: a file is missing or damaged. StorageError: the target cannot be written.
    """
    manifest = snapshot.manifest
    held: dict[str, list[KeyedStateSnapshot]] = {}
    for part in manifest.subtasks:
        for state in part.keyed:
            if state.uid == uid:
                held.setdefault(state.state, []).append(state)
    if not held:
        known = {state.uid for part in manifest.subtasks for state in part.keyed}
        raise NotFoundError(f"the snapshot has no keyed state of uid {uid!r}", hint=near(uid, known))
    made = {name: _rekeyed(snapshot, parts, key) for name, parts in held.items()}
    target = open_target(target_uri)
    writer = SavepointWriter(snapshot.store, target)
    subtasks = []
    for part in manifest.subtasks:
        keyed = tuple(
            _cut(writer, manifest.subtasks, part, (state, made[state.state], manifest.key_groups))
            if state.uid == uid
            else writer.state(state)
            for state in part.keyed
        )
        outputs = tuple(writer.output(output) for output in part.committables)
        subtasks.append(msgspec.structs.replace(part, keyed=keyed, committables=outputs))
    writer.manifest(
        msgspec.structs.replace(
            manifest,
            kind="savepoint",
            subtasks=tuple(subtasks),
            pending=tuple(writer.output(output) for output in manifest.pending),
            note=target.uri,
            origin=manifest.origin or snapshot.store.uri,
        )
    )
    return target.uri


def _cut(
    writer: SavepointWriter,
    subtasks: Sequence[SubtaskSnapshot],
    part: SubtaskSnapshot,
    given: tuple[KeyedStateSnapshot, _Rekeyed, int],
) -> KeyedStateSnapshot:
    """Write the rows of a state that one subtask owns under the new key."""
    state, made, key_groups = given
    parallelism = sum(other.vertex_id == part.vertex_id for other in subtasks)
    owned = hash_range_of(part.subtask, parallelism, key_groups)
    first = int(np.searchsorted(made.hashes, owned.low, side="left"))
    stop = int(np.searchsorted(made.hashes, owned.high, side="right"))
    empty = msgspec.structs.replace(
        state, schema=made.schema, hash_low=owned.low, hash_high=owned.high, segments=(), tombstones=()
    )
    return writer.rows(empty, iter([made.rows.slice(first, stop - first)] if stop > first else []))


def _rekeyed(snapshot: Snapshot, parts: list[KeyedStateSnapshot], key: Sequence[str]) -> _Rekeyed:
    old, where = schema_from_text(parts[0].schema), f"rekey: {parts[0].uid}/{parts[0].state}"
    rows = pa.concat_tables([old.empty_table(), *live_rows(snapshot, tuple(parts))]).combine_chunks()
    keys = _keys(rows.select([field.name for field in old if field_id(field) in _KEY_IDS]), key, where)
    schema = _schema(old, keys, where)
    rest = [name for name in old.names if name != KEY_HASH and field_id(old.field(name)) not in _KEY_IDS]
    columns = dict(zip(schema.names[1 + len(keys.schema) :], (rows.column(name) for name in rest), strict=True))
    columns |= {name: keys.column(name) for name in keys.schema.names}
    hashes = hash_columns(_batch(keys), tuple(keys.schema.names))
    columns[KEY_HASH] = pa.chunked_array([pa.array(hashes)])
    table = pa.table([columns[name] for name in schema.names], schema=schema)
    table = _once(table, identity_of(schema), where, timers=parts[0].state.startswith(TIMERS))
    order = np.argsort(table.column(KEY_HASH).to_numpy(), kind="stable")
    table = table.take(pa.array(order))
    place = schema.get_field_index(SEQ)
    table = table.set_column(place, schema.field(place), pa.array(np.arange(table.num_rows)))
    return _Rekeyed(schema_to_text(schema), table, table.column(KEY_HASH).to_numpy())


def _batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches(max_chunksize=max(1, table.num_rows))
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _keys(old: pa.Table, key: Sequence[str], where: str) -> pa.Table:
    """Return the columns of the new key."""
    frame, columns = pl.from_arrow(old), {}
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - of a table
    for part in key:
        name, _, expression = (text.strip() for text in part.partition("="))
        if name in columns or not name:
            raise UsageError(
                f"{where}: the key names {name!r} twice or not at all", hint="give name or name=expression"
            )
        if not expression and name in old.column_names:
            columns[name] = old.column(name)
            continue
        try:
            found = frame.select(pl.sql_expr(expression or name).alias(name)).to_series()
        except (pl.exceptions.PolarsError, TypeError) as error:
            text = f"{where}: key column {part!r}: {str(error).splitlines()[0]}"
            raise UsageError(text, hint=f"the old key has: {', '.join(old.column_names)}") from error
        if len(found) != len(frame):
            raise UsageError(f"{where}: {part!r} is one value, not one a row", hint="use the old key's columns")
        columns[name] = pa.chunked_array([_plain(found.to_arrow())])
        if not is_key_type(columns[name].type):
            raise UsageError(f"{where}: {part!r} gives {columns[name].type}, which is no key", hint="cast it")
    if not columns:
        raise UsageError(f"{where}: no key is given", hint="give --key for each column of the new key")
    return pa.table(columns)


def _plain(array: pa.Array) -> pa.Array:
    """Return a column of Polars with the type that rows have."""
    if pt.is_large_string(array.type) or pt.is_string_view(array.type):
        return array.cast(pa.string())
    if pt.is_large_binary(array.type) or pt.is_binary_view(array.type):
        return array.cast(pa.binary())
    return array


def _schema(old: pa.Schema, keys: pa.Table, where: str) -> pa.Schema:
    """Return the columns of a segment under the new key."""
    before = [field.name for field in old if field_id(field) in _KEY_IDS]
    fields = [old.field(KEY_HASH)]
    for number, field in enumerate(keys.schema, start=_KEY_IDS.start):
        text = str(number).encode()
        fields.append(pa.field(field.name, field.type, True, {b"id": text, b"PARQUET:field_id": text}))
    for field in old:
        if field.name == KEY_HASH or field_id(field) in _KEY_IDS:
            continue
        plain = field.name.removesuffix("_")  # what a value is called that has the name of a key column
        free = plain != field.name and plain in before and plain not in keys.schema.names
        fields.append(field.with_name(plain) if free else field)
    taken = [field.name for field in fields]
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{where}: the state has a column {twice!r} already", hint="give the key column another name")
    return pa.schema(fields, old.metadata)


def _once(table: pa.Table, identity: Sequence[str], where: str, *, timers: bool) -> pa.Table:
    """Return the rows, each of a key of its own; a timer exists once anyway."""
    frame = pl.from_arrow(table.select(list(identity)))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - of a table
    if timers:
        first = frame.with_row_index("__place").unique(list(identity), keep="first")["__place"]
        return table.take(first.to_arrow())
    twice = frame.filter(frame.is_duplicated())
    if twice.height:
        example = ", ".join(f"{name}={value!r}" for name, value in twice.row(0, named=True).items())
        msg = f"{where}: {twice.height} rows have no key of their own any more, such as {example}"
        raise UsageError(msg, hint="keep what tells them apart in the key, or merge them: ps.snapshots.read and write")
    return table
