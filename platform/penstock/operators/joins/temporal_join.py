"""Temporal join (kind `temporal_join`): a left row is joined with the newest version of its key at its event time.

Rows of the right side are versions: each is valid from its time until the next one's. A left row waits until the
watermark has reached it, so that every version up to its time has arrived. Of the versions that the watermark has
passed, the newest is kept as one value per key, which may be evicted from memory; later ones wait too. A left row at or
below the watermark is late; a late version applies to the left rows that are still waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.operators.joins.join_operator import JoinOperator, JoinOutput, JoinState, OutputQueue
from penstock.operators.joins.join_schema import parse_sides, temporal_join_schema, validate_temporal_join, value_fields
from penstock.operators.operator import Capabilities
from penstock.state.tiers.join_runs import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.elements import Batch
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.operators.operator import Collector, OperatorContext

_CURRENT = "current"
#: The time of a kept version.
_VERSION = pa.field("__version", pa.int64(), nullable=False)


class TemporalJoinOperator(JoinOperator):
    """Inner or left join of a keyed input with the versions of another."""

    def open(self, context: OperatorContext) -> Capabilities:
        """Declare (and so restore) rows, versions and the watermark."""
        config, (left, right) = context.spec.config, context.input_schemas
        validate_temporal_join(config, left, right, context.spec.uid)
        sides = parse_sides(config)
        self._outer = config["how"] == "left"
        self._state = JoinState(context, sides, "with versions")
        fields, marks = value_fields(right, sides.right), self._state.watermarks
        # a drain's end of time is not restored, so all versions are examined again
        reexamine, rows = marks.low == MIN_TIMESTAMP and not marks.differ, self._state.rows
        rows.keeps_all = reexamine and rows.fetcher is None
        self._current = rows.value(_CURRENT, (_VERSION, *fields))
        self._state.check_all_declared()
        if reexamine:
            for slots in rows.every_key():
                self._requeue_versions(slots)
            rows.keeps_all = False
        schema = temporal_join_schema(config, left, right)
        self._output = JoinOutput(schema, sides, left, context.limits.output_rows)
        self._max_rows = context.limits.join_pairs
        self.output_queue = OutputQueue(context.limits.output_rows)
        return self.output_queue.capabilities()

    def _take(self, batch: Batch, side: int, out: Collector) -> Iterator[Batch]:
        """Keep the rows; versions that the watermark has passed become the kept version at once."""
        if side:
            self._take_versions(batch, out)
        else:
            arrived = self._state.take(batch, 0, out, lambda times: times - 1)
            if arrived is not None:
                self._state.keep(arrived, 0)
        yield from ()

    def _take_versions(self, batch: Batch, out: Collector) -> None:
        arrived = self._state.take(batch, 1, out, lambda times: np.full(len(times), MAX_TIMESTAMP))
        if arrived is None:
            return
        values = arrived.columns(self._state.names[1])
        future = arrived.times > self._state.watermarks.low
        if not future.all():
            mask = pa.array(~future)
            passed = [column.filter(mask) for column in values]
            self._replace(Run.of(arrived.slots[~future], arrived.times[~future], passed))
            mask = pa.array(future)
            values = [column.filter(mask) for column in values]
        self._state.tables[1].add(arrived.slots[future], arrived.times[future], values)
        self._state.rows.settle()

    def _advance_to(self, watermark: int) -> Iterator[Batch]:
        """Yield the left rows the watermark has reached; the newest version of each key is kept."""
        for part in self._state.parts(MIN_TIMESTAMP, watermark):
            rows, versions = (table.within(MIN_TIMESTAMP, watermark, part) for table in self._state.tables)
            if rows is not None:
                yield from self._emit(rows, versions)
            if versions is not None:
                self._replace(versions)
        self._state.watermarks.advance(watermark)
        for table in self._state.tables:
            table.clean(watermark)
        self._state.rows.settle()

    def _requeue_versions(self, slots: I32) -> None:
        """Move the versions of these keys that a drain has passed back to the waiting ones."""
        kept = self._current.rows_of(slots)
        slots, kept = slots[kept >= 0], kept[kept >= 0]
        if len(slots):
            times, *values = self._current.arrays(kept)
            self._state.tables[1].add(slots, times.to_numpy().copy(), values)
            self._current.clear(slots)
            self._state.rows.settle()

    # --- versions ---------------------------------------------------------------------------------------------------

    def _emit(self, rows: Run, versions: Run | None) -> Iterator[Batch]:
        kept = self._current.rows_of(rows.slots)
        has = kept >= 0
        current = self._current.arrays(kept[has])
        count = 0 if versions is None else len(versions.slots)
        # an index into the versions, then into the kept ones; -1: none
        place = np.full(len(rows.slots), -1, np.int64)
        place[has] = count + np.arange(int(has.sum()))
        if versions is not None:
            found = self._newest(rows, versions)
            times = np.full(len(rows.slots), MIN_TIMESTAMP)
            times[has] = current[0].to_numpy()
            newer = (found >= 0) & (versions.times[found] >= times)
            place[newer] = found[newer]
        wanted = np.arange(len(place)) if self._outer else np.flatnonzero(place >= 0)
        sources = [
            kept_column if versions is None else pa.concat_arrays([versions.values[i], kept_column])
            for i, kept_column in enumerate(current[1:])
        ]
        for first in range(0, len(wanted), self._max_rows):
            yield from self._add(rows, wanted[first : first + self._max_rows], (place, sources))
        yield from self._output.flush()

    def _newest(self, rows: Run, versions: Run) -> I64:
        """Return the index of the newest version at each row's time; of equal ones the last arrived; -1: none."""
        lows = np.full(len(rows.slots), MIN_TIMESTAMP)
        firsts, counts = versions.ranges(rows.slots, lows, rows.times)
        return np.where(counts > 0, firsts + counts - 1, -1)

    def _add(self, rows: Run, chosen: I64, versions: tuple[I64, list[pa.Array]]) -> Iterator[Batch]:
        place, sources = versions
        left = [column.take(pa.array(chosen)) for column in rows.values]
        at = place[chosen]
        places = pa.array(at, mask=at < 0)
        right = [source.take(places) for source in sources]
        yield from self._output.add((self._state.rows.keys(rows.slots[chosen]), left, right), rows.times[chosen])

    def _replace(self, versions: Run) -> None:
        """Make the newest version of each key the kept one, unless the kept one is newer."""
        last = np.flatnonzero(np.append(versions.slots[1:] != versions.slots[:-1], True))
        slots, times = versions.slots[last], versions.times[last]
        kept = self._current.rows_of(slots)
        has = kept >= 0
        before = np.full(len(slots), MIN_TIMESTAMP)
        before[has] = self._current.arrays(kept[has])[0].to_numpy()
        newer = times >= before
        if newer.any():
            chosen = pa.array(last[newer])
            self._current.write(
                slots[newer], [pa.array(times[newer]), *(column.take(chosen) for column in versions.values)]
            )
