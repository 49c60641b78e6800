"""`penstock state rekey`: rewrite a snapshot as a savepoint with another key for the state of one operator.

The key's columns can be cast, renamed, computed from one another or dropped; all other columns stay. Each old key gets
one new key, the same in all states of the operator. Two old keys with the same new key are an error, as a tool cannot
decide how to merge them. The local engine holds all rows of the operator's states in memory; Spark
(`snapshots.on_spark.spark_rekey`) shuffles them by their new hashes. Both write the same files. The state of other
operators is split as for a repartition (`snapshots.rewrite.recut`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.errors import NotFoundError
from penstock.core.keygroup import HashRange
from penstock.core.names import near
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.snapshots.access.opening import Snapshot, open_target
from penstock.snapshots.access.reading import live_rows
from penstock.snapshots.access.snapshot_limits import DEFAULT_LIMITS, SnapshotLimits
from penstock.snapshots.rewrite import recut
from penstock.snapshots.rewrite.key_expressions import KeyColumn, keys_of, parsed
from penstock.snapshots.rewrite.rekeying import (
    NewCut,
    is_timers,
    loads_by_bucket,
    ordered,
    rekeyed,
    schema_of,
    sizes_by_bucket,
    twice_of,
)
from penstock.snapshots.rewrite.split_points import Loads, ranges_by_size
from penstock.state.log.segment_file import rows_within
from penstock.state.log.segments import key_names

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore
    from penstock.core.snapshot import KeyedStateSnapshot
    from penstock.snapshots.rewrite.recut import HeldState, Run

_PLACE = "__place"


@dataclass(frozen=True, slots=True)
class Rekeying:
    """The task: the states of one operator, and the columns of their new key."""

    snapshot: Snapshot
    #: By name.
    states: Mapping[str, HeldState]
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

    def write(self, cuts: Sequence[NewCut], target: ObjectStore) -> Sequence[KeyedStateSnapshot]:
        """Write the rows; the results are in the order of the ranges. Raises StorageError."""


class Engine(Protocol):
    """The place of the work: this process, or Spark."""

    @property
    def run(self) -> Run:
        """Return a function that writes ranges of states whose key stays."""

    def rekeyed(self, work: Rekeying) -> Rekeyed:
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
    states = recut.held_states(snapshot.manifest.subtasks)
    held = {state.parts[0].state: state for state in states if state.parts[0].uid == uid}
    if not held:
        known = {state.parts[0].uid for state in states}
        raise NotFoundError(f"the snapshot has no keyed state of uid {uid!r}", hint=near(uid, known))
    where, old = f"rekey: {uid}", schema_from_text(next(iter(held.values())).parts[0].schema)
    made = engine.rekeyed(Rekeying(snapshot, held, parsed(key, key_names(old), where), where, limits))
    place = recut.take(target_uri, "rekey")
    parts = recut.Parts(limits)
    for state in states:
        if state.parts[0].uid != uid:
            parts.add(snapshot, state, groups)
    written = engine.run(parts.cuts, snapshot.store, place.store)
    owned = dict(parts.owned(written))
    for subtask, found in _written(held, made, groups, place.store, limits.file_bytes).items():
        owned[subtask] = (*owned.get(subtask, ()), *found)
    return recut.write_manifest(snapshot, place, owned, groups)


def _written(
    held: Mapping[str, HeldState], made: Rekeyed, groups: int, target: ObjectStore, file_bytes: int
) -> dict[tuple[str, int], list[KeyedStateSnapshot]]:
    """Write the states under their new key; return them by subtask."""
    cuts: list[NewCut] = []
    owners: list[tuple[tuple[str, int], HashRange, list[NewCut]]] = []
    for name, state in held.items():
        empty = msgspec.structs.replace(
            state.parts[0], schema=schema_to_text(made.schemas[name]), segments=(), tombstones=()
        )
        for subtask, within in enumerate(state.ranges(groups)):
            ranges = ranges_by_size(made.loads[name], within, file_bytes)
            own = [
                NewCut(number=number, state=msgspec.structs.replace(empty, hash_low=r.low, hash_high=r.high))
                for number, r in enumerate(ranges, start=len(cuts))
            ]
            cuts += own
            owners.append(((state.vertex_id, subtask), within, own))
    written = made.write(cuts, target)
    found: dict[tuple[str, int], list[KeyedStateSnapshot]] = {}
    for place, within, own in owners:
        found.setdefault(place, []).append(recut.joined([written[cut.number] for cut in own], within))
    return found


class InMemory:
    """Works in this process, with all rows of the operator's states in memory; expressions may read all keys."""

    run = staticmethod(recut.in_turn)

    def rekeyed(self, work: Rekeying) -> Rekeyed:
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
        places, numbered = {}, known.with_row_index(_PLACE)
        for name, frame in olds.items():
            joined = frame.join(numbered, on=names, how="left", nulls_equal=True, maintain_order="left")
            places[name] = joined[_PLACE].to_numpy()
        # timers alone do no harm: each exists once in any case
        with_rows = [places[name] for name in places if not is_timers(name)]
        used = np.unique(np.concatenate([np.empty(0, np.int64), *with_rows]))
        twice = twice_of(known[used], pl.DataFrame(pl.from_arrow(keys))[used])
        if twice is not None:
            raise twice.error(work.where)
        schemas = work.schemas(keys.schema)
        made = {name: rekeyed(table, keys.take(pa.array(places[name])), schemas[name]) for name, table in rows.items()}
        loads = {name: loads_by_bucket(sizes_by_bucket(table)) for name, table in made.items()}
        return _Held(schemas, loads, {name: ordered(table, timers=is_timers(name)) for name, table in made.items()})


@dataclass(frozen=True, slots=True)
class _Held:
    schemas: dict[str, pa.Schema]
    loads: dict[str, Loads]
    rows: dict[str, pa.Table]

    def write(self, cuts: Sequence[NewCut], target: ObjectStore) -> list[KeyedStateSnapshot]:
        return [
            cut.write(
                rows_within(self.rows[cut.state.state], HashRange(cut.state.hash_low, cut.state.hash_high)), target
            )
            for cut in cuts
        ]
