"""Session windows of event time with aggregates (kind `session_aggregate`).

Rows of a key with distances of at most `gap` are one session, [first, last + gap). It fires when the watermark has
reached its last microsecond. A row is late when its session, including the sessions that it touches, has ended and its
allowed lateness is over: the row is counted and dropped, or emitted to a side output. Rows may arrive in any order and
merge two sessions. Within the allowed lateness a fired session is kept; when a batch has added rows, it is emitted
again, or waits for the watermark if it was extended beyond it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN, Batch
from penstock.core.errors import GraphError, PenstockError
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.kernels.aggregates.pane_assignment import assign_panes
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.aggregates.aggregate_plan import AggregatePlan
from penstock.operators.aggregates.aggregate_schema import Aggregate, output_schema, parse
from penstock.operators.lateness import LateRows, RangeWatermarks
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot
from penstock.state.tables.session_table import SessionRule

if TYPE_CHECKING:
    from penstock.core.elements import Barrier, Watermark
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.operators.aggregates.aggregate_schema import WindowConfig
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.state.cells.pane_memory import Fired
    from penstock.state.store import KeyedState
    from penstock.state.tables.session_table import SessionTable

_STATE = "sessions"
#: In the items of the watermark: the time at which sessions are due is known.
_WATERMARK, _DUE = "watermark", "due"
#: First and last time of a session, kept as aggregates after the user's.
_BOUNDS = (Aggregate("min", TS_COLUMN, "__first"), Aggregate("max", TS_COLUMN, "__last"))


class SessionAggregateOperator(Operator):
    """Aggregates by key and session."""

    _config: WindowConfig
    _store: KeyedState
    _table: SessionTable
    _watermarks: RangeWatermarks

    def open(self, context: OperatorContext) -> Capabilities:
        """Declare (and so restore) the sessions and the watermark."""
        if context.keyed_state is None:
            raise GraphError(f"{context.spec.uid}: a window needs keyed state", hint="key the stream before the window")
        config, rows = parse(context.spec.config), context.input_schemas[0]
        self._context = context
        self._config = config
        self._schema = output_schema(context.spec.config, rows)
        bounded = dataclasses.replace(config, aggregates=(*config.aggregates, *_BOUNDS))
        self._lateness = config.allowed_lateness
        self._plan = AggregatePlan(bounded, rows)
        first, last = (self._plan.word(which, TS_COLUMN) for which in ("min", "max"))
        self._rule = SessionRule(config.size, first, last, self._lateness)
        self._store = context.keyed_state
        self._table = self._store.session_table(_STATE, self._plan.spec, self._rule)
        self._plan.heap = self._table.heap
        self._table.least_last = self._table.least_open = MIN_TIMESTAMP
        saved = [item for s in context.restored if s.name == _WATERMARK for item in s.items]
        self._watermarks = RangeWatermarks.restored(context.hash_range, saved)
        self._table.closed_to = self._bound(self._watermarks.low, 0)
        if not all(_DUE in item for item in saved):
            self._table.scan_for_due()
        self._window = np.array([config.size, config.size, config.size, 0], np.int64)
        self._late = LateRows(context.spec.config, context.metrics)
        return Capabilities(arriving=self._table.arriving)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:  # noqa: ARG002 - one input
        """Add the rows to their panes; rows that may be late are checked one by one."""
        data = batch.data
        times = data.column(TS_COLUMN).to_numpy()
        late = np.flatnonzero(times <= self._closed_to(data, self._lateness))
        if len(late) == 0:
            self._add(data, times)
        else:
            self._add_with_late(data, times, late, out)
        if self._lateness:
            self._refire(data, times, out)

    def _add_with_late(self, data: pa.RecordBatch, times: I64, late: I64, out: Collector) -> None:
        done = 0
        for row in late[self._may_overlap(data, times, late)].tolist():
            self._add_between(data, late, (done, row), out)
            one = data.slice(row, 1)
            if self._overlaps(one, times[row : row + 1])[0]:
                self._add(one, times[row : row + 1])
            else:
                self._late.take(one, np.ones(1, np.bool_), out)
            done = row + 1
        self._add_between(data, late, (done, len(times)), out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Fire the sessions that the watermark closes, then emit it."""
        if watermark.timestamp > self._watermarks.low:
            closed_to = watermark.timestamp - self._config.size + 1
            if self._lateness and self._table.least_open <= closed_to:
                self._table.least_open = self._fire_due(closed_to, out)
            self._take_ended(closed_to, out)
            self._table.closed_to = closed_to
            while (fetched := self._table.load_due(closed_to)) is not None:
                if self._lateness:
                    self._fire_due(closed_to, out, fetched)
                self._take_ended(closed_to, out)
            self._watermarks.advance(watermark.timestamp)
        out.watermark(watermark)

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:  # noqa: ARG002 - nothing is emitted at a barrier
        """Freeze the sessions; the watermark is saved with the hash range it holds for."""
        due = {_DUE: 1} if self._table.source.remote else {}
        items: tuple[Any, ...] = tuple({**item, **due} for item in self._watermarks.items())
        watermark = OperatorStateSnapshot(uid=self._context.spec.uid, name=_WATERMARK, mode="union", items=items)
        return OperatorSnapshot(keyed=self._store.freeze(barrier.checkpoint_id), operator=(watermark,))

    # --- rows -------------------------------------------------------------------------------------------------------

    def _closed_to(self, data: pa.RecordBatch, lateness: int) -> I64 | int:
        """Return the last time of sessions that ended at least `lateness` ago; after a rescale it differs by key."""
        if not self._watermarks.differ:
            return self._bound(self._watermarks.low, lateness)
        return self._bounds(hash_key_columns(key_columns(data, self._config.key), data.num_rows), lateness)

    def _bound(self, watermark: int, lateness: int) -> int:
        return watermark if watermark == MIN_TIMESTAMP else watermark - self._config.size + 1 - lateness

    def _bounds(self, hashes: I64, lateness: int) -> I64:
        """Return the same as `_closed_to`, for keys of these hashes."""
        bounds = np.full(len(hashes), self._bound(self._watermarks.low, lateness), np.int64)
        for owned, watermark in self._watermarks.ahead():
            bounds[(hashes >= owned.low) & (hashes <= owned.high)] = self._bound(watermark, lateness)
        return bounds

    def _may_overlap(self, data: pa.RecordBatch, times: I64, late: I64) -> np.ndarray:
        """Return the rows, of those that may be late, whose key has a session or another row in this batch."""
        rows = data.take(pa.array(late))
        keys = key_columns(rows, self._config.key)
        hashes = hash_key_columns(keys, len(late))
        others = np.delete(hash_key_columns(key_columns(data, self._config.key), len(times)), late)
        possible = self._table.in_open_session(keys, hashes, times[late]) | np.isin(hashes, others)
        if possible.any():  # an accepted row may let another one touch its session
            possible |= np.isin(hashes, hashes[possible])
        return possible

    def _overlaps(self, rows: pa.RecordBatch, times: I64) -> np.ndarray:
        keys = key_columns(rows, self._config.key)
        return self._table.in_open_session(keys, hash_key_columns(keys, rows.num_rows), times)

    def _add_between(self, data: pa.RecordBatch, late: I64, span: tuple[int, int], out: Collector) -> None:
        """Add the rows of a range except the `late` ones, which are counted or emitted to their side output."""
        first, stop = span
        dropped = late[(late >= first) & (late < stop)] - first
        data = data.slice(first, stop - first)
        if len(dropped):
            is_late = np.zeros(stop - first, np.bool_)
            is_late[dropped] = True
            self._late.take(data, is_late, out)
            data = data.filter(pa.array(~is_late))
        if data.num_rows:
            self._add(data, data.column(TS_COLUMN).to_numpy())

    def _add(self, data: pa.RecordBatch, times: I64) -> None:
        panes, counts = np.empty(len(times), np.int64), np.zeros(3, np.int64)
        if assign_panes(times, self._window, MIN_TIMESTAMP, panes, counts):
            raise PenstockError(
                f"{self._context.spec.uid}: {int(counts[1])} rows have an event time more than 73,000 years from 1970",
                hint="event time is microseconds since the epoch; check the unit of the timestamp column",
            )
        chunk_rows = self._table.most_rows
        for done in range(0, len(times), chunk_rows):
            piece = data.slice(done, chunk_rows)
            keys, of_piece = key_columns(piece, self._config.key), panes[done : done + chunk_rows]
            self._table.update(keys, hash_key_columns(keys, len(of_piece)), of_piece, self._plan.inputs(piece))
        least = int(times.min())
        self._table.least_last = min(self._table.least_last, least)
        self._table.least_open = min(self._table.least_open, least)

    # --- sessions ---------------------------------------------------------------------------------------------------

    def _fire_due(self, closed_to: int, out: Collector, fetched: tuple[I32, I64] | None = None) -> int:
        """Emit the sessions whose last time is at most `closed_to` and that have not fired before.

        Only of the keys in `fetched`, or of all in memory. Returns the least last time of the sessions still to fire.
        """
        slots, cells = self._table.sessions(None if fetched is None else fetched[0])
        last = cells[:, self._rule.last_word]
        fired = self._bounds(self._table.index.hashes[slots], 0)
        if fetched is not None:
            fired = np.maximum(fired, fetched[1][np.searchsorted(fetched[0], slots)])
        waiting = last > fired
        due = waiting & (last <= closed_to)
        for piece in self._table.fired(slots[due], cells[due]):
            self._emit(piece, out)
        return int(last[waiting & ~due].min(initial=MAX_TIMESTAMP))

    def _take_ended(self, closed_to: int, out: Collector) -> None:
        """Remove the sessions whose allowed lateness is over; without allowed lateness emit them now."""
        if self._table.least_last <= closed_to - self._lateness:
            for piece in self._table.take_ended(closed_to - self._lateness):
                if not self._lateness:
                    self._emit(piece, out)

    def _refire(self, data: pa.RecordBatch, times: I64, out: Collector) -> None:
        """Emit sessions that had ended before this batch added to them."""
        already_closed = times <= self._closed_to(data, 0)
        if not already_closed.any():
            return
        rows = data.filter(pa.array(already_closed))
        keys = key_columns(rows, self._config.key)
        hashes = hash_key_columns(keys, rows.num_rows)
        slots, cells = self._table.sessions_with(keys, hashes, times[already_closed])
        ended = cells[:, self._rule.last_word] <= self._bounds(self._table.index.hashes[slots], 0)
        for piece in self._table.fired(slots[ended], cells[ended]):
            self._emit(piece, out)

    def _emit(self, piece: Fired, out: Collector) -> None:
        starts = np.ascontiguousarray(piece.cells[:, self._rule.first_word])
        ends = piece.cells[:, self._rule.last_word] + self._config.size
        time = self._schema.field("window_start").type
        columns = [
            *piece.keys,
            pa.array(starts).view(time),
            pa.array(ends).view(time),
            *self._plan.outputs(piece.cells)[: len(self._config.aggregates)],
            pa.array(ends - 1),
        ]
        out.batch(Batch(pa.RecordBatch.from_arrays(columns, schema=self._schema)))
