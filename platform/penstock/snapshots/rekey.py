"""`penstock state rekey`: a snapshot written anew as a savepoint, with another key for the state of one operator.

The key's columns can be cast, renamed, computed from one another or left out; whatever else a row says stays. Each old
key gets one new key, the same in all states of the operator; two that would become one are an error: what of which of
them counts is not for a tool to say. All rows of the operator's states are in memory at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from penstock.state.accumulators import KEY_HASH, KEY_IDS, SEQ
from penstock.state.row_spec import TIMERS
from penstock.task.savepoint import SavepointWriter

if TYPE_CHECKING:
    from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot

#: Value columns have field ids above it.
_LAST_FIXED_ID = 1000
#: A column of our own beside those of a key: where a key stands among all.
_PLACE = "__place"


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
        UsageError: an expression is wrong or gives no key, two keys would be one, or the target is not empty.
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
    made = _all_rekeyed(snapshot, held, key, f"rekey: {uid}")
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
    _require_all(subtasks, uid, made)
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


def _require_all(subtasks: Sequence[SubtaskSnapshot], uid: str, made: Mapping[str, _Rekeyed]) -> None:
    """Refuse to go on when a subtask whose hashes have rows now had no part of the state, and so got none."""
    for name, state in made.items():
        parts = [found for part in subtasks for found in part.keyed if (found.uid, found.state) == (uid, name)]
        written = sum(segment.rows for part in parts for segment in part.segments)
        if written != state.rows.num_rows:
            msg = f"rekey: {uid}/{name}: {state.rows.num_rows - written} rows belong to subtasks without that state"
            raise UsageError(msg, hint="`penstock state repartition` the snapshot first, then give it the new key")


def _all_rekeyed(
    snapshot: Snapshot, held: Mapping[str, list[KeyedStateSnapshot]], key: Sequence[str], where: str
) -> dict[str, _Rekeyed]:
    """Return every state of an operator under its new key."""
    rows, olds = {}, dict[str, pl.DataFrame]()
    for name, parts in held.items():
        old = schema_from_text(parts[0].schema)
        rows[name] = pa.concat_tables([old.empty_table(), *live_rows(snapshot, tuple(parts))]).combine_chunks()
        olds[name] = _frame(rows[name].select([field.name for field in old if field_id(field) in KEY_IDS]))
    names = next(iter(olds.values())).columns
    known = pl.concat(olds.values()).unique().sort(names, nulls_last=True)
    keys = _keys(known, key, where)
    places, numbered = {}, known.with_row_index(_PLACE)
    for name, frame in olds.items():
        found = frame.join(numbered, on=names, how="left", nulls_equal=True, maintain_order="left")
        places[name] = found[_PLACE].to_numpy()
    used = np.unique(
        np.concatenate(
            [np.empty(0, np.int64), *(found for name, found in places.items() if not name.startswith(TIMERS))]
        )
    )
    _require_apart(known, _frame(keys), used, where)
    return {
        name: _rekeyed(table, keys.take(pa.array(places[name])), f"{where}/{name}", timers=name.startswith(TIMERS))
        for name, table in rows.items()
    }


def _require_apart(known: pl.DataFrame, keys: pl.DataFrame, used: np.ndarray, where: str) -> None:
    """Refuse two old keys that have rows and would be one; timers alone do no harm, each exists once anyway."""
    old, new = known[used], keys[used]
    twice = new.is_duplicated()
    if twice.any():
        first = new.filter(twice).head(1)
        same = new.with_row_index(_PLACE).join(first, on=new.columns, nulls_equal=True)[_PLACE]
        olds = " and ".join(_shown(old[int(place)]) for place in same[:2])
        msg = f"{where}: {twice.sum()} keys have no key of their own any more, such as {_shown(first)} of {olds}"
        raise UsageError(msg, hint="keep what tells them apart in the key, or merge them: ps.snapshots.read and write")


def _shown(row: pl.DataFrame) -> str:
    return "(" + ", ".join(f"{name}={value!r}" for name, value in row.row(0, named=True).items()) + ")"


def _rekeyed(rows: pa.Table, keys: pa.Table, where: str, *, timers: bool) -> _Rekeyed:
    """Return the rows of one state with `keys`, one for each row, in place of theirs."""
    old = rows.schema
    schema = _schema(old, keys.schema, where)
    rest = [name for name in old.names if name != KEY_HASH and field_id(old.field(name)) not in KEY_IDS]
    columns = dict(zip(schema.names[1 + len(keys.schema) :], (rows.column(name) for name in rest), strict=True))
    columns |= {name: keys.column(name) for name in keys.schema.names}
    hashes = hash_columns(_batch(keys), tuple(keys.schema.names))
    columns[KEY_HASH] = pa.chunked_array([pa.array(hashes)])
    table = pa.table([columns[name] for name in schema.names], schema=schema)
    if timers:
        once = _frame(table.select(identity_of(schema))).with_row_index(_PLACE)
        table = table.take(once.unique(identity_of(schema), keep="first")[_PLACE].to_arrow())
    order = np.argsort(table.column(KEY_HASH).to_numpy(), kind="stable")
    table = table.take(pa.array(order))
    place = schema.get_field_index(SEQ)
    table = table.set_column(place, schema.field(place), pa.array(np.arange(table.num_rows)))
    return _Rekeyed(schema_to_text(schema), table, table.column(KEY_HASH).to_numpy())


def _frame(table: pa.Table) -> pl.DataFrame:
    found = pl.from_arrow(table)
    assert isinstance(found, pl.DataFrame)  # noqa: S101 - of a table
    return found


def _batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches(max_chunksize=max(1, table.num_rows))
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _keys(old: pl.DataFrame, key: Sequence[str], where: str) -> pa.Table:
    """Return the columns of the new keys, one for each of the old ones; a single value is that of all of them."""
    columns: dict[str, pa.ChunkedArray] = {}
    for part in key:
        name, _, expression = (text.strip() for text in part.partition("="))
        if name in columns or not name:
            raise UsageError(
                f"{where}: the key names {name!r} twice or not at all", hint="give name or name=expression"
            )
        try:
            # a column as it is may have a name that SQL does not take
            taken = pl.col(name) if not expression and name in old.columns else pl.sql_expr(expression or name)
            found = old.with_columns(taken.alias(name))[name]
        except (pl.exceptions.PolarsError, TypeError) as error:
            text = f"{where}: key column {part!r}: {str(error).splitlines()[0]}"
            raise UsageError(text, hint=f"the old key has: {', '.join(old.columns)}") from error
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


def _schema(old: pa.Schema, keys: pa.Schema, where: str) -> pa.Schema:
    """Return the columns of a segment under the new key; values make room for its names as `RowSpec.value_names`."""
    #: Names that a value could not have beside the old key: it got an underscore, and so what had that name already.
    hidden = {field.name for field in old if field_id(field) in KEY_IDS}
    fields, taken = [old.field(KEY_HASH)], set(keys.names)
    for number, field in enumerate(keys, start=KEY_IDS.start):
        text = str(number).encode()
        fields.append(pa.field(field.name, field.type, True, {b"id": text, b"PARQUET:field_id": text}))
    for field in old:
        if field.name == KEY_HASH or field_id(field) in KEY_IDS:
            continue
        name = field.name
        if name.endswith("_") and name[:-1] in hidden:
            hidden.add(name)
            name = name[:-1]
        while name in taken and field_id(field) > _LAST_FIXED_ID:
            name += "_"
        taken.add(name)
        fields.append(field.with_name(name))
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{where}: the state has a column {twice!r} already", hint="give the key column another name")
    return pa.schema(fields, old.metadata)
