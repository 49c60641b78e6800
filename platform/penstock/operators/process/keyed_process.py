"""The operator of functions with keyed state and timers; binds the declared states when it opens.

Kinds `process`, `co_process` and `broadcast_process`.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Watermark
from penstock.core.errors import GraphError, PenstockError, UsageError
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.functions.broadcast_state import BROADCAST
from penstock.functions.folding_states import fold_into
from penstock.functions.process_function import (
    BroadcastContext,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OpenContext,
    ProcessContext,
    Timers,
    output_time,
)
from penstock.functions.state_handles import Current, NoTimerQueue, TimerQueue, cells_of
from penstock.functions.state_ttl import ttl_of
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.kernels.rows.python_values import python_values
from penstock.operators.lateness import RangeWatermarks
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot
from penstock.operators.process.broadcast_binding import BoundBroadcast, require_declared
from penstock.operators.process.by_key import DueTimers, KeyRuns
from penstock.operators.process.collection_binding import bind_collection
from penstock.operators.process.state_binding import (
    BindingContext,
    BoundState,
    BoundValue,
    StateConfig,
    StateTypes,
    ValueCodec,
    error_of_state,
    migration_of,
    saved_state,
)
from penstock.operators.rows.columns import ColumnError, ts_of, visible, without_ts
from penstock.operators.rows.row_codec import ProcessOutput, RowDecoder, read_columns
from penstock.operators.rows.row_text import timer_text, value_text
from penstock.operators.rows.user_functions import gc_paused, load_function, user_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.elements import Barrier
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.state.store import KeyedState
    from penstock.state.tables.row_state import RowState
    from penstock.state.tables.timer_table import TimerTable


def bind_states(
    function: Any, config: dict[str, Any], types: dict[Any, Any], binding: BindingContext
) -> list[BoundState]:
    """Declare (and so restore) every state of a function and set its handles."""
    bound: list[BoundState] = []
    kinds = config.get("kinds", {})
    for name, text in config.get("states", {}).items():
        kind = kinds.get(name, {})
        keys = kind.get("keys")
        declared = StateConfig(
            kind.get("kind", "value"),
            schema_from_text(text),
            None if keys is None else schema_from_text(keys),
            f"{binding.where}: state {name!r}",
            ttl_of(kind, binding.clock),
        )
        found = StateTypes(types.get(name), types.get((name, "key")))
        made: BoundState
        if declared.kind == BROADCAST:
            made = BoundBroadcast(name, declared, found)
        elif declared.kind in ("list", "map"):
            function_of = types.get((name, "migrate"))
            made = bind_collection(name, declared, found, binding, (kind.get("migrates"), function_of))
        else:
            codec = ValueCodec(declared.values, found.values, declared.where)
            migration = migration_of(kind.get("migrates"), types.get((name, "migrate")), codec, declared.where)
            table = binding.state.value(name, tuple(declared.values), declared.ttl, migration)
            made = BoundValue(cells_of(binding.current, f"self.{name}"), table, codec)
        given: Any = made.handle
        if declared.kind in ("reducing", "aggregating"):
            given = fold_into(getattr(function, name), given)
        setattr(function, name, given)
        bound.append(made)
    return bound


_WATERMARK = "watermark"
#: The inherited `on_timer` of a function without one.
_NO_TIMERS = tuple(
    kind.on_timer for kind in (KeyedProcessFunction, KeyedCoProcessFunction, KeyedBroadcastProcessFunction)
)


def _handles_timers(function: Any) -> bool:
    return type(function).on_timer not in _NO_TIMERS


@dataclass(frozen=True, slots=True)
class _InputHandler:
    """The handling of the rows of an input."""

    #: None: a broadcast stream, whose rows belong to no key.
    key: tuple[str, ...] | None
    decoder: RowDecoder
    process: Callable[[Any, Any], Any]
    #: The context passed to the function with a row.
    context: ProcessContext | BroadcastContext


class KeyedProcessOperator(Operator):
    """Runs one `KeyedProcessFunction`, or a function of two inputs: both keyed, or the second one broadcast."""

    _function: KeyedProcessFunction | KeyedCoProcessFunction | KeyedBroadcastProcessFunction | None = None
    _store: KeyedState
    _state: RowState
    _states: list[BoundState]
    _event_table: TimerTable
    _processing_table: TimerTable

    def open(self, context: OperatorContext) -> Capabilities:
        """Load the function, declare (and so restore) its states and timers."""
        spec = context.spec
        self._where = f"process {spec.uid!r}"
        self._limits = context.limits
        if context.keyed_state is None:
            raise GraphError(f"{self._where} needs keyed state", hint="key the stream before .process(...)")
        function, row_type, types = load_function(spec.payload, self._where)
        self._store = context.keyed_state
        sides = {tag: schema_from_text(text) for tag, text in spec.config.get("sides", {}).items()}
        self._output = ProcessOutput(schema_from_text(spec.output_schema), sides, self._where)
        self._bind(context, function, types)
        self._handlers = _handlers(context, function, row_type, self._context)
        try:
            function.open(OpenContext(context.job_name, context.subtask, context.parallelism))
        except Exception as error:
            raise user_error(self._where, error) from error
        self._function = function
        return Capabilities(timers=self, arriving=self._state.fetcher)

    def _bind(self, context: OperatorContext, function: Any, types: dict[str, Any]) -> None:
        config = context.spec.config
        schema = without_ts(context.input_schemas[0])
        self._state = self._store.row_state(pa.schema([schema.field(name) for name in config["key"]]), evictable=True)
        self._current = Current()
        self._ttl_clock = self._store.ttl_clock(context.clock)
        binding = BindingContext(self._state, self._current, self._ttl_clock, self._where)
        self._states, self._state_names = bind_states(function, config, types, binding), list(config.get("states", {}))
        self._uid, self._first = context.spec.uid, context.subtask == 0
        saved = {item["state"]: item for s in context.restored if s.name == BROADCAST for item in s.items}
        require_declared(saved, self._states, self._where)
        for bound in self._states:
            if isinstance(bound, BoundBroadcast) and bound.name in saved:
                bound.restore(saved[bound.name])
        self._event, self._processing = TimerQueue(), TimerQueue()
        self._event_table, self._processing_table = self._state.timers("event"), self._state.timers("processing")
        self._store.check_all_declared()
        queues = (self._event, self._processing) if _handles_timers(function) else (NoTimerQueue(), NoTimerQueue())
        timers = Timers(self._current, *queues)
        self._keys = cells_of(self._current, "the key of the context")
        self._context = ProcessContext(self._keys, timers, context.clock, self._output.sides)
        marks = [item for s in context.restored if s.name == _WATERMARK for item in s.items]
        # timers that were due at the checkpoint and waited for the next watermark keep waiting
        self._watermarks = RangeWatermarks.restored(context.hash_range, marks)
        self._context.watermark = self._watermarks.low
        self._until: int | None = None
        self._processing_now = MIN_TIMESTAMP
        self._next_processing = self._processing_table.next_time()
        self._ended = False

    # --- rows -------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Call the function for every row."""
        with gc_paused():
            if self._until is not None:
                self._process_ordered(batch.data, self._until, out)
                self._until = None
                return
            # with one handler all inputs are alike: they are the streams of a union
            self._process(batch.data, self._handlers[input_index if len(self._handlers) > 1 else 0], out)

    def _process(self, data: pa.RecordBatch, handler: _InputHandler, out: Collector) -> None:
        if handler.key is None:
            self._process_broadcast(data, handler, out)
            return
        keys = key_columns(data, handler.key)
        slots = self._state.upsert(keys, hash_key_columns(keys, data.num_rows))
        local, distinct = self._state.distinct(slots)
        self._begin(distinct)
        self._run(handler, data, local.tolist())
        self._end(distinct, out, row=_last_row(handler, data, local))

    def expect_ordered(self, until: int) -> None:
        """Process the next batch key by key: its rows are in order of event time, which then reaches `until`.

        For functions of one keyed input whose timers are handled; the caller passes the watermark on afterwards.
        """
        self._until = until

    def _process_ordered(self, data: pa.RecordBatch, until: int, out: Collector) -> None:
        """Process rows key by key. Where very many timers are due, they fire between rows, for state to fit memory."""
        ts, start = ts_of(data), 0
        assert ts is not None  # noqa: S101 - there are timers of event time
        times, most = ts.to_numpy(), max(data.num_rows, self._limits.fired_timers)
        while start < len(times):
            owners, due, reached = self._due_until(until, most)
            stop = len(times) if reached == until else int(np.searchsorted(times, reached + 1, "right"))
            self._process_by_key(data.slice(start, stop - start), times[start:stop], (owners, due), reached, out)
            if stop < len(times):
                self._advance(min(int(times[stop]) - 1, until), out)
            start = stop

    def _process_by_key(
        self, data: pa.RecordBatch, times: I64, timers: tuple[I32, I64], until: int, out: Collector
    ) -> None:
        """Process rows, with their times, and the given timers, which are those up to `until`."""
        handler = self._handlers[0]
        assert self._function is not None  # noqa: S101 - opened
        assert handler.key is not None  # noqa: S101 - a keyed input
        assert isinstance(self._event, TimerQueue)  # noqa: S101 - they are handled
        keys = key_columns(data, handler.key)
        slots = self._state.upsert(keys, hash_key_columns(keys, data.num_rows))
        owners, due = timers
        local, distinct = self._state.distinct(np.concatenate([slots, owners]))
        self._begin(distinct)
        order = np.argsort(local[: len(slots)], kind="stable")
        rows = data.take(pa.array(order))
        runs = KeyRuns(
            process=handler.process,
            on_timer=self._function.on_timer,
            context=self._context,
            current=self._current,
            queue=self._event,
            output=self._output,
            before=self._context.watermark,
            after=until,
            due=DueTimers.of(local[len(slots) :], due, len(distinct)),
            emit=lambda moments: self._output.emit(out, moments),
            most=max(data.num_rows, self._limits.output_rows),
        )
        try:
            runs.run(handler.decoder.rows(rows), local[order], times[order])
        except Exception as error:
            raise user_error(self._where, error, self._newest(handler, rows)) from error
        self._watermarks.advance(until)
        self._end(distinct, out, runs.moments, _last_row(handler, data, local[: len(slots)]))

    def _due_until(self, until: int, most: int) -> tuple[I32, I64, int]:
        """Take the event-time timers up to a time: slots, times, and this time.

        If they are more than about `most`, it is an earlier one. Some timers may then be due at the next microsecond.
        """
        slots, times = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        while due := self._event_table.take_due(until, self._limits.fired_timers):
            slots.append(due[0])
            times.append(due[1])
            if sum(map(len, times)) > most:
                until = max(int(due[1][-1]) - 1, self._context.watermark)
                break
        owners, found = np.concatenate(slots), np.concatenate(times)
        later = found > until
        if later.any():
            self._event_table.change(owners[later], found[later], np.zeros(int(later.sum()), np.bool_))
        return owners[~later], found[~later], until

    def _newest(self, handler: _InputHandler, rows: pa.RecordBatch) -> str:
        """Return the row or the timer that is being processed, as text for an error."""
        context = self._context
        if context.time_domain is None:
            return handler.decoder.newest(rows)
        return timer_text(context.timestamp, context.key)

    def _process_broadcast(self, data: pa.RecordBatch, handler: _InputHandler, out: Collector) -> None:
        for state in self._states:
            state.begin_broadcast()
        self._run(handler, data, [-1] * data.num_rows)
        self._output.emit(out)

    def _run(self, handler: _InputHandler, data: pa.RecordBatch, places: list[int]) -> None:
        process, given, context, current = handler.process, handler.context, self._context, self._current
        ts, rows = ts_of(data), handler.decoder.rows(data)
        times = [None] * data.num_rows if ts is None else ts.to_numpy().tolist()
        emitted, ends, stamps = self._output.rows, self._output.ends, self._output.times
        add, count = emitted.extend, 0
        try:
            for row, current.at, context.timestamp in zip(rows, places, times, strict=True):
                found = process(row, given)
                if found is not None:
                    add(found)
                    if len(emitted) != count:
                        count = len(emitted)
                        ends.append(count)
                        stamps.append(context.timestamp)
        except Exception as error:
            raise user_error(self._where, error, handler.decoder.newest(data)) from error

    # --- timers -----------------------------------------------------------------------------------------------------

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Fire the event-time timers the watermark has reached, then pass it on."""
        self._advance(watermark.timestamp, out)
        out.watermark(watermark)

    def _advance(self, time: int, out: Collector) -> None:
        if time > self._context.watermark:
            self._context.watermark = time
            self._watermarks.advance(time)
            self._fire(self._event_table, self._event, time, out)

    @property
    def next_timer_ms(self) -> float | None:
        """Return the time of the next processing-time timer, as `Clock.now_ms` counts."""
        if self._next_processing is None or self._ended:
            return None
        return -(-self._next_processing // 1000)

    @property
    def next_event_timer(self) -> int | None:
        """Return a time (us) before which no event-time timer is due; None: there is no timer."""
        return self._event_table.next_time()

    @property
    def has_timers(self) -> bool:
        """Whether the function handles timers."""
        return self._function is not None and _handles_timers(self._function)

    def process_time(self, now_ms: int, out: Collector) -> None:
        """Fire the processing-time timers that are due by the clock, which is monotonic here."""
        self._processing_now = max(self._processing_now, now_ms * 1000)
        self._fire(self._processing_table, self._processing, self._processing_now, out)
        self._next_processing = self._processing_table.next_time()

    def _fire(self, table: TimerTable, queue: TimerQueue, until: int, out: Collector) -> None:
        context = self._context
        fired, known = 0, table.size
        context.time_domain = "event" if table is self._event_table else "processing"
        while due := table.take_due(until, self._limits.fired_timers):
            slots, times = due
            with gc_paused():
                local, distinct = self._state.distinct(slots)
                self._begin(distinct)
                self._run_timers(queue, times.tolist(), local.tolist())
                self._end(distinct, out)
            fired += len(times)
            if until == MAX_TIMESTAMP and fired > self._limits.timers_at_end + 1000 * known:
                msg = f"{self._where}: on_timer keeps registering timers at the end of input"
                raise PenstockError(msg, hint="do not register another one when ctx.at_end is true")
        context.time_domain = None

    def _run_timers(self, queue: TimerQueue, times: list[int], places: list[int]) -> None:
        assert self._function is not None  # noqa: S101 - opened
        on_timer, context, current = self._function.on_timer, self._context, self._current
        output = self._output
        emitted, count = output.rows, 0
        try:
            for context.timestamp, current.at in queue.fire(times, places):
                found = on_timer(context.timestamp, context)
                if found is not None:
                    emitted.extend(found)
                    if len(emitted) != count:
                        count = len(emitted)
                        output.ends.append(count)
                        output.times.append(output_time(context))
        except Exception as error:
            raise user_error(self._where, error, timer_text(context.timestamp, context.key)) from error

    # --- a batch of keys --------------------------------------------------------------------------------------------

    def _begin(self, distinct: I32) -> None:
        self._ttl_clock.tick()
        for bound in self._states:
            bound.begin(distinct)
        state = self._state

        def keys() -> list[Any]:
            columns = [python_values(array) for array in state.keys(distinct)]
            return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

        self._keys.begin(keys)

    def _end(
        self,
        distinct: I32,
        out: Collector,
        moments: list[int] | None = None,
        row: Callable[[int], str] | None = None,
    ) -> None:
        """Write back the function's changes to state, and emit its output.

        `row` returns the last row of a key of the batch as text; None for timers.
        """
        for number, state in enumerate(self._states):
            try:
                state.write_back()
            except ColumnError as error:
                raise self._unfit(number, error, row) from error
        self._change(self._event_table, self._event, distinct)
        if self._processing.times:
            self._change(self._processing_table, self._processing, distinct)
        self._next_processing = self._processing_table.next_time()
        self._state.settle()
        self._output.emit(out, moments)

    def _unfit(self, number: int, error: ColumnError, row: Callable[[int], str] | None) -> ColumnError:
        """Return the error of a value that does not fit its state with the key and its last row."""
        given = ""
        if error.index is not None:
            self._keys.fill()
            key = value_text(self._keys.items[error.index])
            given = f"key {key}" if row is None else f"key {key}, {row(error.index)}"
        return error_of_state(error, self._function, self._state_names[number], given)

    def _change(self, table: TimerTable, queue: TimerQueue, distinct: I32) -> None:
        if not queue.times:
            return
        try:
            times = np.array(queue.times, np.int64)
        except OverflowError as error:
            msg = f"{self._where}: a timer's time is beyond 64 bits of microseconds"
            raise UsageError(msg, hint="times are microseconds since the epoch") from error
        places = np.array(queue.places, np.int64)
        queue.times.clear()
        queue.places.clear()
        deleted = places < 0
        table.change(distinct[np.where(deleted, ~places, places)], times, deleted)

    # --- the rest ---------------------------------------------------------------------------------------------------

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze states and timers; the watermark is saved with the hash range it holds for."""
        self._ended = self._ended or barrier.kind.ends_job
        self._ttl_clock.tick()
        broadcasts = [state for state in self._states if isinstance(state, BoundBroadcast)]
        broadcast_items = [saved_state(state.saved, self._function, state.name) for state in broadcasts]
        operator = []
        if broadcast_items and self._first:
            operator.append(
                OperatorStateSnapshot(uid=self._uid, name=BROADCAST, mode="union", items=tuple(broadcast_items))
            )
        if self._context.watermark > MIN_TIMESTAMP:
            items = self._watermarks.items()
            operator.append(OperatorStateSnapshot(uid=self._uid, name=_WATERMARK, mode="union", items=items))
        return OperatorSnapshot(keyed=self._store.freeze(barrier.checkpoint_id), operator=tuple(operator))

    def finish(self, out: Collector) -> None:
        """Drop pending processing-time timers: they never fire."""
        self._ended = True

    def close(self) -> None:
        """Close the function."""
        function, self._function = self._function, None
        if function is not None:
            function.close()


