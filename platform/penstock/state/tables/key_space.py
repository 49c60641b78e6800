"""The shared keys of an operator as its tables see them, and the rows of a single key for state queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import LAST_ACCESS, rows_of

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.remote.remote_keys import RemoteKeys
    from penstock.state.spill.cold_records import KeyRows, RowPacker, SpillStore


class KeySpace(Protocol):
    """Keys by slot, and the stores of evicted keys."""

    @property
    def index(self) -> KeyIndex:
        """The keys in memory; replaced when slots are renumbered."""

    def upsert(self, keys: KeyColumns, hashes: I64) -> I32:
        """Return the slot of every row, created if the key is new; the next call reuses the array."""

    def settle_load(self) -> None:
        """Count memory after a part of a restore; slots may be renumbered by this call."""

    @property
    def cold(self) -> SpillStore | None:
        """The store of evicted keys; None: no key is evicted."""

    @property
    def remote(self) -> RemoteKeys | None:
        """Fetches keys from the object store; None: all keys are in memory or in the local store."""


class RowSpace(KeySpace, Protocol):
    """Keys whose rows are in records when they are evicted (`row_state.RowState`)."""

    def register(self, source: FrozenSource[RowSpec]) -> RowPacker:
        """Add a state whose rows are a part of their key's record; return the packer of the part."""

    def evicted_rows(self, keys: KeyView, slots: I32, packer: RowPacker) -> KeyRows | None:
        """Return one part of the record of a single key that is not in memory; None: it has none."""

    def note_changed(self, slots: I32) -> None:
        """Record that rows of slots were changed: the records of their keys in the cold store are out of date."""


def find_key(state: KeySpace, keys: KeyColumns, hashes: I64) -> tuple[KeyView, I32, bool]:
    """Return a single key as a slot of a view, and whether it is in memory; a remote key is fetched, not loaded."""
    index, remote = state.index, state.remote
    found = index.find(keys, hashes)
    if len(found):
        return index.view(), found, True
    if remote is not None:
        remote.fetcher.ensure(hashes)
    lookup_index = KeyIndex(index.schema)
    slots = lookup_index.upsert(keys, hashes).copy()
    return lookup_index.view(), slots, False


def live_rows(source: FrozenSource[RowSpec], key: tuple[KeyView, I32], rows: KeyRows | None, most: int) -> pa.Table:
    """Return the first `most` rows of a single key that have not expired as columns of a segment."""
    spec = source.spec
    if rows is None or not rows.counts.any():
        return spec.segment_schema.empty_table()
    found = pa.table(rows.columns, names=list(spec.row_names))
    if source.deadline is not None:
        found = found.filter(pc.field(LAST_ACCESS) > source.deadline)
    found = found.slice(0, most)
    return key_table(spec, key, dict(zip(spec.row_names, found.columns, strict=True)), found.num_rows)


def key_table(spec: RowSpec, key: tuple[KeyView, I32], given: dict[str, pa.Array], rows: int) -> pa.Table:
    """Return rows of a single key with the given columns as columns of a segment."""
    view, slots = key
    owners = pa.array(np.zeros(rows, np.int64))
    own = dict(zip(spec.key_schema.names, (column.take(owners) for column in view.gather(slots)), strict=True))
    return rows_of(spec.segment_schema, own | given, rows)
