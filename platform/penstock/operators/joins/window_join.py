"""Window join (kind `window_join`): in each event-time window every left row is joined with every right row of its key.

Rows wait until the watermark has reached the window's last microsecond; then all pairs are emitted and, in an outer
join, the unmatched rows, with the event time of the window's end. A row is late when all its windows have been emitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN, Batch
from penstock.operators.joins.join_operator import JoinOperator, JoinOutput, JoinState, OutputQueue
from penstock.operators.joins.join_schema import (
    is_outer,
    parse_join_window,
    parse_sides,
    validate_join,
    window_join_schema,
)
from penstock.operators.operator import Capabilities
from penstock.operators.windows.window_aggregate import due_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.eventtime.windows import TimeWindow
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.state.tiers.join_runs import Run


class WindowJoinOperator(JoinOperator):
    """Inner or outer join of two keyed inputs by window."""

    def open(self, context: OperatorContext) -> Capabilities:
        """Declare (and so restore) both sides' rows and the watermark."""
        config, (left, right) = context.spec.config, context.input_schemas
        validate_join(config, left, right, context.spec.uid)
        sides = parse_sides(config)
        self._window = parse_join_window(config)
        self._state = JoinState(context, sides, self._window.description)
        self._state.check_all_declared()
        self._schema = window_join_schema(config, left, right)
        self._output = JoinOutput(self._schema, sides, left, context.limits.output_rows)
        self._max_pairs = context.limits.join_pairs
        self.output_queue = OutputQueue(context.limits.output_rows)
        #: Starts of the panes of rows in memory.
        self._panes: set[int] = set()
        for table in self._state.tables:
            table.watch_fetched(self._add_panes)
            for run in table.runs(MIN_TIMESTAMP, MAX_TIMESTAMP):
                self._add_panes(run.times)
        return self.output_queue.capabilities()

    def _take(self, batch: Batch, side: int, out: Collector) -> Iterator[Batch]:
        """Keep the rows that are in an open window."""
        window = self._window
        if window.slide > window.size:  # rows between two windows belong to none
            times = batch.data.column(TS_COLUMN).to_numpy()
            batch = Batch(batch.data.filter(pa.array((times - window.offset) % window.slide < window.size)))
        arrived = self._state.take(batch, side, out, self._last_use)
        if arrived is not None:
            self._add_panes(arrived.times)
            self._state.keep(arrived, side)
        yield from ()

    def _advance_to(self, watermark: int) -> Iterator[Batch]:
        """Yield the results of the windows that close, in order, then delete rows that are in no open window."""
        window, before = self._window, self._state.watermarks.low
        if self._closed(watermark) > self._closed(before):
            self._state.fetch_until(self._closed(watermark))
        for due in due_windows(window, self._panes, before, watermark):
            yield from self._fire(due)
        yield from self._output.flush()
        self._state.watermarks.advance(watermark)
        closed = self._last(watermark + 1 - window.size)
        self._panes = {pane for pane in self._panes if pane >= closed + window.slide}
        for table in self._state.tables:
            table.clean(max(MIN_TIMESTAMP, min(closed + window.slide - 1, MAX_TIMESTAMP)))
        self._state.rows.settle()

    # --- windows ----------------------------------------------------------------------------------------------------

    def _last(self, time: Any) -> Any:
        """Return the start of the last windows that begin at `time` or before."""
        return time - (time - self._window.offset) % self._window.slide

    def _closed(self, watermark: int) -> int:
        """Return the latest time of a row in windows that the watermark has closed."""
        window = self._window
        step = window.step or window.slide
        return watermark - (watermark + 1 - window.offset - window.size) % step

    def _last_use(self, times: I64) -> I64:
        """Return the last watermark before which rows are not late."""
        last: I64 = self._last(times)
        return last + (self._window.size - 2)

    def _add_panes(self, times: I64) -> None:
        step = self._window.step or self._window.slide
        self._panes.update(np.unique(times - (times - self._window.offset) % step).tolist())

    def _fire(self, window: TimeWindow) -> Iterator[Batch]:
        start, end = window
        for part in self._state.parts(start, end - 1):
            tables = self._state.tables
            left, right = (self._of_window(table.within(start, end - 1, part), end) for table in tables)
            yield from self._join(left, right, window)

    def _join(self, left: Run | None, right: Run | None, window: TimeWindow) -> Iterator[Batch]:
        start, end = window
        matched = tuple(np.zeros(0 if run is None else len(run.slots), np.bool_) for run in (left, right))
        if left is not None and right is not None:
            lows, highs = np.full(len(left.slots), start), np.full(len(left.slots), end - 1)
            for asking, found in right.pairs(left.slots, lows, highs, self._max_pairs):
                matched[0][asking], matched[1][found] = True, True
                columns = self._taken(left, asking), self._taken(right, found)
                yield from self._add(left.slots[asking], columns, window)
        for side, run in enumerate((left, right)):
            if run is not None and is_outer(self._window.how, side):
                for unmatched in _row_chunks(np.flatnonzero(~matched[side]).astype(np.int32), self._max_pairs):
                    mine, none = (
                        self._taken(run, unmatched),
                        [pa.nulls(len(unmatched), t) for t in self._state.types[1 - side]],
                    )
                    yield from self._add(run.slots[unmatched], (none, mine) if side else (mine, none), window)

    def _of_window(self, run: Run | None, end: int) -> Run | None:
        """Remove the rows of keys whose former subtask had already fired the window."""
        marks = self._state.watermarks
        if run is None or not marks.differ:
            return run
        hashes = self._state.rows.index.hashes[run.slots]
        open_still = np.ones(len(hashes), np.bool_)
        for owned, watermark in marks.ahead():
            if end - 1 <= watermark:
                open_still[(hashes >= owned.low) & (hashes <= owned.high)] = False
        return run.chosen(open_still) if open_still.any() else None

    def _taken(self, run: Run, rows: I32) -> list[pa.Array]:
        chosen = pa.array(rows)
        return [column.take(chosen) for column in run.values]

    def _add(self, slots: I32, columns: tuple[list[pa.Array], list[pa.Array]], bounds: TimeWindow) -> Iterator[Batch]:
        left, right = columns
        kind = self._schema.field("window_start").type
        ends = [pa.array(np.full(len(slots), bound)).view(kind) for bound in bounds]
        times = np.full(len(slots), bounds[1] - 1)
        yield from self._output.add((self._state.rows.keys(slots), left, [*right, *ends]), times)


def _row_chunks(rows: I32, limit: int) -> Iterator[I32]:
    for first in range(0, len(rows), limit):
        yield rows[first : first + limit]
