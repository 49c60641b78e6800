"""Protocols of the tables that use the slots of the key index of `state.tables.row_state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from penstock.kernels.compiler.compile import I32
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.cold_records import ColdHome


class SlotTable(Protocol):
    """A table that uses the slots of the key index."""

    @property
    def hot_bytes(self) -> int: ...

    def mark_used(self, used: np.ndarray) -> None: ...

    def renumber(self, numbers: I32) -> None: ...


class ColdTable(SlotTable, Protocol):
    """A table whose keys can be evicted: every table except the rows of a join."""

    def save_changes(self, home: ColdHome) -> None:
        """Freeze the changes since the last freeze into a segment, so that only the table's rows refer to slots."""

    def take_out(self, keys: KeyView, slots: I32) -> None:
        """Move all state of these slots, in hash order, to the cold store."""

    def bring_in(self, keys: KeyView, slots: I32) -> None:
        """Load the state of these slots, which were just created, from the cold store."""
