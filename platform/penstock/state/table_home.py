"""Where a table of state lives: told to it by the store when it is declared (`state.store`, `state.pane_table`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.state.budget import MemoryBudget
    from penstock.state.cold import ColdRows


@dataclass(frozen=True, slots=True)
class TableHome:
    """Where a table lives: its budget, its cold store, its folder for spilled files."""

    budget: MemoryBudget
    cold: ColdRows | None
    directory: Path
