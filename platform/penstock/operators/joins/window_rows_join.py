"""Window join of sessions, of processing time and of wall clocks (kind `window_rows_join`).

Covers the windows that `operators.joins.window_join` does not support. The rows of both sides become rows of one
stream, with a column for the side, and pass through the windows of `operators.windows.window_rows`; a session is made
of the rows of both sides, as in Flink. A window that is over emits all its pairs and, in an outer join, rows whose
other side is empty.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import TS_COLUMN, Batch
from penstock.functions.triggers import EventTimeTrigger, ProcessingTimeTrigger
from penstock.operators.joins.join_operator import JoinOutput, OutputQueue
from penstock.operators.joins.join_schema import (
    SIDES,
    JoinSides,
    is_outer,
    key_schema_of,
    parse_sides,
    require_kind,
    validate_join_of,
    value_fields,
    window_join_schema,
)
from penstock.operators.lateness import LateRows
from penstock.operators.operator import Capabilities, Operator
from penstock.operators.rows.row_codec import RowEncoder
from penstock.operators.windows.window_rows import WindowDefinition, WindowRowsOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.elements import Barrier, Watermark, WatermarkStatus
    from penstock.eventtime.windows import TimeWindow
    from penstock.functions.evictors import WindowElement
    from penstock.kernels.compiler.compile import I64
    from penstock.operators.joins.join_operator import OutputElement
    from penstock.operators.lateness import LateRowReceiver
    from penstock.operators.operator import Collector, OperatorContext, OperatorSnapshot
    from penstock.operators.windows.window_buffer import BufferedWindow, KeyWindows
    from penstock.operators.windows.window_outputs import WindowOutput


class CommonSchema:
    """Rows of either side in one schema: the key, the side, the left side's columns, the right side's."""

    def __init__(self, sides: JoinSides, schemas: tuple[pa.Schema, ...], *, timed: bool) -> None:
        """`schemas` of the two inputs; `timed`: whether rows keep their event time."""
        self._sides = sides
        self.key = key_schema_of(sides, schemas[0])
        prefix = ""
        while any(name.startswith((f"{prefix}left_", f"{prefix}right_", f"{prefix}side")) for name in sides.left):
            prefix += "_"
        self._kept = tuple(tuple(value_fields(schemas[i], sides.key(i))) for i in (0, 1))
        named = [
            [field.with_name(f"{prefix}{title}_{field.name}").with_nullable(True) for field in kept]
            for title, kept in zip(("left", "right"), self._kept, strict=True)
        ]
        time = [pa.field(TS_COLUMN, pa.int64(), nullable=False)] if timed else []
        self.rows = pa.schema([pa.field(f"{prefix}side", pa.int8(), nullable=False), *named[0], *named[1], *time])
        self._schema = pa.schema([*self.key, *self.rows])
        self._schemas = schemas

    def to_common_schema(self, data: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """Convert rows of a side to the common schema."""
        rows = data.num_rows
        columns = [data.column(name) for name in self._sides.key(side)]
        columns.append(pa.array(np.full(rows, side, np.int8)))
        for own, kept in enumerate(self._kept):
            columns += [data.column(f.name) if own == side else pa.nulls(rows, f.type) for f in kept]
        if TS_COLUMN in self._schema.names:
            columns.append(data.column(TS_COLUMN))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def to_input_schema(self, data: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """Convert rows that `to_common_schema` has made of a side back to that side's schema."""
        first = len(self.key) + 1 + (len(self._kept[0]) if side else 0)
        columns = {name: data.column(place) for place, name in enumerate(self._sides.key(side))}
        columns |= {field.name: data.column(first + place) for place, field in enumerate(self._kept[side])}
        columns |= {TS_COLUMN: data.column(TS_COLUMN)} if TS_COLUMN in self._schema.names else {}
        schema = pa.schema([field for field in self._schemas[side] if field.name in columns])
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def split_sides(self, columns: list[pa.Array]) -> tuple[I64, list[pa.Array], list[pa.Array]]:
        """Split columns into the side of each row and the columns of both sides."""
        lefts = 1 + len(self._kept[0])
        side: I64 = columns[0].to_numpy()
        return side, columns[1:lefts], columns[lefts : lefts + len(self._kept[1])]


