"""`KeySpace`: the keys that all states of an operator share, as its tables of values, entries, timers and rows see it.

Implemented by `state.tables.row_state`. Called in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyIndex, KeyView
    from penstock.state.remote.remote_keys import RemoteKeys
    from penstock.state.spill.cold_records import ColdHome


class KeySpace(Protocol):
    """Keys by slot, and where they go when they leave memory."""

    @property
    def index(self) -> KeyIndex:
        """The keys in memory; another one when slots have new numbers."""

    def upsert(self, keys: KeyColumns, hashes: I64) -> I32:
        """Return the slot of every row, made where the key is new; the array is reused by the next call."""

    def find(self, keys: KeyColumns, hashes: I64) -> tuple[KeyView, I32, bool]:
        """Return the one key given as a slot of a view, and whether it is in memory; nothing changes."""

    def settle_load(self) -> None:
        """Count memory after a part of a restore; slots may have new numbers when this returns."""

    @property
    def cold(self) -> ColdHome | None:
        """Where keys go that leave memory; None: none leaves."""

    @property
    def remote(self) -> RemoteKeys | None:
        """What fetches keys from the object store; None: all are in memory or where they go from there."""
