"""Lateness in keyed operators: the watermark by hash range after a rescale, and the handling of late rows.

Used by the window, join and process operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP, Batch
from penstock.core.keygroup import HashRange
from penstock.eventtime.watermarks import initial_watermark

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from penstock.operators.operator import Collector, OperatorMetrics


class RangeWatermarks:
    """One watermark (`low`), and the ranges that are ahead of it."""

    def __init__(self, owned: HashRange, low: int, ahead: list[tuple[HashRange, int]]) -> None:
        """Make watermarks; `ahead`: disjoint ranges whose watermark is above `low`."""
        self._owned = owned
        self._low = low
        self._ahead = ahead

    @classmethod
    def restored(cls, owned: HashRange, items: Iterable[Any]) -> RangeWatermarks:
        """Restore from all former subtasks' `items()`, for the range owned now; the end of time is not restored."""
        pieces = []
        for item in items:
            common = HashRange(item["hash_low"], item["hash_high"]).intersect(owned)
            if common is not None:
                pieces.append((common, initial_watermark(int(item["watermark"]))))
        covered = sum(r.high - r.low + 1 for r, _ in pieces) == owned.high - owned.low + 1
        low = min((w for _, w in pieces), default=MIN_TIMESTAMP) if covered else MIN_TIMESTAMP
        return cls(owned, low, [(r, w) for r, w in pieces if w > low])

    @property
    def low(self) -> int:
        """The watermark that holds for every key."""
        return self._low

    @property
    def differ(self) -> bool:
        """Whether any range is ahead."""
        return bool(self._ahead)

    def ahead(self) -> list[tuple[HashRange, int]]:
        """Return the ranges that are ahead, with their watermarks."""
        return self._ahead

    def advance(self, watermark: int) -> None:
        """Advance to `watermark`, which the operator's input has reached."""
        self._low = max(self._low, watermark)
        self._ahead = [(r, w) for r, w in self._ahead if w > self._low]

    def items(self) -> tuple[dict[str, int], ...]:
        """Return the JSON-able form: disjoint ranges that cover the owned one."""
        items = []
        at = self._owned.low
        for owned, watermark in sorted(self._ahead):
            if owned.low > at:
                items.append(_item(at, owned.low - 1, self._low))
            items.append(_item(owned.low, owned.high, watermark))
            at = owned.high + 1
        if at <= self._owned.high:
            items.append(_item(at, self._owned.high, self._low))
        return tuple(items)


def _item(low: int, high: int, watermark: int) -> dict[str, int]:
    return {"hash_low": low, "hash_high": high, "watermark": watermark}


def saturating_minus(watermark: int, duration: int) -> int:
    """Return `watermark - duration`, at least `MIN_TIMESTAMP`."""
    return max(watermark - duration, MIN_TIMESTAMP)


class LateRowReceiver(Protocol):
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