def _handlers(
    context: OperatorContext, function: Any, row_type: Any, given_context: ProcessContext
) -> tuple[_InputHandler, ...]:
    """Return the handlers of the function's inputs; of two inputs `row_type` is a pair."""
    config, schemas = context.spec.config, context.input_schemas
    computed = config.get("computed", ()), config.get("second_computed", ())
    schemas = tuple(visible(schema, hidden) for schema, hidden in zip(schemas, computed, strict=False))
    given: list[tuple[Any, pa.Schema, Any, Any]] = [(config["key"], schemas[0], row_type, "process")]
    if "second_key" in config:
        keys = config["key"], config["second_key"]
        names = ("process1", "process2") if keys[1] is not None else ("process", "process_broadcast")
        given = list(zip(keys, schemas, row_type, names, strict=True))
    contexts = given_context, BroadcastContext(given_context)
    return tuple(
        _InputHandler(
            None if key is None else tuple(key),
            RowDecoder(read_columns(schema, kind), kind),
            getattr(function, method),
            contexts[key is None],
        )
        for key, schema, kind, method in given
    )


def _last_row(handler: _InputHandler, data: pa.RecordBatch, places: I32) -> Callable[[int], str]:
    """Return what gives the last row of a key's place as text; `places`: that of each row."""

    def text(place: int) -> str:
        rows = np.flatnonzero(places == place)
        return handler.decoder.text(data, int(rows[-1])) if len(rows) else "a timer"

    return text
