"""Windows that keep their rows (kind `window_rows`): any trigger, evictor or function, one Python call per row.

Only for windows that the compiled operators (`operators.windows.window_aggregate`, `operators.windows.session_window`)
cannot express. A batch is decoded once, its rows and the state of their keys pass through
`operators.windows.window_engine`, and changes are saved after the batch; timers fire in the same way. If keys are
evicted with all their rows, both are processed in parts of as many keys as fit in memory.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, Batch, Watermark
from penstock.core.errors import GraphError, PenstockError
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.functions.evictors import WindowElement
from penstock.functions.window_functions import AppliedFunction, WindowContext
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.kernels.rows.python_values import python_values
from penstock.operators.lateness import LateRows, RangeWatermarks
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot
from penstock.operators.rows.columns import ts_of, visible
from penstock.operators.rows.row_codec import ProcessOutput, RowDecoder
from penstock.operators.rows.user_functions import gc_paused, load_function, user_error
from penstock.operators.windows.row_stages import MergedRows, PartialRows
from penstock.operators.windows.window_assigners import WindowAssigner
from penstock.operators.windows.window_buffer import WindowBuffer
from penstock.operators.windows.window_engine import WindowEngine
from penstock.operators.windows.window_outputs import (
    AggregatedRows,
    ComputedWindows,
    ProcessedWindows,
    ReducedWindows,
    WindowOutput,
)
from penstock.operators.windows.window_schemas import MERGED, PARTIAL, parse_rows
from penstock.state.log.ttl import TtlClock

if TYPE_CHECKING:
    from penstock.core.elements import Barrier
    from penstock.functions.evictors import Evictor
    from penstock.functions.state_handles import TimerQueue
    from penstock.functions.triggers import Trigger
    from penstock.kernels.compiler.compile import I32
    from penstock.operators.lateness import LateRowReceiver
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.operators.windows.window_buffer import KeyWindows
    from penstock.state.store import KeyedState
    from penstock.state.tables.timer_table import TimerTable

_WATERMARK, _CLOCK = "watermark", "clock"
_STAGES: dict[str, type[PartialRows | MergedRows]] = {PARTIAL: PartialRows, MERGED: MergedRows}


@dataclass(frozen=True, slots=True)
class WindowDefinition:
    """The parts of a window definition besides its assigner."""

    trigger: Trigger
    evictor: Evictor | None
    function: Any
    #: Class of the rows; None: named tuples.
    row_type: type | None
    #: Columns of the key, and of the kept rows.
    key: pa.Schema
    rows: pa.Schema


class WindowParts(Protocol):
    """The parts by which operators differ whose windows keep rows."""

    def definition(self, context: OperatorContext) -> WindowDefinition:
        """Return the window's parts; called once, first."""

    def output(self, definition: WindowDefinition, *, merges: bool) -> WindowOutput:
        """Return the receiver of windows that fire; `merges`: the windows are sessions."""

    def late_rows(self, context: OperatorContext) -> LateRowReceiver:
        """Return the receiver of late rows."""


