"""`ps.snapshots.read` and `penstock state diff`: the live rows of a state, and the differences of two snapshots.

The rows of one state are a Polars LazyFrame. Also called by Spark's data source and by `rekey`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from penstock.snapshots.access.content import StateContent, find_state, states_of
from penstock.snapshots.access.opening import Snapshot, open_snapshot
from penstock.snapshots.access.pruning import ALL_ROWS, Pruning, pruning_of
from penstock.state.log.segment_columns import DELETED, KEY_HASH, SEQ, key_names
from penstock.state.log.segments import read_state

if TYPE_CHECKING:
    from penstock.core.snapshot import KeyedStateSnapshot

#: Columns that only give a row's position in the files.
_PLACE = (KEY_HASH, DELETED, SEQ)
#: Columns of non-keyed state.
OPERATOR_STATE = pa.schema([("__subtask", pa.int64()), ("__index", pa.int64()), ("item", pa.string())])


def read(
    uri: str, *, uid: str, name: str | None = None, checkpoint: int | None = None, with_hash: bool = False
) -> pl.LazyFrame:
    """Return the live rows of one state: key columns, `__namespace`, then the value columns.

    `uri` is a savepoint's folder, or a job's folder of checkpoints (`CHECKPOINT_ROOT/JOB`): its newest checkpoint, or
    the one with sequence `checkpoint`. `uid` is the operator's, `name` the state's (`panes` of a window, `running` of a
    running aggregate, a process function's own; optional if there is only one). Non-keyed state, such as the `splits`
    of a source, has the columns `__subtask`, `__index` and `item` (JSON). `with_hash=True` adds `__key_hash`. Files are
    read, and verified against their checksums, when the frame is collected, one subtask after another. Filters on the
    key, and on `__namespace`, choose the row groups and files.

    Raises:
        NotFoundError: there is no such snapshot or state.
        UsageError: several fit and none is named.
        SnapshotDamagedError: a file is missing or damaged; raised when the frame is collected.
    """
    snapshot = open_snapshot(uri, checkpoint=checkpoint)
    return frame_of(snapshot, find_state(snapshot.manifest, uid, name), with_hash=with_hash)


def frame_of(snapshot: Snapshot, state: StateContent, *, with_hash: bool = False) -> pl.LazyFrame:
    """Return the live rows of a state of `content.find_state`; see `read`."""
    schema = columns_of(state, with_hash=with_hash)
    kept = schema.names
    if state.kind == "operator":
        return pl.LazyFrame(
            items_of(state), schema=pl.DataFrame(pl.from_arrow(schema.empty_table())).schema, orient="row"
        )

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch_size
        left = n_rows
        asked = set(kept if with_columns is None else with_columns)
        asked |= set() if predicate is None else set(predicate.meta.root_names())
        names = [name for name in kept if name in asked]
        pruning = ALL_ROWS if predicate is None else pruning_of(predicate, keys_of(state))
        for table in live_rows(snapshot, state.keyed, names, pruning):
            frame = pl.DataFrame(pl.from_arrow(table.select(names or kept[:1])))
            if predicate is not None:
                frame = frame.filter(predicate)
            if with_columns is not None:
                frame = frame.select(with_columns)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield frame
            if left == 0:
                return

    empty = pl.DataFrame(pl.from_arrow(schema.empty_table()))
    return register_io_source(source, schema=empty.schema, is_pure=True)


def live_rows(
    snapshot: Snapshot,
    parts: tuple[KeyedStateSnapshot, ...],
    only: Collection[str] | None = None,
    pruning: Pruning = ALL_ROWS,
) -> Iterator[pa.Table]:
    """Yield the live rows of a keyed state, in the order of hashes, with the columns of a segment.

    With `only`, other value columns are left out. Rows that `pruning` excludes may be there.
    """
    hashes = pruning.hashes
    for part in sorted(pruning.segments(parts), key=lambda part: part.hash_low):
        yield from read_state(part, snapshot.read, only=only, hashes=hashes)


def keys_of(state: StateContent) -> pa.Schema:
    """Return the columns of the key; none if the state is not keyed."""
    schema = state.schema
    return pa.schema([]) if schema is None else pa.schema([schema.field(name) for name in key_names(schema)])


def columns_of(state: StateContent, *, with_hash: bool = False) -> pa.Schema:
    """Return the columns of a state that is read."""
    if state.schema is None:
        return OPERATOR_STATE
    return pa.schema([f for f in state.schema if f.name not in _PLACE or (with_hash and f.name == KEY_HASH)])


def items_of(state: StateContent) -> list[tuple[int, int, str]]:
    """Return the rows of non-keyed state, with the columns of `OPERATOR_STATE`."""
    return [
        (subtask, index, json.dumps(item, separators=(",", ":"), default=str))
        for subtask, part in state.operator
        for index, item in enumerate(part.items)
    ]


Verdict = Literal["same", "changed", "added", "removed", "other columns"]


@dataclass(frozen=True, slots=True)
class StateDiff:
    """One state of two snapshots; rows are live rows by key (and namespace)."""

    uid: str
    state: str
    verdict: Verdict
    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0


#: The column of change rows that names the kind of change, and its values.
CHANGE, INSERT, UPDATE, DELETE = "__change", "insert", "update", "delete"


def changed_rows(old: pl.DataFrame, new: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    """Return the rows that differ, with the column `CHANGE`: those of `old` for `DELETE`, otherwise those of `new`.

    Both have the same columns; `identity` names those that identify a row.
    """
    both = new.join(old, on=identity, how="semi", nulls_equal=True)
    found = {
        DELETE: old.join(new, on=identity, how="anti", nulls_equal=True),
        INSERT: new.join(old, on=identity, how="anti", nulls_equal=True),
        UPDATE: both.join(old, on=new.columns, how="anti", nulls_equal=True),
    }
    return pl.concat(rows.with_columns(pl.lit(kind).alias(CHANGE)) for kind, rows in found.items())


def diff(left: Snapshot, right: Snapshot) -> tuple[StateDiff, ...]:
    """Compare all states of two snapshots, the right one being the newer; reads all their files.

    Raises:
        SnapshotDamagedError: a file is missing or damaged.
    """
    ours = {(s.uid, s.name): s for s in states_of(left.manifest)}
    theirs = {(s.uid, s.name): s for s in states_of(right.manifest)}
    found = []
    for place in sorted({*ours, *theirs}):
        old, new = ours.get(place), theirs.get(place)
        if old is None or new is None:
            found.append(_one_sided(left, old) if new is None and old is not None else _one_sided(right, new, new=True))
        else:
            found.append(_both((left, old), (right, new)))
    return tuple(found)


def _one_sided(snapshot: Snapshot, state: StateContent | None, *, new: bool = False) -> StateDiff:
    assert state is not None  # noqa: S101 - it is on one side at least
    rows = _rows(snapshot, state).height
    if new:
        return StateDiff(state.uid, state.name, "added", added=rows)
    return StateDiff(state.uid, state.name, "removed", removed=rows)


def _both(old: tuple[Snapshot, StateContent], new: tuple[Snapshot, StateContent]) -> StateDiff:
    left, right = _rows(*old), _rows(*new)
    if left.schema != right.schema:
        return StateDiff(new[1].uid, new[1].name, "other columns", added=right.height, removed=left.height)
    found = changed_rows(left, right, new[1].identity).group_by(CHANGE).len()
    kinds = dict(found.iter_rows())
    added, removed, changed = (kinds.get(kind, 0) for kind in (INSERT, DELETE, UPDATE))
    same = right.height - added - changed
    return StateDiff(new[1].uid, new[1].name, "changed" if kinds else "same", added, removed, changed, same)


def _rows(snapshot: Snapshot, state: StateContent) -> pl.DataFrame:
    return frame_of(snapshot, state).collect()
