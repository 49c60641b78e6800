"""`KeySpace`: the shared keys of all states of an operator, as the tables use them.

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
    def cold(self) -> ColdHome | None:
        """The store of evicted keys; None: no key is evicted."""

    @property
    def remote(self) -> RemoteKeys | None:
        """Fetches keys from the object store; None: all keys are in memory or in the local store."""
