"""Event time assigned after the source (kind `assign_watermarks`): `.assign_timestamps_and_watermarks(strategy)`.

The operator ignores the input's watermarks and statuses, except the end of the input: rows get the time of the
strategy's column, and watermarks are derived from them. The input of a subtask is one split. Its watermark is in the
snapshot, so a row is late after a restore exactly if it was late before. Other fields of a user-defined generator are
not saved.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Watermark, WatermarkStatus
from penstock.core.errors import BadRecordError
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.eventtime.split_watermarks import SplitWatermarks
from penstock.eventtime.strategy import strategy_from_builtins
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot
from penstock.operators.rows.columns import with_ts, without_ts
from penstock.operators.sources.source_watermarks import (
    IngestionTime,
    TimestampColumn,
    advance,
    emit_exact,
    source_watermarks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.core.elements import Barrier
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.operators.sources.source_watermarks import Int64s

STATE = "watermark"
_INPUT = "input"
_ORIGIN = ((_INPUT,), None)
#: Interval of calls to generators and of checks for idle input.
_INTERVAL_MS = 200


class AssignWatermarksOperator(Operator):
    """Assigns event time to rows, and emits watermarks."""

    def open(self, context: OperatorContext) -> Capabilities:
        self._context = context
        self._where = f"watermarks {context.spec.uid!r}"
        rows = without_ts(context.input_schemas[0])
        self._schema = with_ts(rows)
        self._strategy = strategy_from_builtins(context.spec.config["watermarks"])
        floor = _restored_floor(i for s in context.restored if s.name == STATE for i in s.items)
        self._watermarks = SplitWatermarks(self._strategy.idle_timeout_ms, floor)
        self._watermarks.add(_INPUT, None)
        timestamp = self._strategy.timestamp
        self._times = TimestampColumn(timestamp, self._strategy.unit, rows) if timestamp else None
        self._progress = source_watermarks(self._strategy, context.spec.payload, context, self._where, floor)
        self._floor_due = floor > MIN_TIMESTAMP
        self._idle = self._ended = False
        periodic = self._strategy.kind in ("generator", "ingestion") or self._strategy.idle_timeout_ms is not None
        self._periodic = periodic
        self._next_ms = float(context.clock.now_ms())
        self._checked_ms = context.clock.monotonic_ms()
        return Capabilities(timers=self, split_watermarks=self.split_watermarks)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Emit rows with their event time, then the watermark that results."""
        self._emit_floor(out)
        data = batch.data.select(without_ts(self._schema).names)
        times = self._times_of(data)
        self._watermarks.active(_INPUT)
        self._set_idle(out, idle=False)
        timed = pa.RecordBatch.from_arrays([*data.columns, pa.array(times)], schema=self._schema)
        if self._strategy.exact:
            emit_exact((timed, times), _ORIGIN, self._progress, self._watermarks, out)
            return
        marks = self._progress.after(timed, times, _ORIGIN)
        out.batch(Batch(timed))
        advance(self._watermarks, _ORIGIN, marks)
        self._emit_progress(out)

    def _times_of(self, data: pa.RecordBatch) -> Int64s:
        if self._times is None:
            assert isinstance(self._progress, IngestionTime)  # noqa: S101 - the one strategy without a time column
            return self._progress.stamp(data.num_rows)
        times, bad = self._times.read(data)
        if bad is not None:
            value = self._times.raw(data)[int(np.flatnonzero(bad)[0])].as_py()
            msg = f"{self._where}: event time {self._times.name!r} is null or outside the years 1 to 9999: {value}"
            raise BadRecordError(msg, hint=f"{self._times.unit_hint(value)}leave such rows out before: .filter(...)")
        return times

    def split_watermarks(self) -> SplitWatermarks:
        """The watermark of its input."""
        return self._watermarks

    # --- watermarks -------------------------------------------------------------------------------------------------

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Handle the end of the input; ignore other watermarks."""
        self._emit_floor(out)
        if watermark.timestamp == MAX_TIMESTAMP:
            self._ended = True
            self._set_idle(out, idle=False)
            out.watermark(watermark)

    def process_status(self, status: WatermarkStatus, out: Collector) -> None:
        """Ignore the input's status: the strategy decides on idleness."""

    @property
    def next_timer_ms(self) -> float | None:
        """Return the time of the next check, as `Clock.now_ms` counts."""
        return self._next_ms if (self._periodic or self._floor_due) and not self._ended else None

    def process_time(self, now_ms: int, out: Collector) -> None:
        """Call the generator, and check for idle input."""
        self._emit_floor(out)
        now = self._context.clock.monotonic_ms()
        # after a long pause, unread input may be waiting: then it was not idle
        quiet = (_INPUT,) if now - self._checked_ms <= 3 * _INTERVAL_MS else ()
        self._watermarks.advance_time(now, quiet, backpressured=False)
        self._checked_ms, self._next_ms = now, now_ms + _INTERVAL_MS
        for split_id, mark in self._progress.between((_INPUT,)):
            self._watermarks.advance(split_id, mark)
        self._emit_progress(out)

    def _emit_floor(self, out: Collector) -> None:
        """Emit the watermark that was emitted before a restore."""
        if self._floor_due:
            self._floor_due = False
            out.watermark(Watermark(self._watermarks.combined))

    def _emit_progress(self, out: Collector) -> None:
        watermark = self._watermarks.take_advance()
        if watermark is not None:
            out.watermark(Watermark(watermark))
        self._set_idle(out, idle=self._watermarks.idle)

    def _set_idle(self, out: Collector, *, idle: bool) -> None:
        if idle != self._idle:
            self._idle = idle
            out.status(WatermarkStatus(idle))

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Save the watermark of an active input: none for an idle one, which holds none back, or an ended one."""
        if self._ended:
            return OperatorSnapshot()
        combined = self._watermarks.combined
        items: tuple[Any, ...] = ({"idle": combined},) if self._idle else (combined,)
        state = OperatorStateSnapshot(uid=self._context.spec.uid, name=STATE, mode="union", items=items)
        return OperatorSnapshot(operator=(state,))


def _restored_floor(items: Iterable[Any]) -> int:
    """Return the least watermark of active subtasks; if all were idle, the greatest."""
    saved = tuple(items)
    active = [int(item) for item in saved if not isinstance(item, dict)]
    return min(active) if active else max((int(item["idle"]) for item in saved), default=MIN_TIMESTAMP)
