"""Handling of late rows: they are counted, or emitted to a side output (`.late_to(tag)`).

Used by the window operators; emitted late rows have the columns of the window's input as the user knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.core.elements import Batch

if TYPE_CHECKING:
    import numpy as np

    from penstock.operators.operator import Collector, OperatorMetrics


class TakesLate(Protocol):
    """A receiver of late rows."""

    def take(self, data: pa.RecordBatch, late: np.ndarray, out: Collector) -> None:
        """Take the late rows of `data`: those where `late` is true."""


class LateRows:
    """The receiver of an operator's late rows."""

    def __init__(self, config: dict[str, Any], metrics: OperatorMetrics) -> None:
        """`config` of the operator; without `late_to` in it, rows are counted in `numLateRecordsDropped`."""
        late = config.get("late_to")
        self._metrics = metrics
        self._tag: str | None = late["tag"] if late else None
        self._columns: list[str] = late["columns"] if late else []

    @property
    def routed(self) -> bool:
        """Whether late rows are emitted to a side output."""
        return self._tag is not None

    def count(self, rows: int) -> None:
        """Count late rows that are dropped."""
        self._metrics.late_records_dropped += rows

    def take(self, data: pa.RecordBatch, late: np.ndarray, out: Collector) -> None:
        """Take the late rows of `data`: those where `late` is true."""
        rows = int(late.sum())
        if self._tag is None:
            self.count(rows)
        elif rows:
            out.side(self._tag, Batch(data.filter(pa.array(late)).select(self._columns)))
