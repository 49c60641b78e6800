"""What `state.tables.row_state` asks of the tables that use the slots of its index of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from penstock.kernels.compiler.compile import I32
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.cold_records import ColdHome


class SlotTable(Protocol):
    """What the index of keys asks of the tables that use its slots."""

    @property
    def hot_bytes(self) -> int: ...

    def mark_used(self, used: np.ndarray) -> None: ...

    def renumber(self, numbers: I32) -> None: ...


class ColdTable(SlotTable, Protocol):
    """What it asks besides, if keys may leave memory: of every table but the rows of a join."""

    def save_changes(self, home: ColdHome) -> None:
        """Put what has changed since the last freeze into a segment: no slot may be named outside the table's rows."""

    def take_out(self, keys: KeyView, slots: I32) -> None:
        """Move all that these slots have to the cold store; they come in order of their hashes."""

    def bring_in(self, keys: KeyView, slots: I32) -> None:
        """Get what these slots have, which were made just now, from the cold store."""
