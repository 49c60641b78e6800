"""Protocols between `RowState` and its tables: the shared keys of an operator, and tables that use their slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import LAST_ACCESS, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenContent, FrozenSource
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.remote.remote_keys import RemoteKeys
    from penstock.state.spill.cold_records import KeyRows, SpillStore


class SlotTable(Protocol):
    """A table that uses the slots of the key index."""

    @property
    def hot_bytes(self) -> int: ...

    def mark_used(self, used: np.ndarray) -> None: ...

    def renumber(self, numbers: I32) -> None: ...


class ColdTable(SlotTable, Protocol):
    """A table whose keys can be evicted: every table except the rows of a join."""

    @property
    def source(self) -> FrozenSource:
        """The state's names, its log and its segments that are not durable."""

    def unsaved(self) -> Sequence[FrozenContent]:
        """Return the changes since the last freeze, which count as saved then: only the table's rows have slots."""


class RowTable(ColdTable, Protocol):
    """A table whose rows are a part of their key's record when the key is evicted."""

    @property
    def spec(self) -> RowSpec:
        """The columns of the rows."""

    @property
    def number(self) -> int:
        """The number of the table's part of a record, if keys can be evicted."""

    def rows_at(self, slots: I32, most: int | None = None) -> KeyRows:
        """Return the rows of these slots; with `most` only the first ones of each, that many of them live."""

    def forget_rows(self, slots: I32) -> None:
        """Drop the rows of these slots from memory: the records of their keys have them; all changes are saved."""

    def load_rows(self, slots: I32, rows: KeyRows) -> None:
        """Add the rows of these slots, which have none in memory."""

    @property
    def deadline(self) -> int | None:
        """The time of last access up to which rows have expired; None without a time-to-live."""

    def note_expired(self, keys: KeyColumns, hashes: I64) -> None:
        """Record that all rows of these evicted keys expired and were removed."""


class KeySpace(Protocol):
    """Keys by slot, and the stores of evicted keys."""

    @property
    def index(self) -> KeyIndex:
        """The keys in memory; replaced when slots are renumbered."""

    def upsert(self, keys: KeyColumns, hashes: I64) -> I32:
        """Return the slot of every row, created if the key is new; the next call reuses the array."""

    def find(self, keys: KeyColumns, hashes: I64) -> tuple[KeyView, I32, bool]:
        """Return the single key as a slot of a view, and whether it is in memory; changes no state."""

    def settle_load(self) -> None:
        """Count memory after a part of a restore; slots may be renumbered by this call."""

    @property
    def cold(self) -> SpillStore | None:
        """The store of evicted keys; None: no key is evicted."""

    @property
    def remote(self) -> RemoteKeys | None:
        """Fetches keys from the object store; None: all keys are in memory or in the local store."""


class RowSpace(KeySpace, Protocol):
    """Keys whose rows are in records when they are evicted."""

    def note_changed(self, slots: I32) -> None:
        """Record that rows of slots were changed: the records of their keys in the cold store are out of date."""

    def sweep_cold(self, limit: int) -> None:
        """Check evicted keys, one per so many of `limit`, and remove rows that expired."""


def find_key(index: KeyIndex, remote: RemoteKeys | None, keys: KeyColumns, hashes: I64) -> tuple[KeyView, I32, bool]:
    """Return a single key as a slot of a view, and whether it is in memory; a remote key is fetched, not loaded."""
    found = index.find(keys, hashes)
    if len(found):
        return index.view(), found, True
    if remote is not None:
        remote.fetcher.ensure(hashes)
    lookup_index = KeyIndex(index.schema)
    slots = lookup_index.upsert(keys, hashes).copy()
    return lookup_index.view(), slots, False


def look_up_rows(table: RowTable, state: KeySpace, key: tuple[KeyColumns, I64], most: int) -> pa.Table:
    """Return the first `most` live rows of a single key and its hash as columns of a segment; changes no state."""
    view, slots, in_memory = state.find(*key)
    rows, spec = None, table.spec
    if in_memory:
        rows = table.rows_at(slots, most)
    elif state.cold is not None:
        rows = state.cold.look_up(view, slots, table.number)
    if rows is None or not rows.counts.any():
        return spec.segment_schema.empty_table()
    found = pa.table(rows.columns, names=list(spec.row_names))
    if table.deadline is not None:
        found = found.filter(pc.field(LAST_ACCESS) > table.deadline)
    found = found.slice(0, most)
    owners = pa.array(np.zeros(found.num_rows, np.int64))
    given = dict(zip(spec.key_schema.names, (column.take(owners) for column in view.gather(slots)), strict=True))
    return rows_of(spec.segment_schema, given | dict(zip(spec.row_names, found.columns, strict=True)), found.num_rows)
