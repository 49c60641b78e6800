"""Interval join (kind `interval_join`): a left row meets the right rows of its key with a time near its own.

A row that is not late meets what the other side has kept and is kept itself until the watermark has passed all that it
could still meet. So every pair within the bounds of rows that were not late comes out once, as soon as both are there,
with the later of their times.
"""

# ruff: noqa: ARG002 - hooks take what the protocol gives them

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.join_schema import join_schema, parse_interval, parse_sides, validate_join
from penstock.operators.join_side import Arrived, JoinOutput, JoinState, below
from penstock.operators.operator import Operator, OperatorSnapshot

if TYPE_CHECKING:
    from penstock.core.elements import Barrier, Batch, Watermark
    from penstock.core.permits import CommitPermit
    from penstock.operators.operator import Collector, OperatorContext


class IntervalJoinOperator(Operator):
    """Inner join of two keyed inputs by event time."""

    def open(self, context: OperatorContext) -> None:
        """Declare (and so restore) both sides' rows, and take up the watermark where it was."""
        config, (left, right) = context.spec.config, context.input_schemas
        validate_join(config, left, right, context.spec.uid)
        sides = parse_sides(config)
        self._interval = parse_interval(config)
        self._state = JoinState(context, sides)
        self._state.check_all_declared()
        self._keys = list(sides.left), list(sides.right)
        self._output = JoinOutput(join_schema(config, left, right), sides, left)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Emit what the rows meet of the other side, and keep them."""
        arrived = self._state.take(batch, input_index)
        if arrived is not None:
            self._meet(arrived, input_index, out)
            self._state.keep(arrived, input_index)

    def _meet(self, arrived: Arrived, side: int, out: Collector) -> None:
        lower, upper = self._interval.lower, self._interval.upper
        if side:
            lower, upper = -upper, -lower
        keys, own = arrived.columns(self._keys[side]), arrived.columns(self._state.names[side])
        lows, highs = arrived.times + lower, arrived.times + upper
        for run in self._state.tables[1 - side].runs():
            for asking, found in run.pairs(arrived.slots, lows, highs):
                rows, met = pa.array(asking), pa.array(found)
                mine = [column.take(rows) for column in own]
                others = [column.take(met) for column in run.values]
                times = np.maximum(arrived.times[asking], run.times[found])
                left, right = (others, mine) if side else (mine, others)
                self._output.add(([key.take(rows) for key in keys], left, right), times, out)
        self._output.flush(out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Forget the rows that no row can meet any more, then pass the watermark on."""
        if watermark.timestamp > self._state.watermarks.low:
            self._state.watermarks.advance(watermark.timestamp)
            left, right = self._state.tables
            left.clean(below(watermark.timestamp, max(self._interval.upper, 0) + 1))
            right.clean(below(watermark.timestamp, max(-self._interval.lower, 0) + 1))
        out.watermark(watermark)

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze the rows of both sides."""
        return self._state.snapshot(barrier.checkpoint_id)

    def notify_complete(self, permit: CommitPermit) -> None:
        """Let the segments of the checkpoint be compacted."""
        self._state.completed(permit.checkpoint_id)
