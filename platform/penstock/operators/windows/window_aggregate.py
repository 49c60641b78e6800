"""Tumbling, sliding and cumulative event-time windows with aggregates (`window_aggregate`, `zoned_window`).

Also both stages of the windows of a spread key (`partial_window`, `merged_window`). The windows that a watermark closes
are found from the panes with rows; the window join calls this too.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN, Batch, Watermark
from penstock.core.errors import GraphError, PenstockError
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.eventtime.windows import TimeWindow
from penstock.kernels.aggregates.pane_assignment import TIME_LIMIT, assign_panes
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.aggregates.combine import combined_schema, read_cells
from penstock.operators.lateness import LateRows, RangeWatermarks, saturating_minus
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot
from penstock.operators.windows.window_stages import WindowStage, stage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.core.elements import Barrier
    from penstock.kernels.compiler.compile import I64
    from penstock.operators.aggregates.aggregate_plan import AggregatePlan
    from penstock.operators.aggregates.aggregate_schema import WindowConfig
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.operators.windows.window_stages import WindowTime
    from penstock.state.cells.pane_memory import Fired
    from penstock.state.store import KeyedState
    from penstock.state.tables.pane_table import PaneTable

_UNASSIGNED = MIN_TIMESTAMP
_STATE = "panes"
_WATERMARK = "watermark"


class WindowSizes(Protocol):
    """Windows with known bounds, in microseconds."""

    @property
    def size(self) -> int:
        """Their length; for cumulative windows that of the longest."""

    @property
    def slide(self) -> int:
        """Distance of window starts; unused for cumulative windows."""

    @property
    def offset(self) -> int:
        """The start of one of them."""

    @property
    def step(self) -> int:
        """For cumulative windows the distance of ends; else 0."""


def due_windows(config: WindowSizes, panes: Iterable[int], before: int, watermark: int) -> list[TimeWindow]:
    """Return the windows over these panes whose last microsecond is in (before, watermark], by their ends."""
    windows_of = _cumulative if config.step else _sliding
    due = {window for pane in panes for window in windows_of(config, pane, before, watermark)}
    return sorted(due, key=lambda window: (window.end, window.start))


def _sliding(config: WindowSizes, pane: int, before: int, watermark: int) -> Iterator[TimeWindow]:
    last = pane - (pane - config.offset) % config.slide
    first = last - (last - (pane - config.size) - 1) // config.slide * config.slide
    first = first_at_least(first, before - config.size + 2, config.slide)  # the first one that ends after `before`
    for start in range(first, min(last, watermark - config.size + 1) + 1, config.slide):
        yield TimeWindow(start, start + config.size)


def _cumulative(config: WindowSizes, pane: int, before: int, watermark: int) -> Iterator[TimeWindow]:
    start = pane - (pane - config.offset) % config.size
    first = first_at_least(pane + config.step, before + 2, config.step)
    for end in range(first, min(start + config.size, watermark + 1) + 1, config.step):
        yield TimeWindow(start, end)


def first_at_least(value: int, least: int, step: int) -> int:
    """Return the first of value, value + step... that is at least `least`."""
    return value if value >= least else value + -(-(least - value) // step) * step


class WindowAggregateOperator(Operator):
    """Aggregates by key and window."""

    _config: WindowConfig
    _plan: AggregatePlan
    _stage: WindowStage
    _time: WindowTime
    _store: KeyedState
    _table: PaneTable
    _watermarks: RangeWatermarks

    def open(self, context: OperatorContext) -> Capabilities:
        """Declare (and so restore) the panes and the watermark."""
        if context.keyed_state is None:
            raise GraphError(f"{context.spec.uid}: a window needs keyed state", hint="key the stream before the window")
        self._context = context
        self._stage = stage_of(context.spec.config, context.input_schemas[0])
        self._config, self._plan, self._time = self._stage.config, self._stage.plan, self._stage.time
        self._store = context.keyed_state
        self._table = self._store.pane_table(_STATE, self._plan.spec)
        self._plan.heap = self._table.heap
        saved = [item for s in context.restored if s.name == _WATERMARK for item in s.items]
        self._watermarks = RangeWatermarks.restored(context.hash_range, saved)
        config = self._config
        self._window = np.array([config.pane, config.size, config.slide, config.offset], np.int64)
        self._counts = np.zeros(3, np.int64)
        self._panes = np.empty(0, np.int64)
        self._simple = config.plain
        self._late = LateRows(context.spec.config, context.metrics)
        schema, arriving = context.input_schemas[0], self._table.arriving
        combined = None if self._stage.merges else combined_schema(config.key, schema, self._plan.spec)
        return Capabilities(combined_schema=combined, arriving=arriving)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:  # noqa: ARG002 - one input
        """Add the rows to their panes."""
        data = batch.data
        if batch.combined:
            self._merge(data, data.column(TS_COLUMN).to_numpy())
            return
        if self._stage.merges:
            times = data.column(TS_COLUMN).to_numpy()
            self._merge(data, times - (times - self._config.offset) % self._config.pane)
            return
        if self._simple and self._table.adds_in_one_pass and not self._watermarks.differ:
            self._add(data, out)
            return
        panes = self._assign(data)
        if self._counts.any():
            data, panes = self._assigned_only(data, panes, out)
        keys = key_columns(data, self._config.key)
        hashes = hash_key_columns(keys, data.num_rows)
        if self._watermarks.differ:
            own = self._in_open_windows(data, hashes)
            if not own.all():
                self._late.take(data, ~own, out)
                data, panes = data.filter(pa.array(own)), panes[own]
                keys = key_columns(data, self._config.key)
                hashes = hash_key_columns(keys, data.num_rows)
        if data.num_rows == 0:
            return
        self._table.update(keys, hashes, panes, self._plan.inputs(data))
        if self._config.allowed_lateness:
            self._refire(data, panes, out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Fire the windows that the watermark closes, then emit it."""
        self.advance(self._time.of_watermark(watermark.timestamp), out)
        out.watermark(watermark)

    def advance(self, watermark: int, out: Collector) -> None:
        """Fire the windows that end at `watermark` or before."""
        before = self._watermarks.low
        if watermark > before:
            panes = self._table.panes()
            for window in due_windows(self._config, panes, before, watermark):
                self._fire(window, panes, out)
            self._watermarks.advance(watermark)
            self._table.drop_below(self._first_open_start(watermark))

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:  # noqa: ARG002 - nothing is emitted at a barrier
        """Freeze the panes; the watermark is saved with the hash range it holds for."""
        items: tuple[Any, ...] = self._watermarks.items()
        watermark = OperatorStateSnapshot(uid=self._context.spec.uid, name=_WATERMARK, mode="union", items=items)
        return OperatorSnapshot(keyed=self._store.freeze(barrier.checkpoint_id), operator=(watermark,))

    # --- rows -------------------------------------------------------------------------------------------------------

    def _add(self, data: pa.RecordBatch, out: Collector) -> None:
        """Add the rows in one pass, the path of almost every batch of almost every job."""
        if data.num_rows == 0:
            return
        first_open = self._first_open_start(self._watermarks.low)
        window = np.array([self._config.pane, self._config.offset, first_open, TIME_LIMIT - 1], np.int64)
        keys = key_columns(data, self._config.key)
        times = self._times(data)
        late, out_of_range = self._table.add(keys, times, window, self._plan.inputs(data))
        if out_of_range:
            raise self._time_out_of_range(out_of_range)
        if late and self._late.routed:
            self._late.take(data, times < first_open, out)
        else:
            self._late.count(late)

    def _merge(self, data: pa.RecordBatch, panes: I64) -> None:
        """Add rows of accumulators by key and pane, combined before the shuffle or made by partial windows."""
        cells = read_cells(data, self._plan.spec, self._table.heap)
        keys = key_columns(data, self._config.key)
        hashes = hash_key_columns(keys, data.num_rows)
        kept = panes >= self._first_open_start(self._watermarks.low)
        if self._watermarks.differ:
            kept &= self._in_open_windows(data, hashes)
        if not kept.all():
            self._late.count(int((cells[~kept, 0] >> 1).sum()))
            data, panes, cells = data.filter(pa.array(kept)), panes[kept], cells[kept]
            keys = key_columns(data, self._config.key)
            hashes = hash_key_columns(keys, data.num_rows)
        if data.num_rows:
            self._table.merge(keys, hashes, panes, cells)

    def _times(self, data: pa.RecordBatch) -> I64:
        """Return the times that determine the rows' windows."""
        return self._time.of_rows(data.column(TS_COLUMN).to_numpy())

    def _time_out_of_range(self, rows: int) -> PenstockError:
        return PenstockError(
            f"{self._context.spec.uid}: {rows} rows have an event time more than 73,000 years from 1970",
            hint="event time is microseconds since the epoch; check the unit of the timestamp column",
        )

    def _assign(self, data: pa.RecordBatch) -> I64:
        rows = data.num_rows
        if rows > len(self._panes):
            self._panes = np.empty(max(rows, 2 * len(self._panes)), np.int64)
        panes = self._panes[:rows]
        first_open = self._first_open_start(self._watermarks.low)
        assign_panes(self._times(data), self._window, first_open, panes, self._counts)
        return panes

    def _assigned_only(self, data: pa.RecordBatch, panes: I64, out: Collector) -> tuple[pa.RecordBatch, I64]:
        late, out_of_range, in_gaps = self._counts.tolist()
        if out_of_range:
            raise self._time_out_of_range(out_of_range)
        kept = panes != _UNASSIGNED
        if in_gaps:
            # a row between windows is late if the watermark has passed it, else it is in no window
            times, config = self._times(data), self._config
            in_window = (times - config.offset) % config.slide < config.size
            self._late.take(data, ~kept & (in_window | (times <= self._closed_to(data))), out)
        elif late and self._late.routed:
            self._late.take(data, ~kept, out)
        else:
            self._late.count(late)
        return data.filter(pa.array(kept)), panes[kept]

    def _closed_to(self, data: pa.RecordBatch) -> I64 | int:
        """Return the time up to which all windows are over, after a rescale by row; for rows in no window."""
        low = self._watermarks.low
        if not self._watermarks.differ:
            return saturating_minus(low, self._config.allowed_lateness)
        hashes = hash_key_columns(key_columns(data, self._config.key), data.num_rows)
        closed = np.full(len(hashes), saturating_minus(low, self._config.allowed_lateness), np.int64)
        for owned, watermark in self._watermarks.ahead():
            inside = (hashes >= owned.low) & (hashes <= owned.high)
            closed[inside] = saturating_minus(watermark, self._config.allowed_lateness)
        return closed

    def _in_open_windows(self, data: pa.RecordBatch, hashes: I64) -> np.ndarray:
        """Return, after a rescale, the rows with a window that was still open for their key's former subtask."""
        times = self._times(data)
        last_start = times - (times - self._config.offset) % self._config.slide
        is_open = np.ones(len(times), np.bool_)
        for owned, watermark in self._watermarks.ahead():
            inside = (hashes >= owned.low) & (hashes <= owned.high)
            is_open &= ~inside | (last_start >= self._first_open_start(watermark))
        return is_open

    # --- windows ----------------------------------------------------------------------------------------------------

    def _first_open_start(self, watermark: int) -> int:
        """Return the start of the first window that still accepts rows."""
        config = self._config
        closed = watermark - config.size + 1 - config.allowed_lateness
        start = closed - (closed - config.offset) % config.slide + config.slide
        return min(max(start, MIN_TIMESTAMP + 1), MAX_TIMESTAMP)

    def next_end(self) -> int | None:
        """Return the end (us) of the first window with rows that has not fired; None: there is none."""
        due = due_windows(self._config, self._table.panes(), self._watermarks.low, MAX_TIMESTAMP)
        return due[0].end if due else None

    def last_end(self) -> int | None:
        """Return the end (us) of the last window with rows; None: no pane has any."""
        panes = self._table.panes()
        return panes[-1] + self._config.size if panes else None

    def pane_of(self, time: int) -> int:
        """Return the start (us) of the pane at a time."""
        return time - (time - self._config.offset) % self._config.pane

    @property
    def fired_to(self) -> int:
        """The time (us) up to which windows have fired; after a rescale, of any former subtask."""
        return max([self._watermarks.low, *(w for _, w in self._watermarks.ahead())])

    def _fire(self, window: TimeWindow, panes: list[int], out: Collector) -> None:
        low, high = bisect_left(panes, window.start), bisect_left(panes, window.end)
        done = [r for r, w in self._watermarks.ahead() if window.max_timestamp <= w]
        for piece in self._table.fire(panes[low:high]):
            self._emit(piece if not done else _without_hash_ranges(piece, done), window, out)

    def _emit(self, piece: Fired, window: TimeWindow, out: Collector) -> None:
        if len(piece.hashes):
            out.batch(Batch(self._stage.rows_of(piece, self._time.bounds(window))))

    def _refire(self, data: pa.RecordBatch, panes: I64, out: Collector) -> None:
        """Emit windows again that had fired before this batch added rows; after a rescale that differs by key."""
        if not self._watermarks.differ:
            self._refire_until(data, panes, self._watermarks.low, out)
            return
        hashes = hash_key_columns(key_columns(data, self._config.key), data.num_rows)
        rest = np.ones(len(hashes), np.bool_)
        for owned, watermark in self._watermarks.ahead():
            inside = (hashes >= owned.low) & (hashes <= owned.high)
            rest &= ~inside
            self._refire_until(data.filter(pa.array(inside)), panes[inside], watermark, out)
        self._refire_until(data.filter(pa.array(rest)), panes[rest], self._watermarks.low, out)

    def _refire_until(self, data: pa.RecordBatch, panes: I64, watermark: int, out: Collector) -> None:
        """Emit, for the keys of these rows, their windows that `watermark` has fired and not yet closed."""
        config = self._config
        changed_panes = np.unique(panes).tolist()
        fired = due_windows(config, changed_panes, saturating_minus(watermark, config.allowed_lateness), watermark)
        every = self._table.panes()
        for window in fired:
            inside = (panes >= window.start) & (panes < window.end)
            rows = data.filter(pa.array(inside))
            keys = key_columns(rows, config.key)
            low, high = bisect_left(every, window.start), bisect_left(every, window.end)
            for piece in self._table.fire_keys(keys, hash_key_columns(keys, rows.num_rows), every[low:high]):
                self._emit(piece, window, out)


def _without_hash_ranges(piece: Fired, done: Iterable[Any]) -> Fired:
    """Remove keys whose former subtask had already fired the window."""
    kept = np.ones(len(piece.hashes), np.bool_)
    for owned in done:
        kept &= (piece.hashes < owned.low) | (piece.hashes > owned.high)
    mask = pa.array(kept)
    return type(piece)([k.filter(mask) for k in piece.keys], piece.hashes[kept], piece.cells[kept])
