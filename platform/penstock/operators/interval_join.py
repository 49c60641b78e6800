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

from penstock.core.errors import GraphError
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.operators.join_schema import (
    join_schema,
    key_schema_of,
    parse_interval,
    parse_sides,
    validate_join,
    value_fields,
)
from penstock.operators.join_side import WATERMARK, Arrived, JoinInput, JoinOutput, below
from penstock.operators.operator import Operator, OperatorSnapshot

if TYPE_CHECKING:
    from penstock.core.elements import Barrier, Batch, Watermark
    from penstock.core.permits import CommitPermit
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.state.keyed import KeyedStateStore


class IntervalJoinOperator(Operator):
    """Inner join of two keyed inputs by event time."""

    _store: KeyedStateStore

    def open(self, context: OperatorContext) -> None:
        """Declare (and so restore) both sides' rows, and take up the watermark where it was."""
        config, (left, right) = context.spec.config, context.input_schemas
        uid = context.spec.uid
        if context.keyed_state is None:
            raise GraphError(f"{uid}: a join needs keyed state", hint="key both sides before the join")
        validate_join(config, left, right, uid)
        sides = parse_sides(config)
        self._uid = uid
        self._interval = parse_interval(config)
        self._store = context.keyed_state
        self._state = self._store.row_state(key_schema_of(sides, left))
        fields = [value_fields(left, sides.left), value_fields(right, sides.right)]
        self._tables = [self._state.timed_rows(n, tuple(f)) for n, f in zip(("left", "right"), fields, strict=True)]
        self._store.check_all_declared()
        self._names = [[field.name for field in side] for side in fields]
        self._keys = [list(sides.left), list(sides.right)]
        self._input = JoinInput(context, sides, self._state)
        self._output = JoinOutput(join_schema(config, left, right), sides, left, right)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Emit what the rows meet of the other side, and keep them."""
        arrived = self._input.take(batch, input_index)
        if arrived is None:
            return
        self._meet(arrived, input_index, out)
        self._tables[input_index].add(arrived.slots, arrived.times, arrived.columns(self._names[input_index]))
        self._state.settle()

    def _meet(self, arrived: Arrived, side: int, out: Collector) -> None:
        lower, upper = self._interval.lower, self._interval.upper
        if side:
            lower, upper = -upper, -lower
        keys, own = arrived.columns(self._keys[side]), arrived.columns(self._names[side])
        spans = arrived.times + lower, arrived.times + upper
        for asking, found, run in self._tables[1 - side].pairs(arrived.slots, *spans):
            rows, met = pa.array(asking), pa.array(found)
            mine = [column.take(rows) for column in own]
            others = [column.take(met) for column in run.values]
            times = np.maximum(arrived.times[asking], run.times[found])
            left, right = (others, mine) if side else (mine, others)
            self._output.add(([key.take(rows) for key in keys], left, right), times, out)
        self._output.flush(out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Forget the rows that no row can meet any more, then pass the watermark on."""
        if watermark.timestamp > self._input.watermarks.low:
            self._input.watermarks.advance(watermark.timestamp)
            left, right = self._tables
            left.clean(below(watermark.timestamp, max(self._interval.upper, 0) + 1))
            right.clean(below(watermark.timestamp, max(-self._interval.lower, 0) + 1))
        out.watermark(watermark)

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze the rows of both sides; the watermark goes with the hash range it holds for."""
        items = self._input.watermarks.items()
        watermark = OperatorStateSnapshot(uid=self._uid, name=WATERMARK, mode="union", items=items)
        return OperatorSnapshot(keyed=self._store.freeze(barrier.checkpoint_id), operator=(watermark,))

    def notify_complete(self, permit: CommitPermit) -> None:
        """Let the segments of the checkpoint be compacted."""
        self._store.completed(permit.checkpoint_id)
