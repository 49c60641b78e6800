"""Protocols between `RowState` and its tables: the shared keys of an operator, and tables that use their slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.state.keys.key_index import KeyIndex

if TYPE_CHECKING:
    import numpy as np

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.remote.remote_keys import RemoteKeys
    from penstock.state.spill.cold_records import SpillStore


class SlotTable(Protocol):
    """A table that uses the slots of the key index."""

    @property
    def hot_bytes(self) -> int: ...

    def mark_used(self, used: np.ndarray) -> None: ...

    def renumber(self, numbers: I32) -> None: ...


class ColdTable(SlotTable, Protocol):
    """A table whose keys can be evicted: every table except the rows of a join."""

    def save_changes(self) -> None:
        """Freeze the changes since the last freeze into a segment, so that only the table's rows refer to slots."""

    def evict_keys(self, keys: KeyView, slots: I32) -> None:
        """Move all state of these slots, in hash order, to the cold store."""

    def load_keys(self, keys: KeyView, slots: I32) -> None:
        """Load the state of these slots, which were just created, from the cold store."""


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


def find_key(index: KeyIndex, remote: RemoteKeys | None, keys: KeyColumns, hashes: I64) -> tuple[KeyView, I32, bool]:
    """Return a single key as a slot of a view, and whether it is in memory; a remote key is fetched, not loaded."""
    found = index.find(keys, hashes)
    if len(found):
        return index.view(), found, True
    if remote is not None:
        remote.ensure(hashes, index, index.count)
    lookup_index = KeyIndex(index.schema)
    slots = lookup_index.upsert(keys, hashes).copy()
    return lookup_index.view(), slots, False
