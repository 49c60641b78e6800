"""The output of a process function during one batch, converted to columns: main rows and side outputs.

Called by `penstock.operators.process.keyed_process`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import TS_COLUMN, Batch
from penstock.operators.rows.columns import assemble, without_ts
from penstock.operators.rows.rows import RowEncoder

if TYPE_CHECKING:
    from penstock.operators.operator import Collector


class ProcessOutput:
    """Rows, each with the time of its input row or timer."""

    def __init__(self, schema: pa.Schema, sides: dict[str, pa.Schema], where: str) -> None:
        """Make an empty output; `schema` and `sides` are the outputs' schemas, with `__ts` if there is event time."""
        self.rows: list[Any] = []
        #: One entry for each row or timer with output: number of rows so far, and its time.
        self.ends: list[int] = []
        self.times: list[int] = []
        #: tag -> (time, row).
        self.sides: dict[str, list[tuple[int, Any]]] = {tag: [] for tag in sides}
        self._timed = TS_COLUMN in schema.names
        self._encoder = RowEncoder(schema, where)
        self._side_encoders = {tag: RowEncoder(side, f"{where}, side output {tag!r}") for tag, side in sides.items()}

    def emit(self, out: Collector) -> None:
        """Emit all rows and clear."""
        for tag, found in self.sides.items():
            if found:
                times = pa.array([time for time, _ in found], pa.int64()) if self._timed else None
                out.side(tag, self._batch(self._side_encoders[tag], [row for _, row in found], times))
                found.clear()
        if not self.rows:
            return
        times = None
        if self._timed:
            ends = np.array([0, *self.ends], np.int64)
            times = pa.array(np.repeat(np.array(self.times, np.int64), ends[1:] - ends[:-1]))
        batch = self._batch(self._encoder, self.rows, times)
        self.rows.clear()
        self.ends.clear()
        self.times.clear()
        out.batch(batch)

    @staticmethod
    def _batch(encoder: RowEncoder, rows: list[Any], times: pa.Array | None) -> Batch:
        return Batch(assemble(encoder.columns(rows), without_ts(encoder.schema), times))
