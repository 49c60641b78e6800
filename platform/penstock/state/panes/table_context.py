"""Context of a state table, given by the store at its declaration (`state.store`, `state.panes.pane_table`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.state.memory.budget import MemoryBudget
    from penstock.state.spill.cold_panes import ColdRows


@dataclass(frozen=True, slots=True)
class TableHome:
    """The context of a table: its budget, its cold store, its folder for spilled files."""

    budget: MemoryBudget
    cold: ColdRows | None
    directory: Path
