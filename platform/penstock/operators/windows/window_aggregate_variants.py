"""The window operator over processing time (`processing_window`), or over a zone's wall clock (`zoned_window`).

Both are subclasses of `WindowAggregateOperator`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Batch, Watermark
from penstock.operators.rows.columns import with_ts, without_ts
from penstock.operators.windows.window_aggregate import WindowAggregateOperator
from penstock.operators.windows.window_assigners import TimeZone

if TYPE_CHECKING:
    from penstock.eventtime.windows import TimeWindow
    from penstock.kernels.compiler.compile import I64
    from penstock.operators.operator import Capabilities, Collector, OperatorContext


class ProcessingWindowOperator(WindowAggregateOperator):
    """Aggregates by key and window of processing time."""

    #: End of the next window (ms); None: no window is open.
    _next_ms: float | None = None

    def open(self, context: OperatorContext) -> Capabilities:
        """Restore the windows; those that ended in the meantime are due at once."""
        rows = without_ts(context.input_schemas[0])
        self._rows = with_ts(rows)
        opened = super().open(dataclasses.replace(context, input_schemas=(self._rows,)))
        self._clock = context.clock
        self._last = max([self._watermarks.low, *(w for _, w in self._watermarks.ahead())]) + 1
        self._set_timer()
        return dataclasses.replace(opened, timers=self)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Add the rows to the windows of the present time."""
        now = self._advance_clock(out)
        schema = self._combined if batch.combined else self._rows
        if batch.combined:  # their time is the start of a pane
            now -= (now - self._config.offset) % self._config.pane
        times = pa.array(np.full(batch.num_rows, now, np.int64))
        columns = [times if name == TS_COLUMN else batch.data.column(name) for name in schema.names]
        data = pa.RecordBatch.from_arrays(columns, schema=schema)
        super().process_batch(Batch(data, combined=batch.combined), input_index, out)
        if self._next_ms is None:
            self._set_timer()

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Emit the watermark; at the end of all input, emit the open windows first."""
        panes = self._table.panes()
        if watermark.timestamp == MAX_TIMESTAMP and panes:
            self._last = panes[-1] + self._config.size
            self._fire_until(self._last, out)
        out.watermark(watermark)

    @property
    def next_timer_ms(self) -> float | None:
        """Return the end of the next window."""
        return self._next_ms

    def process_time(self, now_ms: int, out: Collector) -> None:  # noqa: ARG002 - the clock may have been set back
        """Fire the windows that have ended."""
        self._advance_clock(out)

    def _advance_clock(self, out: Collector) -> int:
        """Fire the windows that are due and return the time (us), which is monotonic: no fired window gets rows."""
        self._last = max(self._clock.now_ms() * 1000, self._last)
        if self._next_ms is not None and self._last >= self._next_ms * 1000:
            self._fire_until(self._last, out)
        return self._last

    def _fire_until(self, now: int, out: Collector) -> None:
        self._advance(now - 1, out)
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer to the first window with rows that has not fired."""
        due = self._due(self._table.panes(), self._watermarks.low, MAX_TIMESTAMP)
        self._next_ms = -(-due[0].end // 1000) if due else None


class ZonedWindowOperator(WindowAggregateOperator):
    """Aggregates by key and window of a zone's wall clock."""

    def open(self, context: OperatorContext) -> Capabilities:
        """Restore the windows."""
        self._zone = TimeZone(context.spec.config["window"]["time_zone"])
        return super().open(context)

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
