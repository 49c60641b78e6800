"""`penstock state rekey`: rewrites a snapshot as a savepoint with another key for the state of one operator.

Each old key gets one new key, the same in all states of the operator. Two old keys with one new key are an error.
The local engine holds all rows in memory; Spark (`on_spark.spark_rewrite`) shuffles them by their new hashes. Both
write the same files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import NotFoundError, UsageError, did_you_mean
from penstock.core.evolution import KEY_IDS, field_id
from penstock.core.keygroup import HashRange, first_hash_of
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.core.snapshot import KeyedStateSnapshot
from penstock.kernels.keys.hashing import hash_columns
from penstock.snapshots.access.content import identity_of
from penstock.snapshots.access.opening import Snapshot, open_target
from penstock.snapshots.access.reading import live_rows
from penstock.snapshots.rewrite import repartition
from penstock.snapshots.rewrite.key_expressions import KeyColumn, keys_of, parsed
from penstock.snapshots.rewrite.split_points import DEFAULT_LIMITS, Loads, SnapshotLimits, ranges_by_size
from penstock.state.log.row_spec import TIMERS, is_value
from penstock.state.log.segment_columns import KEY_HASH, SEQ, key_names, one_batch, segment_field
from penstock.state.log.segment_file import rows_within
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

if TYPE_CHECKING:
    from penstock.snapshots.rewrite.repartition import Run, VertexState

#: An internal column next to those of a key: the position of the key among all.
_KEY_INDEX = "__place"
#: Number of hash ranges in which the bytes of rows under their new keys are counted.
BUCKETS = 1 << 12
#: Assumed bytes of a value in a column without value lengths.
_OTHER_BYTES = 16
#: Rows that are encoded at a time.
_WRITTEN_ROWS = 250_000


class RekeyedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one state under its new key that one subtask will own; files are named by `number`."""

    number: int
    #: The state without segments, with its new schema and hash range.
    state: KeyedStateSnapshot

    def write(self, rows: pa.Table, target: ObjectStore) -> KeyedStateSnapshot:
        """Write rows as `ordered` returns them; a repetition writes the same files."""
        return SavepointWriter(target, target, f"{self.number:05d}-").rows(self.state, pieces_of(rows))


@dataclass(frozen=True, slots=True)
class DuplicateKeys:
    """Old keys with rows whose new key is also that of others."""

    keys: int
    #: A new key, and two old ones that map to it.
    example: str

    def error(self, where: str) -> UsageError:
        """Return the error for these keys."""
        msg = f"{where}: the new key is not unique: {self.keys} old keys collide, for example {self.example}"
        return UsageError(
            msg, hint="keep the distinguishing columns in the key, or merge the rows with ps.snapshots.read and write"
        )


