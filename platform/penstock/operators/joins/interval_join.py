"""Interval join (kind `interval_join`): joins a left row with the right rows of its key within time bounds.

A row that is not late is joined with the kept rows of the other side, and is kept until the watermark has passed all
rows that it could still be joined with. So each pair of rows within the bounds that were not late is emitted once, as
soon as both have arrived, with the later of their times. In an outer join, an unmatched row is emitted when it can no
longer match; the rows of the other side are kept until then, so no row has to record whether it has matched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.joins.join_operator import JoinOperator, JoinOutput, JoinState, OnTimeRows, OutputQueue
from penstock.operators.joins.join_schema import is_outer, join_schema, parse_interval, parse_sides, validate_join
from penstock.operators.lateness import saturating_minus
from penstock.operators.operator import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.elements import Batch
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.state.tiers.join_runs import Run


class IntervalJoinOperator(JoinOperator):
    """Inner or outer join of two keyed inputs by event time."""

    def open(self, context: OperatorContext) -> Capabilities:
        """Declare (and so restore) both sides' rows and the watermark."""
        config, (left, right) = context.spec.config, context.input_schemas
        validate_join(config, left, right, context.spec.uid)
        sides = parse_sides(config)
        self._interval = parse_interval(config)
        self._state = JoinState(context, sides, self._interval.description, self._interval.unmatched)
        self._state.check_all_declared()
        self._keys = list(sides.left), list(sides.right)
        self._output = JoinOutput(join_schema(config, left, right), sides, left, context.limits.output_rows)
        self._max_pairs = context.limits.join_pairs
        self._types = self._state.types
        self.output_queue = OutputQueue(context.limits.output_rows)
        return self.output_queue.capabilities()

    def _take(self, batch: Batch, side: int, out: Collector) -> Iterator[Batch]:
        """Yield the pairs of these rows with the other side, and keep the rows."""
        arrived = self._state.take(batch, side, out)
        if arrived is not None:
            yield from self._match(arrived, side)
            self._state.keep(arrived, side)

    def _match(self, arrived: OnTimeRows, side: int) -> Iterator[Batch]:
        lower, upper = self._interval.lower, self._interval.upper
        if side:
            lower, upper = -upper, -lower
        keys, own = arrived.columns(self._keys[side]), arrived.columns(self._state.names[side])
        lows, highs = arrived.times + lower, arrived.times + upper
        for run, places, slots in self._state.tables[1 - side].matching_runs(arrived.slots, lows, highs):
            for some, found in run.pairs(slots, lows[places], highs[places], self._max_pairs):
                asking = places[some]
                rows, matched = pa.array(asking), pa.array(found)
                mine = [column.take(rows) for column in own]
                others = [column.take(matched) for column in run.values]
                times = np.maximum(arrived.times[asking], run.times[found])
                left, right = (others, mine) if side else (mine, others)
                yield from self._output.add(([key.take(rows) for key in keys], left, right), times)
        yield from self._output.flush()

    def _advance_to(self, watermark: int) -> Iterator[Batch]:
        """Yield unmatched rows that can no longer match, and delete rows that are no longer needed."""
        for side in (0, 1):
            if is_outer(self._interval.how, side):
                yield from self._unmatched(side, watermark)
        yield from self._output.flush()
        self._state.watermarks.advance(watermark)
        for side, table in enumerate(self._state.tables):
            table.clean(saturating_minus(watermark, self._interval.needed(side) + 1))
        self._state.rows.settle()

    def _unmatched(self, side: int, watermark: int) -> Iterator[Batch]:
        """Yield the unmatched rows of a side whose time to match ends, with that end as their time."""
        over = self._interval.reach(side) + 1
        low, high = saturating_minus(self._state.watermarks.low, over), saturating_minus(watermark, over)
        for part in self._state.parts(low, high):
            run = self._state.tables[side].within(low, high, part)
            if run is not None:
                yield from self._unmatched_of_run(run, side, over)

    def _unmatched_of_run(self, run: Run, side: int, over: int) -> Iterator[Batch]:
        hashes = self._state.rows.index.hashes[run.slots]
        unmatched = run.times + over > self._state.marks(hashes)  # otherwise it was emitted before
        lower, upper = self._interval.lower, self._interval.upper
        lows, highs = run.times + (-upper if side else lower), run.times + (-lower if side else upper)
        for other, asking, slots in self._state.tables[1 - side].matching_runs(run.slots, lows, highs):
            unmatched[asking] &= other.ranges(slots, lows[asking], highs[asking])[1] == 0
        places = np.flatnonzero(unmatched).astype(np.int32)
        for first in range(0, len(places), self._max_pairs):
            piece = places[first : first + self._max_pairs]
            chosen, slots = pa.array(piece), run.slots[piece]
            mine, none = [c.take(chosen) for c in run.values], [pa.nulls(len(piece), t) for t in self._types[1 - side]]
            left, right = (none, mine) if side else (mine, none)
            yield from self._output.add((self._state.rows.keys(slots), left, right), run.times[piece] + over)