class WindowRowsOperator(Operator):
    """Windows with rows, processed by key."""

    _store: KeyedState
    _buffer: WindowBuffer
    _watermarks: RangeWatermarks
    _sink: WindowOutput
    _late: LateRowReceiver

    def __init__(self, parts: WindowParts | None = None) -> None:
        """Take the parts; None: those of the job's configuration."""
        self._parts = parts or self

    def open(self, context: OperatorContext) -> Capabilities:
        """Load the functions, declare (and so restore) rows, windows and timers."""
        spec = context.spec
        self._where = f"window {spec.uid!r}"
        self._context = context
        if context.keyed_state is None:
            raise GraphError(f"{self._where} needs keyed state", hint="key the stream before the window")
        parts = self._parts.definition(context)
        config = parse_rows(spec.config, parts.key.names)
        self._config = config
        self._store = context.keyed_state
        self._decoder = RowDecoder(parts.rows, parts.row_type)
        assigner = WindowAssigner(config.window, config.allowed_lateness)
        self._buffer = WindowBuffer(self._store, parts.key, parts.rows, parts.row_type, assigner)
        self._store.check_all_declared()
        self._late = self._parts.late_rows(context)
        self._sink = self._parts.output(parts, merges=assigner.merges)
        self._engine = WindowEngine(assigner, parts.trigger, parts.evictor, self._buffer, self._sink)
        if assigner.is_global:
            self._sink.time_of = lambda _: self._engine.time
        saved = [item for s in context.restored if s.name == _WATERMARK for item in s.items]
        self._watermarks = RangeWatermarks.restored(context.hash_range, saved)
        # fired windows of processing time must not be entered again after the clock was set back
        self._clock = TtlClock(context.clock)
        self._clock.restored(np.array([item[_CLOCK] for item in saved if _CLOCK in item], np.int64))
        self._next_processing = self._buffer.processing_timers.next_time()
        self._ended = False
        return Capabilities(timers=self, arriving=self._buffer.state.fetcher)

    def definition(self, context: OperatorContext) -> WindowDefinition:
        """Return the window's parts from the job's configuration."""
        spec, given = context.spec, context.input_schemas[0]
        trigger, evictor, function, row_type = load_function(spec.payload, self._where)
        rows = visible(given, spec.config.get("computed", ()))
        key = pa.schema([given.field(name) for name in spec.config["key"]])
        return WindowDefinition(trigger, evictor, function, row_type, key, rows)

    def late_rows(self, context: OperatorContext) -> LateRowReceiver:
        """Return the side output of late rows, or their counter."""
        return LateRows(context.spec.config, context.metrics)

    def output(self, definition: WindowDefinition, *, merges: bool) -> WindowOutput:
        """Return the function or the aggregates of the job's configuration."""
        spec, function = self._context.spec, definition.function
        output = schema_from_text(spec.output_schema)
        schemas = definition.rows, definition.key, output
        if self._config.mode == "aggregate":
            return ComputedWindows(AggregatedRows(self._config, schemas, function or {}, self._where))
        if self._config.mode in _STAGES:
            return ComputedWindows(_STAGES[self._config.mode](spec.config, schemas, function or {}, self._where))
        sides = {tag: schema_from_text(text) for tag, text in spec.config.get("sides", {}).items()}
        made = ProcessOutput(output, sides, self._where)
        if self._config.mode == "reduce":
            return ReducedWindows(function, made, self._where)
        if self._config.mode == "apply":
            function = AppliedFunction(function)
        self._function_context = WindowContext(made.sides, merges=merges)
        return ProcessedWindows(function, self._function_context, made, self._key_of, self._where)

    # --- rows -------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Put each row into its windows."""
        with gc_paused():
            done = 0
            while done < batch.num_rows:
                rows = self._buffer.state.most_keys(batch.num_rows - done)
                self._process(batch.data.slice(done, rows), out)
                done += rows

    def _process(self, data: pa.RecordBatch, out: Collector) -> None:
        keys = key_columns(data, self._config.key)
        slots = self._buffer.state.upsert(keys, hash_key_columns(keys, data.num_rows))
        local, distinct = self._buffer.state.distinct(slots)
        windows = self._begin(distinct)
        engine, now = self._engine, self._clock_now()
        ts = ts_of(data)
        assigned_times = times = [now] * data.num_rows
        if ts is not None:
            times = ts.to_numpy().tolist()
            if not engine.assigner.processing:
                assigned_times = engine.assigner.times(ts.to_numpy()).tolist()
        number = first = self._buffer.next_number
        late = np.zeros(data.num_rows, np.bool_)
        try:
            rows = self._decoder.rows(data)
            for row, place, time, own in zip(rows, local.tolist(), times, assigned_times, strict=True):
                if not engine.add(windows[place], WindowElement(row, time, number), own):
                    late[number - first] = True
                number += 1
        except PenstockError:
            raise
        except Exception as error:
            raise user_error(self._where, error, self._decoder.newest(data)) from error
        self._buffer.next_number = number
        if late.any():
            self._late.take(data, late, out)
        self._end(distinct, (first, local, data), out)

    # --- timers -----------------------------------------------------------------------------------------------------

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Fire event-time timers, then emit the watermark; the end of all input also ends processing-time windows."""
        if watermark.timestamp > self._watermarks.low:
            self._watermarks.advance(watermark.timestamp)
            self._fire(watermark.timestamp, out, processing=False)
        if watermark.timestamp == MAX_TIMESTAMP and self._engine.assigner.processing:
            self._fire(MAX_TIMESTAMP, out, processing=True)
        out.watermark(watermark)

    @property
    def next_timer_ms(self) -> float | None:
        """Return the time of the next processing-time timer, as `Clock.now_ms` counts."""
        if self._next_processing is None or self._ended:
            return None
        return 0.0 if self._next_processing <= self._clock.now else -(-self._next_processing // 1000)

    def process_time(self, now_ms: int, out: Collector) -> None:
        """Fire the processing-time timers."""
        self._fire(max(self._clock_now(), now_ms * 1000), out, processing=True)

    def _fire(self, until: int, out: Collector, *, processing: bool) -> None:
        table = self._buffer.processing_timers if processing else self._buffer.event_timers
        queue = self._engine.context.processings if processing else self._engine.context.events
        while due := table.take_due(until, self._buffer.state.most_keys(self._context.limits.fired_timers)):
            slots, times = due
            with gc_paused():
                local, distinct = self._buffer.state.distinct(slots)
                windows = self._begin(distinct)
                self._clock_now()
                try:
                    for time, place in queue.fire(times.tolist(), local.tolist()):
                        self._engine.timer(windows[place], time, processing=processing)
                except PenstockError:
                    raise
                except Exception as error:
                    raise user_error(self._where, error) from error
                self._end(distinct, None, out)

    def _clock_now(self) -> int:
        """Return the machine's clock in microseconds, made monotonic."""
        self._clock.tick()
        self._engine.context.processing_time = self._clock.now
        if self._config.mode in ("apply", "process"):
            self._function_context.processing_time = self._clock.now
        return self._clock.now

    # --- a batch of keys --------------------------------------------------------------------------------------------

    def _begin(self, distinct: I32) -> list[KeyWindows]:
        low = self._watermarks.low
        marks = [low] * len(distinct)
        if self._watermarks.differ:
            hashes = self._buffer.hashes(distinct)
            for owned, watermark in self._watermarks.ahead():
                for place in np.flatnonzero((hashes >= owned.low) & (hashes <= owned.high)).tolist():
                    marks[place] = watermark
        self._keys: list[Any] | None = None
        return self._buffer.begin(distinct, marks)

    def _key_of(self, place: int) -> Any:
        if self._keys is None:
            columns = [python_values(array) for array in self._buffer.key_columns()]
            self._keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return self._keys[place]

    def _end(self, distinct: I32, rows: tuple[int, I32, pa.RecordBatch] | None, out: Collector) -> None:
        """Save the changes and emit the results."""
        keys, context = self._buffer.key_columns(), self._engine.context
        first, local, data = rows or (self._buffer.next_number, None, None)
        self._buffer.end(first, local, data)
        _register(self._buffer.event_timers, context.events, distinct)
        _register(self._buffer.processing_timers, context.processings, distinct)
        self._next_processing = self._buffer.processing_timers.next_time()
        self._buffer.state.settle()
        self._sink.emit(keys, out)

    # --- the rest ---------------------------------------------------------------------------------------------------

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze rows, windows and timers; watermark and clock are saved with the hash range they hold for."""
        self._ended = self._ended or barrier.kind.ends_job
        items: tuple[Any, ...] = tuple({**item, _CLOCK: self._clock.now} for item in self._watermarks.items())
        watermark = OperatorStateSnapshot(uid=self._context.spec.uid, name=_WATERMARK, mode="union", items=items)
        return OperatorSnapshot(keyed=self._store.freeze(barrier.checkpoint_id), operator=(watermark,))

    def finish(self, out: Collector) -> None:
        """Drop pending processing-time timers: they never fire."""
        self._ended = True


def _register(table: TimerTable, queue: TimerQueue, distinct: I32) -> None:
    if queue.times:
        times, places = np.array(queue.times, np.int64), np.array(queue.places, np.int64)
        queue.times.clear()
        queue.places.clear()
        table.change(distinct[places], times, np.zeros(len(times), np.bool_))