def pieces_of(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in tables that are encoded one at a time."""
    return (rows.slice(first, _WRITTEN_ROWS) for first in range(0, rows.num_rows, _WRITTEN_ROWS))


def is_timers(state: str) -> bool:
    """Return whether a state has timers, each of which exists once."""
    return state.startswith(TIMERS)


def find_duplicate_keys(old: pl.DataFrame, new: pl.DataFrame) -> DuplicateKeys | None:
    """Search for new keys of two or more old ones; each row is one old key and its new one."""
    duplicates = new.is_duplicated()
    if not duplicates.any():
        return None
    first = new.filter(duplicates).head(1)
    same = new.with_row_index(_KEY_INDEX).join(first, on=new.columns, nulls_equal=True)[_KEY_INDEX]
    olds = " and ".join(_shown(old[int(place)]) for place in same[:2])
    return DuplicateKeys(int(duplicates.sum()), f"{_shown(first)} of {olds}")


def rekeyed(rows: pa.Table, keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with `keys`, one for each, replacing theirs; `schema` is the result of `schema_of`."""
    old = rows.schema
    rest = [name for name in old.names if name != KEY_HASH and field_id(old.field(name)) not in KEY_IDS]
    columns = dict(zip(schema.names[1 + len(keys.schema) :], (rows.column(name) for name in rest), strict=True))
    columns |= {name: keys.column(name) for name in keys.schema.names}
    columns[KEY_HASH] = pa.chunked_array([pa.array(hash_columns(one_batch(keys), tuple(keys.schema.names)))])
    return pa.table([columns[name] for name in schema.names], schema=schema)


def ordered(rows: pa.Table, *, timers: bool) -> pa.Table:
    """Return rows in the order of files: by hash, else unchanged; of timers that became equal, only the first."""
    schema = rows.schema
    if timers:
        once = pl.DataFrame(pl.from_arrow(rows.select(identity_of(schema)))).with_row_index(_KEY_INDEX)
        rows = rows.take(once.unique(identity_of(schema), keep="first", maintain_order=True)[_KEY_INDEX].to_arrow())
    rows = rows.take(pa.array(np.argsort(rows.column(KEY_HASH).to_numpy(), kind="stable")))
    place = schema.get_field_index(SEQ)
    return rows.set_column(place, schema.field(place), pa.array(np.arange(rows.num_rows)))


def sizes_by_bucket(rows: pa.Table) -> np.ndarray:
    """Return the approximate bytes of rows in each of the `BUCKETS` hash ranges."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        kind = column.type
        if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
        else:
            sizes += max(1, kind.bit_width // 8) if pt.is_primitive(kind) else _OTHER_BYTES
    top = (rows.column(KEY_HASH).to_numpy() >> np.int64(32)) + np.int64(1 << 31)
    buckets = (top * BUCKETS) >> np.int64(32)
    return np.bincount(buckets, weights=sizes, minlength=BUCKETS).astype(np.int64)


def loads_by_bucket(sizes: np.ndarray) -> Loads:
    """Return the result of `sizes_by_bucket` as loads."""
    return Loads.of(
        (first_hash_of(n, BUCKETS), first_hash_of(n + 1, BUCKETS) - 1, int(sizes[n]))
        for n in np.flatnonzero(sizes).tolist()
    )


def schema_of(old: pa.Schema, keys: pa.Schema, where: str) -> pa.Schema:
    """Return the columns of a segment under the new key; values are renamed as by `RowSpec.value_names` if needed.

    Raises:
        UsageError: a column of the key has a name that the state needs.
    """
    #: Names that a value could not have next to the old key: it got an underscore, and so did one with that name.
    hidden = set(key_names(old))
    fields, taken = [old.field(KEY_HASH)], set(keys.names)
    for number, field in enumerate(keys, start=KEY_IDS.start):
        fields.append(segment_field(field.name, field.type, number, nullable=True))
    for field in old:
        if field.name == KEY_HASH or field_id(field) in KEY_IDS:
            continue
        name = field.name
        if name.endswith("_") and name[:-1] in hidden:
            hidden.add(name)
            name = name[:-1]
        while name in taken and is_value(field):
            name += "_"
        taken.add(name)
        fields.append(field.with_name(name))
    names = [field.name for field in fields]
    duplicates = next((name for name in names if names.count(name) > 1), None)
    if duplicates is not None:
        raise UsageError(
            f"{where}: the state has a column {duplicates!r} already", hint="give the key column another name"
        )
    return pa.schema(fields, old.metadata)


def _shown(row: pl.DataFrame) -> str:
    return "(" + ", ".join(f"{name}={value!r}" for name, value in row.row(0, named=True).items()) + ")"


@dataclass(frozen=True, slots=True)
class RekeyRequest:
    """The task: the states of one operator, and the columns of their new key."""

    snapshot: Snapshot
    #: By name.
    states: Mapping[str, VertexState]
    key: tuple[KeyColumn, ...]
    #: The beginning of error messages.
    where: str
    limits: SnapshotLimits = DEFAULT_LIMITS

    def schemas(self, keys: pa.Schema) -> dict[str, pa.Schema]:
        """Return the columns of each state under keys of that schema; raises UsageError."""
        return {
            name: schema_of(schema_from_text(state.parts[0].schema), keys, f"{self.where}/{name}")
            for name, state in self.states.items()
        }


class Rekeyed(Protocol):
    """The rows of the states under their new key."""

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """Return the columns of each state."""

    @property
    def loads(self) -> Mapping[str, Loads]:
        """Return the bytes of each state by new hash."""

    def write(self, state_ranges: Sequence[RekeyedRange], target: ObjectStore) -> Sequence[KeyedStateSnapshot]:
        """Write the rows; the results are in the order of the ranges. Raises StorageError."""


class Engine(Protocol):
    """The place of the work: this process, or Spark."""

    @property
    def run(self) -> Run:
        """Return a function that writes ranges of states whose key stays."""

    def rekeyed(self, work: RekeyRequest) -> Rekeyed:
        """Compute the new keys.

        Raises:
            UsageError: an expression is wrong or gives no key, or two old keys get the same new key.
            SnapshotDamagedError: a file is missing or damaged.
        """


def rekey(
    snapshot: Snapshot,
    target_uri: str,
    *,
    uid: str,
    key: Sequence[str],
    engine: Engine | None = None,
    limits: SnapshotLimits = DEFAULT_LIMITS,
) -> str:
    """Write the snapshot to `target_uri` with `key` for the states of `uid`; return the savepoint's URI.

    `key` lists every column of the new key in order: the `name` of an old one, or `name=expression`, SQL over the old
    key columns such as `user=CAST(user_id AS VARCHAR)`. Without an engine the work is done in this process.

    Raises:
        NotFoundError: the snapshot has no keyed state of that uid.
        UsageError: an expression is wrong or gives no key, two old keys get the same new key, or the target is not
        empty or is written by another run.
        SnapshotDamagedError: a file is missing or damaged.
        StorageError: the target cannot be written, or was emptied meanwhile.
    """
    open_target(target_uri)  # refused before the work instead of after it; reserved below, when there is data to write
    engine = engine if engine is not None else InMemory()
    groups = snapshot.manifest.key_groups
    states = repartition.vertex_states(snapshot.manifest.subtasks)
    held = {state.parts[0].state: state for state in states if state.parts[0].uid == uid}
    if not held:
        known = {state.parts[0].uid for state in states}
        raise NotFoundError(f"the snapshot has no keyed state of uid {uid!r}", hint=did_you_mean(uid, known))
    where, old = f"rekey: {uid}", schema_from_text(next(iter(held.values())).parts[0].schema)
    made = engine.rekeyed(RekeyRequest(snapshot, held, parsed(key, key_names(old), where), where, limits))
    place = repartition.take(target_uri, "rekey")
    parts = repartition.RangePlan(limits)
    for state in states:
        if state.parts[0].uid != uid:
            parts.add(snapshot, state, groups)
    written = engine.run(parts.state_ranges, snapshot.store, place.store)
    owned = dict(parts.owned(written))
    for subtask, found in _written(held, made, groups, place.store, limits.file_bytes).items():
        owned[subtask] = (*owned.get(subtask, ()), *found)
    return repartition.write_manifest(snapshot, place, owned, groups)


def _written(
    held: Mapping[str, VertexState], made: Rekeyed, groups: int, target: ObjectStore, file_bytes: int
) -> dict[tuple[str, int], list[KeyedStateSnapshot]]:
    """Write the states under their new key; return them by subtask."""
    state_ranges: list[RekeyedRange] = []
    owners: list[tuple[tuple[str, int], HashRange, list[RekeyedRange]]] = []
    for name, state in held.items():
        empty = msgspec.structs.replace(
            state.parts[0], schema=schema_to_text(made.schemas[name]), segments=(), tombstones=()
        )
        for subtask, within in enumerate(state.ranges(groups)):
            ranges = ranges_by_size(made.loads[name], within, file_bytes)
            own = [
                RekeyedRange(number=number, state=msgspec.structs.replace(empty, hash_low=r.low, hash_high=r.high))
                for number, r in enumerate(ranges, start=len(state_ranges))
            ]
            state_ranges += own
            owners.append(((state.vertex_id, subtask), within, own))
    written = made.write(state_ranges, target)
    found: dict[tuple[str, int], list[KeyedStateSnapshot]] = {}
    for place, within, own in owners:
        found.setdefault(place, []).append(
            repartition.joined([written[state_range.number] for state_range in own], within)
        )
    return found


class InMemory:
    """Works in this process, with all rows of the operator's states in memory; expressions may read all keys."""

    run = staticmethod(repartition.run_sequentially)

    def rekeyed(self, work: RekeyRequest) -> Rekeyed:
        """Compute the new keys; see `Engine`."""
        rows, olds = {}, dict[str, pl.DataFrame]()
        for name, state in work.states.items():
            old = schema_from_text(state.parts[0].schema)
            found = [old.empty_table(), *live_rows(work.snapshot, state.parts)]
            rows[name] = pa.concat_tables(found).combine_chunks()
            olds[name] = pl.DataFrame(pl.from_arrow(rows[name].select(key_names(old))))
        names = next(iter(olds.values())).columns
        known = pl.concat(olds.values()).unique().sort(names, nulls_last=True)
        keys = keys_of(known, work.key, work.where)
        places, numbered = {}, known.with_row_index(_KEY_INDEX)
        for name, frame in olds.items():
            joined = frame.join(numbered, on=names, how="left", nulls_equal=True, maintain_order="left")
            places[name] = joined[_KEY_INDEX].to_numpy()
        # timers alone do no harm: each exists once in any case
        with_rows = [places[name] for name in places if not is_timers(name)]
        used = np.unique(np.concatenate([np.empty(0, np.int64), *with_rows]))
        duplicates = find_duplicate_keys(known[used], pl.DataFrame(pl.from_arrow(keys))[used])
        if duplicates is not None:
            raise duplicates.error(work.where)
        schemas = work.schemas(keys.schema)
        made = {name: rekeyed(table, keys.take(pa.array(places[name])), schemas[name]) for name, table in rows.items()}
        loads = {name: loads_by_bucket(sizes_by_bucket(table)) for name, table in made.items()}
        return _Held(schemas, loads, {name: ordered(table, timers=is_timers(name)) for name, table in made.items()})


@dataclass(frozen=True, slots=True)
class _Held:
    schemas: dict[str, pa.Schema]
    loads: dict[str, Loads]
    rows: dict[str, pa.Table]

    def write(self, state_ranges: Sequence[RekeyedRange], target: ObjectStore) -> list[KeyedStateSnapshot]:
        return [
            state_range.write(
                rows_within(
                    self.rows[state_range.state.state],
                    HashRange(state_range.state.hash_low, state_range.state.hash_high),
                ),
                target,
            )
            for state_range in state_ranges
        ]