class JoinedWindows:
    """The pairs of windows that are over, made in bounded batches."""

    def __init__(self, common: CommonSchema, output: JoinOutput, bounds: pa.DataType, how: str, max_pairs: int) -> None:
        """Make a sink of windows.

        `bounds` is the type of the columns of a window's start and end; at most `max_pairs` pairs are made at a time.
        """
        self._max_pairs = max_pairs
        self._common = common
        self._output = output
        self._bounds = bounds
        self._how = how
        self._encoder = RowEncoder(common.rows, "rows of a join")
        self._fired: list[tuple[int, TimeWindow, list[WindowElement]]] = []
        #: Windows still to be emitted.
        self.waiting: list[Iterator[Batch]] = []
        self.time_of: Callable[[TimeWindow], int] = lambda window: window.max_timestamp

    def fire(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow, elements: list[WindowElement]) -> None:
        """Record a window to be joined."""
        del known
        if elements:
            self._fired.append((key.at, window, elements))

    def clear(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        """Do nothing: no state is kept for a window."""

    def emit(self, keys: list[pa.Array], out: Collector) -> None:
        """Join the recorded windows; the pairs wait until output has room."""
        del out
        if self._fired:
            fired, self._fired = self._fired, []
            columns = self._encoder.columns([e.value for *_, elements in fired for e in elements])
            self.waiting.append(self._pairs(fired, keys, self._common.split_sides(columns)))

    def _pairs(
        self,
        fired: list[tuple[int, TimeWindow, list[WindowElement]]],
        keys: list[pa.Array],
        rows: tuple[I64, list[pa.Array], list[pa.Array]],
    ) -> Iterator[Batch]:
        side, *columns = rows
        first = 0
        for place, window, elements in fired:
            mine = side[first : first + len(elements)]
            left, right = np.flatnonzero(mine == 0) + first, np.flatnonzero(mine == 1) + first
            first += len(elements)
            for chosen in _all_pairs(left, right, self._max_pairs):
                yield from self._add(keys, place, window, columns, chosen)
            for unmatched, other, outer in ((left, right, 0), (right, left, 1)):
                if len(other) == 0 and is_outer(self._how, outer):
                    for low in range(0, len(unmatched), self._max_pairs):
                        part = unmatched[low : low + self._max_pairs]
                        yield from self._add(keys, place, window, columns, (None, part) if outer else (part, None))
        yield from self._output.flush()

    def _add(
        self,
        keys: list[pa.Array],
        place: int,
        window: TimeWindow,
        columns: list[list[pa.Array]],
        chosen: tuple[I64 | None, I64 | None],
    ) -> Iterator[Batch]:
        count = next(len(rows) for rows in chosen if rows is not None)
        left, right = (
            [pa.nulls(count, c.type) if rows is None else c.take(pa.array(rows)) for c in own]
            for own, rows in zip(columns, chosen, strict=True)
        )
        key = [column.take(pa.array(np.full(count, place))) for column in keys]
        ends = [pa.array(np.full(count, bound, np.int64)).view(self._bounds) for bound in window]
        yield from self._output.add((key, left, [*right, *ends]), np.full(count, window.max_timestamp, np.int64))


class WindowRowsJoinOperator(Operator):
    """Inner or outer join of two keyed inputs by windows that keep their rows."""

    _common: CommonSchema
    _joined: JoinedWindows
    _late_sides: _LateOfSides

    def open(self, context: OperatorContext) -> Capabilities:
        """Declare (and so restore) the rows, windows and timers."""
        self.output_queue = OutputQueue(context.limits.output_rows)
        self._windows = WindowRowsOperator(self)
        self._windows.open(context)
        return replace(self.output_queue.capabilities(), timers=self)

    def definition(self, context: OperatorContext) -> WindowDefinition:
        """Return windows over the rows of both sides."""
        config, (left, right) = context.spec.config, context.input_schemas
        processing = config["window"].get("time") == "processing"
        validate_join_of(config, left, right, context.spec.uid, timed=not processing)
        sides = parse_sides(config)
        self._common = CommonSchema(sides, (left, right), timed=not processing)
        schema = window_join_schema(config, left, right)
        output = JoinOutput(schema, sides, left, context.limits.output_rows)
        how = require_kind(config["how"], "join")
        bounds, limit = schema.field("window_start").type, context.limits.window_pairs
        self._joined = JoinedWindows(self._common, output, bounds, how, limit)
        trigger = ProcessingTimeTrigger() if processing else EventTimeTrigger()
        return WindowDefinition(trigger, None, None, None, self._common.key, self._common.rows)

    def output(self, definition: WindowDefinition, *, merges: bool) -> WindowOutput:
        """Return the receiver of the windows' pairs."""
        del definition, merges
        return self._joined

    def late_rows(self, context: OperatorContext) -> LateRowReceiver:
        """Return the side outputs of late rows of both sides."""
        self._late_sides = _LateOfSides(context, self._common)
        return self._late_sides

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Put each row of a side into its windows."""
        self._late_sides.side = input_index
        self._windows.process_batch(Batch(self._common.to_common_schema(batch.data, input_index)), 0, out)
        self._begin_output((), out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Join the windows that are over, then emit the watermark."""
        dropper = _WatermarkDropper()
        self._windows.process_watermark(watermark, dropper)  # type: ignore[arg-type] # the collector type that this call uses
        self._begin_output((watermark,), out)

    def process_status(self, status: WatermarkStatus, out: Collector) -> None:
        """Emit the status after all pending results."""
        self._begin_output((status,), out)

    def process_time(self, now_ms: int, out: Collector) -> None:
        """Join the windows that are over."""
        self._windows.process_time(now_ms, out)
        self._begin_output((), out)

    @property
    def next_timer_ms(self) -> float | None:
        """Return the time of the next processing-time timer."""
        return self._windows.next_timer_ms

    def finish(self, out: Collector) -> None:
        """Drop pending processing-time timers: they never fire."""
        self._windows.finish(out)

    def _begin_output(self, trailing: tuple[OutputElement, ...], out: Collector) -> None:
        waiting, self._joined.waiting = self._joined.waiting, []
        if waiting or trailing:
            self.output_queue.begin(itertools.chain(*waiting, trailing), out)

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze rows, windows and timers; results of the rows before the barrier were emitted by then."""
        self.output_queue.drain(out)
        return self._windows.snapshot(barrier, out)


class _LateOfSides:
    """Late rows of either side, emitted to the side output in their own schema."""

    def __init__(self, context: OperatorContext, common: CommonSchema) -> None:
        late = context.spec.config.get("late_to", {})
        self._late = tuple(LateRows({"late_to": late.get(side)}, context.metrics) for side in SIDES)
        self._common = common
        #: The side of the rows.
        self.side = 0

    def take(self, data: pa.RecordBatch, late: np.ndarray, out: Collector) -> None:
        """Take late rows of one side: those where `late` is true."""
        self._late[self.side].take(self._common.to_input_schema(data, self.side), late, out)


class _WatermarkDropper:
    """Drops the watermark, which the operator emits after the pairs."""

    def watermark(self, watermark: Watermark) -> None:
        """Do nothing: the operator emits it."""


def _all_pairs(left: I64, right: I64, limit: int) -> Iterator[tuple[I64, I64]]:
    """Yield all pairs of the two, at most `limit` at a time."""
    if not len(left) or not len(right):
        return
    for low in range(0, len(right), limit):
        others = right[low : low + limit]
        step = max(1, limit // len(others))
        for first in range(0, len(left), step):
            own = left[first : first + step]
            yield np.repeat(own, len(others)), np.tile(others, len(own))
