"""Event-time windows in a time zone (kind `zoned_window`): days, and parts of days, by the wall clock.

The operator of plain windows, with wall-clock time as its time: rows and watermarks are converted on input, the bounds
of windows on output. Its state (`panes`, the watermark) is in wall-clock time too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.elements import TS_COLUMN
from penstock.operators.aggregates.time_zones import TimeZone
from penstock.operators.windows.window_aggregate import WindowAggregateOperator

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.elements import Watermark
    from penstock.eventtime.windows import TimeWindow
    from penstock.kernels.compiler.compile import I64
    from penstock.operators.operator import Collector, OperatorContext


class ZonedWindowOperator(WindowAggregateOperator):
    """Aggregates by key and window of a zone's wall clock."""

    def open(self, context: OperatorContext) -> None:
        """Restore the windows."""
        self._zone = TimeZone(context.spec.config["window"]["time_zone"])
        super().open(context)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Fire the windows whose end the clock has passed for the last time, then emit the watermark."""
        self._advance(self._zone.local_watermark(watermark.timestamp), out)
        out.watermark(watermark)

    def _times(self, data: pa.RecordBatch) -> I64:
        return self._zone.local(data.column(TS_COLUMN).to_numpy())

    def _bounds(self, window: TimeWindow) -> tuple[int, int, int]:
        zone = self._zone
        start, end = zone.instant(window.start, last=False), zone.instant(window.end, last=False)
        # a skipped end is at the clock change; at a repeated end, no row of the window can follow
        time = min(zone.instant(window.end, last=True) - 1, zone.instant(window.max_timestamp, last=True))
        return start, end, time
