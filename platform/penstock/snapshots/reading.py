"""`ps.snapshots.read`: one state of a snapshot as a Polars LazyFrame, its live rows only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from penstock.snapshots.content import StateContent, find_state
from penstock.snapshots.opening import Snapshot, open_snapshot
from penstock.state.accumulators import DELETED, KEY_HASH, SEQ
from penstock.state.segments import read_state

if TYPE_CHECKING:
    from penstock.core.snapshot import KeyedStateSnapshot

#: Columns that only say where a row stands in the files.
_PLACE = (KEY_HASH, DELETED, SEQ)
_OPERATOR_SCHEMA = pl.Schema({"__subtask": pl.Int64, "__index": pl.Int64, "item": pl.String})


def read(
    uri: str, *, uid: str, name: str | None = None, checkpoint: int | None = None, with_hash: bool = False
) -> pl.LazyFrame:
    """Return the live rows of one state: key columns, `__namespace`, then the value columns.

    `uri` is a savepoint's folder, or a job's folder of checkpoints (`CHECKPOINT_ROOT/JOB`): its newest checkpoint, or
    the one of sequence `checkpoint`. `uid` is the operator's, `name` the state's (`panes` of a window, `running` of a
    running aggregate, a process function's own; it may be left out where there is one). State that is not keyed, such
    as the `splits` of a source, has the columns `__subtask`, `__index` and `item` (JSON). `with_hash=True` adds
    `__key_hash`. Files are read, and verified against their checksums, when the frame is collected, one subtask after
    another.

    Raises:
        NotFoundError: there is no such snapshot or state. UsageError: it has to be said which.
        SnapshotDamagedError: a file is missing or damaged; raised when the frame is collected.
    """
    snapshot = open_snapshot(uri, checkpoint=checkpoint)
    return frame_of(snapshot, find_state(snapshot.manifest, uid, name), with_hash=with_hash)


def frame_of(snapshot: Snapshot, state: StateContent, *, with_hash: bool = False) -> pl.LazyFrame:
    """Return the live rows of a state that was found; see `read`."""
    if state.kind == "operator":
        return pl.LazyFrame(_items(state), schema=_OPERATOR_SCHEMA, orient="row")
    schema = state.schema
    assert schema is not None  # noqa: S101 - a keyed state has one
    kept = [n for n in schema.names if n not in _PLACE or (with_hash and n == KEY_HASH)]

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch_size
        left = n_rows
        for table in live_rows(snapshot, state.keyed):
            frame = _frame(table.select(kept))
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

    empty = _frame(schema.empty_table().select(kept))
    return register_io_source(source, schema=empty.schema, is_pure=True)


def live_rows(snapshot: Snapshot, parts: tuple[KeyedStateSnapshot, ...]) -> Iterator[pa.Table]:
    """Yield the live rows of a keyed state, in the order of hashes, as columns of a segment."""
    for part in sorted(parts, key=lambda part: part.hash_low):
        yield from read_state(part, snapshot.read)


def _items(state: StateContent) -> list[tuple[int, int, str]]:
    return [
        (subtask, index, json.dumps(item, separators=(",", ":"), default=str))
        for subtask, part in state.operator
        for index, item in enumerate(part.items)
    ]


def _frame(table: pa.Table) -> pl.DataFrame:
    found = pl.from_arrow(table)
    assert isinstance(found, pl.DataFrame)  # noqa: S101 - of a table
    return found
