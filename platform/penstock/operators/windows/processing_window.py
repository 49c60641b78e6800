"""The window operator over processing time (kind `processing_window`): aggregates of the windows of the clock.

It gives rows the present time and fires the windows of a `WindowAggregateOperator` by timer, not by watermark.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Batch, Watermark
from penstock.operators.operator import Operator
from penstock.operators.rows.columns import with_ts, without_ts
from penstock.operators.windows.window_aggregate import WindowAggregateOperator

if TYPE_CHECKING:
    from penstock.core.elements import Barrier
    from penstock.operators.operator import Capabilities, Collector, OperatorContext, OperatorSnapshot


class ProcessingWindowOperator(Operator):
    """Aggregates by key and window of processing time."""

    #: End of the next window (ms); None: no window is open.
    _next_ms: float | None = None

    def open(self, context: OperatorContext) -> Capabilities:
        """Restore the windows; those that ended in the meantime are due at once."""
        self._rows = with_ts(without_ts(context.input_schemas[0]))
        self._windows = WindowAggregateOperator()
        opened = self._windows.open(dataclasses.replace(context, input_schemas=(self._rows,)))
        assert opened.combined_schema is not None  # noqa: S101 - windows of aggregates take combined rows
        assert context.keyed_state is not None  # noqa: S101 - the windows have checked it
        context.keyed_state.finish_restore()  # the timer is the first end of all windows, and rows fire what is due
        self._combined = opened.combined_schema
        self._clock = context.clock
        self._last = self._windows.fired_to + 1
        self._set_timer()
        return dataclasses.replace(opened, timers=self)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Add the rows to the windows of the present time."""
        now = self._advance_clock(out)
        schema = self._combined if batch.combined else self._rows
        if batch.combined:  # their time is the start of a pane
            now = self._windows.pane_of(now)
        times = pa.array(np.full(batch.num_rows, now, np.int64))
        columns = [times if name == TS_COLUMN else batch.data.column(name) for name in schema.names]
        data = pa.RecordBatch.from_arrays(columns, schema=schema)
        self._windows.process_batch(Batch(data, combined=batch.combined), input_index, out)
        if self._next_ms is None:
            self._set_timer()

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Emit the watermark; at the end of all input, emit the open windows first."""
        last = self._windows.last_end() if watermark.timestamp == MAX_TIMESTAMP else None
        if last is not None:
            self._last = last
            self._fire_until(last, out)
        out.watermark(watermark)

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze the windows."""
        return self._windows.snapshot(barrier, out)

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
        self._windows.advance(now - 1, out)
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer to the first window with rows that has not fired."""
        end = self._windows.next_end()
        self._next_ms = None if end is None else -(-end // 1000)
