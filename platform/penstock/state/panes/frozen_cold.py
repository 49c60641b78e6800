"""Changed rows evicted before a barrier, as the content of a segment: read from their file in batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.kernels.keys.key_columns import FixedColumn
from penstock.state.cells.pane_memory import Rows
from penstock.state.cells.pane_rows import rows_to_table
from penstock.state.keys.key_index import KeyView, plain_key_schema
from penstock.state.spill.cold_panes import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.spill.cold_file import FileRows

_PART_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class FrozenCold:
    """Rows of a file that is no longer written, each key once (`frozen.FrozenContent`, `frozen.InPieces`)."""

    spec: PaneTableSpec
    rows: FileRows
    owned: HashRange

    @property
    def memory_bytes(self) -> int:
        """Return 0: the rows are on disk."""
        return 0

    @property
    def ordered_rows(self) -> int:
        """Return 0: the rows are in order."""
        return 0

    def whole(self) -> Iterator[pa.Table]:
        """Yield the rows as columns of a segment, sorted by hash."""
        return self.tables(_PART_ROWS)

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows in some hash ranges."""
        for wanted in ranges:
            part = wanted.intersect(self.owned)
            if part is not None:
                for pane in self.rows.panes:
                    yield from self._of(list(self.rows.scan(pane, part)), pane)

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the rows as columns of a segment, one hash range at a time."""
        for pane in self.rows.panes:
            for part in parts_of(self.rows.rows_of(pane), self.owned, rows):
                yield from self._of(list(self.rows.scan(pane, part, most=rows)), pane)

    def _of(self, pieces: list[tuple[KeyColumns, I64, I64, I64]], pane: int) -> Iterator[pa.Table]:
        if pieces:
            schema = plain_key_schema(self.spec.key_schema)
            hashes = np.concatenate([p[1] for p in pieces])
            cells = np.concatenate([p[3] for p in pieces])
            columns = tuple(_stored([p[0] for p in pieces], k) for k in range(len(schema)))
            slots = np.arange(len(hashes), dtype=np.int32)
            found = Rows(slots, np.full(len(hashes), pane, np.int64), cells)
            yield rows_to_table(self.spec, KeyView(schema, hashes, columns), found)


def _stored(pieces: list[KeyColumns], k: int) -> tuple[I64, None, np.ndarray, int]:
    """Return one fixed-width key column as an index stores it: values, no starts, validity, number of nulls."""
    values, valid = [], []
    for piece in pieces:
        column = piece[k]
        assert isinstance(column, FixedColumn)  # noqa: S101 - files have keys of fixed width
        values.append(column.values)
        count = len(column.values)
        bits = column.bitmap
        valid.append(np.unpackbits(bits, count=count, bitorder="little") if len(bits) else np.ones(count, np.uint8))
    known = np.concatenate(valid)
    return np.concatenate(values), None, known, int(len(known) - known.sum())
