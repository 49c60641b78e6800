"""Changed rows that left memory before a barrier, as the content of a segment: read from their file part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.state.cold import parts_of
from penstock.state.frozen import rows_to_table
from penstock.state.hot import HotPanes

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange
    from penstock.state.accumulators import PaneTableSpec
    from penstock.state.cold import ColdRows


@dataclass(frozen=True, slots=True)
class FrozenCold:
    """Rows of a file that nobody writes any more (`frozen.FrozenContent`)."""

    spec: PaneTableSpec
    rows: ColdRows
    owned: HashRange

    @property
    def memory_bytes(self) -> int:
        """They are on disk."""
        return 0

    def table(self) -> pa.Table:
        """Return the rows as columns of a segment, sorted by hash."""
        parts = []
        for pane in self.rows.panes:
            for part in parts_of(self.rows.rows_of(pane), self.owned):
                inside = HotPanes(self.spec)
                for piece in self.rows.scan(pane, part):
                    inside.put(*piece)
                parts.append(rows_to_table(self.spec, inside.index.view(), inside.memory.present()))
        return pa.concat_tables(parts)
