"""The methods of job definitions: streams, keyed streams, their windows; each method adds an operator or sends rows.

These classes return each other, so they share a module and contain little code. The modules of the rooms below
(`functions.row_functions`, `windows.aggregation`, `windows.joins`...) build the operators: they see a stream as the
protocols of `building.flow` and return a `NewOperator`.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from penstock.api.building.flow import ALL_ROWS_KEY, Flow, require_same_rows, side_flow
from penstock.api.building.notebook import schema_html
from penstock.api.building.operator_nodes import (
    JobBuilder,
    NewOperator,
    OperatorHandle,
    StreamSink,
    append_end,
    append_operator,
    append_two_input,
)
from penstock.api.connectors import print_operator, sink_operator
from penstock.api.functions.row_functions import AsyncCalls, async_function, compile_function
from penstock.api.windows.window_options import WindowOptions, count_window_options, require_event_time
from penstock.core.errors import GraphError, argument_text
from penstock.graph.job_graph import Broadcast, KeyGroup, OperatorSpec, Rebalance
from penstock.graph.validation import require_key_types, require_no_window_columns, require_unique
from penstock.operators.rows.columns import without_ts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import polars as pl
    import pyarrow as pa

    from penstock.api.building.expressions import ColumnLike, Mode
    from penstock.api.connectors import Sink
    from penstock.api.functions.row_functions import FunctionKind
    from penstock.api.windows.aggregates import Aggregate
    from penstock.api.windows.joins import How, JoinedStreams, LateTo
    from penstock.api.windows.window_options import WindowedRows
    from penstock.api.windows.windows import Window
    from penstock.eventtime.strategy import WatermarkStrategy
    from penstock.functions.async_retry import AsyncRetryStrategy
    from penstock.functions.evictors import Evictor
    from penstock.functions.process_function import (
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        ProcessFunction,
    )
    from penstock.functions.state_ttl import TimeToLive
    from penstock.functions.triggers import Trigger
    from penstock.functions.window_functions import ProcessAllWindowFunction, ProcessWindowFunction


class DataStream(OperatorHandle):
    """A stream of rows with a known schema."""

    def __init__(self, environment: JobBuilder, flow: Flow, node: int | None = None) -> None:
        """Made by the environment and by other streams."""
        super().__init__(environment, node)
        self.flow = flow

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows."""
        return without_ts(self.flow.schema)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def select(self, *columns: ColumnLike, **named: Any) -> DataStream:
        """Keep only these columns: names or Polars expressions, also as `name=expression`."""
        return self._project("select", columns, named)

    def with_columns(self, *columns: pl.Expr, **named: Any) -> DataStream:
        """Add or replace columns: Polars expressions, also as `name=expression`."""
        return self._project("with_columns", columns, named)

    def filter(self, condition: pl.Expr | Callable[[Any], bool]) -> DataStream:
        """Keep the rows for which a Polars expression, or a function of one row, is true."""
        # A caller with an expression has loaded Polars; a job without one starts without it.
        polars: Any = sys.modules.get("polars")
        if polars is not None and isinstance(condition, polars.Expr):
            return self._project("filter", [condition], {})
        return self._function("filter_rows", condition, None)

    def map(self, function: Callable[[Any], Any], *, returns: Any = None) -> DataStream:
        """Map each row to one row; the output type is the function's return annotation, or `returns`."""
        return self._function("map", function, returns)

    def flat_map(self, function: Callable[[Any], Any], *, returns: Any = None) -> DataStream:
        """Map each row to any number of rows; annotated as `Iterator[Row]` or similar, or with `returns=Row`."""
        return self._function("flat_map", function, returns)

    def map_batches(self, function: Callable[[Any], Any], *, returns: Any = None) -> DataStream:
        """Map batches (`pl.DataFrame` or `pa.RecordBatch`, as annotated) to batches; their bounds are arbitrary."""
        return self._function("map_batches", function, returns)

    def map_async(
        self,
        function: Callable[[Any], Awaitable[Any]],
        *,
        capacity: int = 100,
        timeout: str | float = "60s",
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
        returns: Any = None,
    ) -> DataStream:
        """Map each row to one row by a coroutine function, with up to `capacity` concurrent calls in each subtask.

        A call that takes longer than `timeout`, including all attempts of `retry`, fails the job; if the function is an
        object with a method `timeout(row)`, that method returns the result instead. `ordered=False` emits rows in order
        of completion, between the same watermarks as their input rows. Rows with a running call are in the checkpoint,
        and a restore repeats the call.

        Raises:
            GraphError: not a coroutine function, no known output type, or a number that makes no sense.
        """
        calls = AsyncCalls(capacity, timeout, ordered, retry)
        return _append(self, async_function(function, returns, calls, self.flow))

    def process(
        self, function: ProcessFunction, *, returns: Any = None, side_outputs: dict[str, Any] | None = None
    ) -> DataStream:
        """Run a `ps.ProcessFunction` on the rows, with state of its subtask and side outputs.

        The output type is the return annotation of its `process`, such as `Iterator[Out]`, or `returns`; those of side
        outputs (`ctx.side(tag, row)`, read with `.side_output(tag)`) are given by tag. State by key and timers need a
        keyed stream: `.key_by(...).process(...)`.

        Raises:
            GraphError: no process function, or a type that is not known.
        """
        from penstock.api.functions.process_functions import compile_plain_process

        return _append(self, compile_plain_process(function, returns, side_outputs or {}, stream=self))

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """Assign event time to rows, replacing any that they had: from a column that a source does not have.

        Former watermarks are ignored. Each subtask's watermark results from its rows, and is saved in the checkpoint. A
        row without a time fails the job.

        Raises:
            GraphError: no strategy with event time, one that does not fit the columns, or one with alignment.
        """
        from penstock.api.watermarks import assigned

        return _append(self, assigned(self.flow, strategy))

    @overload
    def key_by(self, *columns: str, spread: int = 1) -> KeyedStream: ...

    @overload
    def key_by(
        self, function: Callable[[Any], Any], /, *, returns: Any = None, name: str = "key", spread: int = 1
    ) -> KeyedStream: ...

    def key_by(self, *columns: Any, returns: Any = None, name: str = "key", spread: int = 1) -> KeyedStream:
        """Send all rows of a key to the same subtask; `spread=16` divides a window's hot keys over up to 16 subtasks.

        The key is one or more columns, or the result of a function of one row, whose return annotation, or `returns`,
        is the type of the key. Results of aggregates have such a key as the column `key` (`name`); a tuple's members
        are `key_0`, `key_1` and so on, the fields of a NamedTuple columns of their names. Python functions receive rows
        unchanged, with the key separate; whole rows (reduced, deduplicated, joined, late ones) are emitted without it.
        The same row must always have the same key. With `spread`, windows merge the partial aggregates of a key: the
        result is the same; other operators refuse such a stream.

        Raises:
            GraphError: no column, one that does not exist, or a key of a type that is not known or cannot be one.
        """
        from penstock.api.functions.key_selector import require_key_columns, selected_key, spread_flow

        if any(not isinstance(column, str) and callable(column) for column in columns):
            before = unkeyed(self)
            keyed = _with_key(before, *selected_key(before, columns, returns, name))
            return KeyedStream(self.environment, spread_flow(keyed.flow, spread), keyed.keys)
        if returns is not None or name != "key":
            raise GraphError("key_by: returns= and name= are for functions", hint="leave them out for columns")
        flow = self.flow.partitioned(KeyGroup(require_key_columns(columns, self)))
        require_key_types(columns, flow.schema, "key_by")
        require_unique(columns, "key_by")
        return KeyedStream(self.environment, spread_flow(flow, spread), columns)

    def connect(self, other: DataStream) -> Any:
        """Raise an error: only keyed streams can be connected.

        Raises:
            GraphError: always; `KeyedStream.connect` is the one to call.
        """
        del other
        msg = "connect: this stream has no key"
        raise GraphError(msg, hint="key it: a.key_by(...).connect(b.key_by(...)), or .connect(b.broadcast())")

    def rebalance(self) -> DataStream:
        """Send batches to the next operator's subtasks in turn."""
        return DataStream(self.environment, self.flow.partitioned(Rebalance()))

    def broadcast(self) -> DataStream:
        """Send every row to every subtask of the next operator."""
        return DataStream(self.environment, self.flow.partitioned(Broadcast()))

    def union(self, *others: DataStream) -> DataStream:
        """Merge with streams of the same schema; the order of rows from different streams is undefined."""
        for other in others:
            _require_partner(self, other, "union")
            require_same_rows(self.flow, other.flow)
        return DataStream(self.environment, self.flow.union_with([other.flow for other in others]))

    def side_output(self, tag: str) -> DataStream:
        """Return the rows that the operator emitted to its side output `tag`, such as late rows of a window."""
        flow = side_flow(self.environment.builder, self._operator("side_output"), tag)
        return DataStream(self.environment, flow)

    def join(
        self, other: DataStream, *, how: How = "inner", suffix: str = "_right", late_to: LateTo | None = None
    ) -> JoinedStreams[KeyedStream, DataStream]:
        """Join with another stream by key and window: `a.join(b).where("x").equal_to("y").window(ps.Tumbling("10s"))`.

        `how`: "inner", or "left", "right", "full" to emit also the unmatched rows of that side or of both. `late_to`:
        the tags of side outputs for late rows, `{"left": "late-orders", "right": "late-payments"}` or one of them, to
        be read with `.side_output(tag)`; without it late rows are counted and dropped.
        """
        from penstock.api.windows.joins import JoinedStreams, JoinOptions, window_join

        _require_partner(self, other, "join")
        options = JoinOptions(how, suffix, late_to)

        def joined(left: KeyedStream, right: KeyedStream, window: Window) -> DataStream:
            return _without_key(_append_two_input(left, right, window_join(left, right, window, options)), left)

        return JoinedStreams(partial(_keyed_by, self), partial(_keyed_by, other), joined)

    def window_all(self, window: Window) -> AllWindowedStream:
        """Group all rows, regardless of keys, into windows, which one subtask computes.

        Supports all windows, of event time and of processing time.
        """
        require_event_time(window, "window_all", self.flow)
        return AllWindowedStream(unkeyed(self), window)

    def count_window_all(self, size: int, slide: int | None = None) -> AllWindowedStream:
        """Group all rows by number: `size` rows per window; with `slide`, every `slide` rows the last `size`.

        The order of rows of several subtasks is undefined. Rows that do not fill a window are never emitted. Needs no
        event time.
        """
        return AllWindowedStream(unkeyed(self), *count_window_options(size, slide, "count_window_all"))

    def sink_to(self, sink: Sink, *, uid: str = "") -> StreamSink:
        """Write the rows to a sink."""
        return self._end(sink_operator(sink, self.schema, uid), getattr(sink, "created_at", ""))

    def print(self, name: str = "print") -> StreamSink:
        """Print each row as a line of JSON that begins with `name> `, again after a restart.

        An embedded job prints the lines to its terminal; on a cluster they are in `penstock logs`.
        """
        return self._end(print_operator(name))

    def execute_and_collect(
        self, name: str = "collect", *, limit: int | None = None, timeout: str | float | None = None
    ) -> pl.DataFrame:
        """Run the job up to this stream and return its rows; for tests and notebooks.

        The input is bounded, or the job is cancelled at `limit` rows. A job that has not ended after `timeout`, such as
        "30s" or seconds, is cancelled, and the error names the function in a call.
        """
        from penstock.api.building.collection import collect

        return collect(self.environment, self.flow, name, limit, timeout)

    def show(self, rows: int = 20) -> None:
        """Print the first rows as a table: this process reads the sources; nothing is written or committed."""
        from penstock.api.building.collection import show

        show(self.environment, self.flow, rows)

    def _repr_html_(self) -> str:
        return schema_html(type(self).__name__, self.schema)

    def _project(self, mode: Mode, columns: Any, named: dict[str, Any]) -> DataStream:
        from penstock.api.building.expressions import project

        return _append(self, project(mode, columns, named, self.flow))

    def _function(self, kind: FunctionKind, function: Any, returns: Any) -> DataStream:
        flow = self.flow
        return _append(self, compile_function(kind, function, returns, schema=flow.schema, row_type=flow.row_type))

    def _end(self, spec: OperatorSpec, where: str = "") -> StreamSink:
        return StreamSink(self.environment, append_end(self.environment.builder, self.flow, spec, where))


class KeyedStream(DataStream):
    """A stream whose rows of one key reach the same subtask of the next operator."""

    def __init__(self, environment: JobBuilder, flow: Flow, keys: tuple[str, ...]) -> None:
        """Made by `DataStream.key_by`."""
        super().__init__(environment, flow)
        self._keys = keys

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return self._keys

    def window(self, window: Window) -> WindowedStream:
        """Group the rows of each key into windows of event time, or of processing time if the window is defined so."""
        require_no_window_columns(self.columns, require_event_time(window, "window", self.flow))
        return WindowedStream(self, window)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream:
        """Group the rows of each key by number: `size` per window; with `slide`, every `slide` rows the last `size`.

        Rows that do not fill a window are never emitted. Needs no event time.
        """
        require_no_window_columns(self.columns, "count_window")
        return WindowedStream(self, *count_window_options(size, slide, "count_window"))

    def aggregate(self, *aggregates: Aggregate, ttl: TimeToLive | Aggregate = None, **named: Aggregate) -> DataStream:
        """Keep running aggregates of each key and emit, for every row, their values after it.

        Columns: the keys, then the aggregates in the order given. Each row keeps its position and its event time.
        Emitted rows are not retracted: the last row of a key has its current values. With `ttl`, such as "1h", a key
        without rows for this long starts from empty aggregates.

        Raises:
            GraphError: no aggregate, an unknown column, a name twice, or a column of a type the aggregate cannot take.
        """
        from penstock.api.windows.aggregates import Aggregate
        from penstock.api.windows.aggregation import running_aggregate, wanted_aggregates

        if isinstance(ttl, Aggregate):  # the name of an output column
            named, ttl = {**named, "ttl": ttl}, None
        wanted = wanted_aggregates(aggregates, named, self.columns, "aggregate")
        require_unique([*self.keys, *(value.name for value in wanted)], "aggregate")
        stream, wanted = _with_hidden_columns(self, wanted, "aggregate")
        return _append(stream, running_aggregate(stream, wanted, ttl))

    def deduplicate(
        self, *, keep: Literal["first", "last"] = "first", by: str | None = None, ttl: TimeToLive = None
    ) -> DataStream:
        """Keep one row of each key, the first or the last by the column `by`; emit each row that becomes the kept one.

        Without `by`, event time orders the rows (without event time, arrival, for `keep="first"`). Equal rows are
        ordered by arrival; a null is first. This is Flink's deduplication (`ROW_NUMBER() OVER (PARTITION BY key ORDER
        BY by) = 1`): the last row of a key is the result; but no row is late. With `ttl`, such as "1h", a key is
        deleted this long after its kept row last changed.

        Raises:
            GraphError: no such column, or one that cannot order rows.
        """
        from penstock.api.windows.aggregation import deduplicate

        return _without_key(_append(self, deduplicate(self, keep, by, ttl)), self)

    def reduce(self, function: Callable[[Any, Any], Any], *, ttl: TimeToLive = None) -> DataStream:
        """Reduce the rows of each key, two at a time, and emit the reduced row after every row.

        `function(reduced row, next row)` returns a row of the same columns; a key's first row is emitted unchanged.
        With `ttl` a key without rows for this long starts again from its next row.

        Raises:
            GraphError: no function, or a column has a type that state cannot hold.
        """
        from penstock.api.functions.process_functions import reduce_operator

        return _append(self, reduce_operator(function, ttl, stream=self))

    def process(  # type: ignore[override] # a keyed stream takes functions with keys
        self, function: KeyedProcessFunction, *, returns: Any = None, side_outputs: dict[str, Any] | None = None
    ) -> DataStream:
        """Run a user-defined function on the rows of each key, in order, with state and timers of that key.

        The output type is the return annotation of its `process`, such as `Iterator[Out]`, or `returns`; those of side
        outputs (`ctx.side(tag, row)`, read with `.side_output(tag)`) are given by tag.

        Raises:
            GraphError: no process function, or a type that is not known.
        """
        from penstock.api.functions.process_functions import compile_process

        return _append(self, compile_process(function, returns, side_outputs or {}, stream=self))

    def interval_join(
        self,
        other: KeyedStream,
        lower: str | float,
        upper: str | float,
        *,
        how: How = "inner",
        suffix: str = "_right",
        late_to: LateTo | None = None,
    ) -> DataStream:
        """Join with the rows of the same key in another stream whose event times are within bounds.

        A row at time t matches the other stream's rows from t + `lower` to t + `upper`, both inclusive (durations such
        as "-5s", or seconds). Columns: this stream's, then the other's without its key columns; one whose name is taken
        gets the `suffix`. The result's event time is the later of the two.

        `how`: with "left", "right" or "full" that side's unmatched rows, or both, are emitted too, with nulls, when the
        watermark has passed all possible matches. Late rows are dropped or emitted to `late_to`, as for `join`.

        Raises:
            GraphError: the other stream is not keyed by the same types, a side has no event time, the lower bound is
                above the upper one, a name would occur twice, or there is no such `how`.
        """
        from penstock.api.windows.joins import JoinOptions, interval_join

        right, options = _keyed_partner(self, other, "interval_join"), JoinOptions(how, suffix, late_to)
        made = _append_two_input(self, right, interval_join(self, right, (lower, upper), options))
        return _without_key(made, self)

    def temporal_join(
        self,
        versions: KeyedStream,
        *,
        how: Literal["inner", "left"] = "inner",
        suffix: str = "_right",
        late_to: str | None = None,
    ) -> DataStream:
        """Join each row with the newest version of its key at its event time.

        A row of `versions` is valid for its key from its event time until that of the next one; of two at the same time
        the last to arrive. Rows are emitted when the watermark has reached them, with their event time; those without a
        version only with `how="left"`, with nulls. Late rows are counted (`numLateRecordsDropped`) and dropped, or
        emitted to the side output `late_to`; late versions apply to the rows that were not emitted yet. Columns as for
        `interval_join`.

        Raises:
            GraphError: as `interval_join`; or a version has a column of a type that is not kept by key, such as a list.
        """
        from penstock.api.windows.joins import JoinOptions, temporal_join

        right = _keyed_partner(self, versions, "temporal_join")
        options = JoinOptions(how, suffix, None if late_to is None else {"left": late_to})
        return _without_key(_append_two_input(self, right, temporal_join(self, right, options)), self)

    @overload  # a keyed stream is never a broadcast one
    def connect(self, other: KeyedStream) -> ConnectedStreams: ...  # type: ignore[overload-overlap]

    @overload
    def connect(self, other: DataStream) -> BroadcastConnectedStream: ...

    def connect(self, other: DataStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Connect two streams for one function: `a.connect(b).process(function)`; the other is keyed or broadcast.

        Raises:
            GraphError: the other stream is neither, or of another environment.
        """
        _require_partner(self, other, "connect")
        if isinstance(other, KeyedStream):
            return ConnectedStreams(self, other)
        if all(isinstance(upstream.partitioner, Broadcast) for upstream in other.flow.upstreams):
            return BroadcastConnectedStream(self, other)
        msg = "connect: the other stream has no key"
        raise GraphError(msg, hint="key it too: other.key_by(...); or other.broadcast(), for a broadcast state")


class WindowedStream:
    """Rows by key and window, before the operation on each window is chosen."""

    def __init__(self, stream: KeyedStream, window: Window, options: WindowOptions | None = None) -> None:
        """Made by `KeyedStream.window`."""
        self._stream = stream
        self._window = window
        self._options = options or WindowOptions()

    def allowed_lateness(self, lateness: str | float) -> WindowedStream:
        """Keep closed windows for this long: late rows then emit their key's window again, with the new values.

        The sink receives another row for such a window, so it must use the last one of a key and window. Later rows are
        counted (`numLateRecordsDropped`) and dropped.
        """
        return self._with(self._options.with_lateness(lateness, self._window))

    def late_to(self, tag: str) -> WindowedStream:
        """Emit late rows to a side output, which `.side_output(tag)` on the window's output reads.

        They have the columns and the event time of the window's input, and are no longer counted in
        `numLateRecordsDropped`. A row is late when all its windows are closed and their allowed lateness is over. All
        columns then travel to the window, and rows are not combined before the shuffle.
        """
        return self._with(self._options.with_late_tag(tag, self._window))

    def trigger(self, trigger: Trigger) -> WindowedStream:
        """Compute windows when a trigger fires (`ps.trigger`), instead of once at their end.

        Such windows keep their rows, and every row is a Python call.
        """
        return self._with(self._options.with_trigger(trigger))

    def evictor(self, evictor: Evictor) -> WindowedStream:
        """Drop rows from windows by an evictor (`ps.evictor`). Such windows keep their rows."""
        return self._with(self._options.with_evictor(evictor))

    def reduce(self, function: Callable[[Any, Any], Any]) -> DataStream:
        """Reduce the rows of each window, two at a time, to one row of the same columns."""
        from penstock.api.windows.window_rows import reduce_operator

        return _append(self._stream, reduce_operator(self._rows(self._stream), function))

    def apply(self, function: Callable[[Any, Any, Any], Any], *, returns: Any = None) -> DataStream:
        """Call a function of (key, window, rows) for each window; it yields or returns any number of rows.

        The window has `start`, `end` and `max_timestamp` in microseconds since the epoch; the output type is the
        function's return annotation, such as `Iterator[Out]`, or `returns`.
        """
        from penstock.api.windows.window_rows import apply_operator

        return _append(self._stream, apply_operator(self._rows(self._stream), function, returns))

    def process(
        self, function: ProcessWindowFunction, *, returns: Any = None, side_outputs: dict[str, Any] | None = None
    ) -> DataStream:
        """Run a user-defined window function, with state per window and side outputs.

        Raises:
            GraphError: no window function, or a type that is not known.
        """
        from penstock.api.windows.window_rows import process_window_operator

        new = process_window_operator(self._rows(self._stream), function, returns, side_outputs or {})
        return _append(self._stream, new)

    def aggregate(self, *aggregates: Aggregate, **named: Aggregate) -> DataStream:
        """Compute aggregates of each key and window; columns: the keys, window_start, window_end, then these in order.

        With `collect`, `count_distinct`, `quantile` or a user-defined aggregate, the window keeps its rows.

        Raises:
            GraphError: no aggregate, an unknown column, a name twice, or a column of a type the aggregate cannot take.
        """
        from penstock.api.windows.aggregation import wanted_aggregates
        from penstock.api.windows.spreading import windowed

        stream, where = self._stream, f"aggregate over {self._window.label}"
        wanted = wanted_aggregates(aggregates, named, stream.columns, where)
        stream, wanted = _with_hidden_columns(stream, wanted, where)
        return _append(stream, windowed(self._rows(stream), wanted, where))

    def _rows(self, stream: KeyedStream) -> WindowedRows:
        from penstock.api.windows.window_options import WindowedRows

        return WindowedRows(stream, self._window, self._options, self._stream.flow.rows)

    def _with(self, options: WindowOptions) -> WindowedStream:
        return WindowedStream(self._stream, self._window, options)


class AllWindowedStream:
    """All rows by window, before the operation on each window is chosen."""

    def __init__(self, stream: DataStream, window: Window, options: WindowOptions | None = None) -> None:
        """Made by `DataStream.window_all`."""
        self._stream = stream
        self._window = window
        self._options = options or WindowOptions()

    def allowed_lateness(self, lateness: str | float) -> AllWindowedStream:
        """Keep closed windows for this long, as `WindowedStream.allowed_lateness`."""
        return self._with(self._options.with_lateness(lateness, self._window))

    def late_to(self, tag: str) -> AllWindowedStream:
        """Emit late rows to a side output, which `.side_output(tag)` on the window's output reads."""
        return self._with(self._options.with_late_tag(tag, self._window))

    def trigger(self, trigger: Trigger) -> AllWindowedStream:
        """Compute windows when a trigger fires (`ps.trigger`), instead of once at their end."""
        return self._with(self._options.with_trigger(trigger))

    def evictor(self, evictor: Evictor) -> AllWindowedStream:
        """Drop rows from windows by an evictor (`ps.evictor`). Such windows keep their rows."""
        return self._with(self._options.with_evictor(evictor))

    def aggregate(self, *aggregates: Aggregate, **named: Aggregate) -> DataStream:
        """Compute aggregates of each window; columns: window_start, window_end, then these in order.

        Raises:
            GraphError: no aggregate, an unknown column, a name twice, or a column of a type the aggregate cannot take.
        """
        return self._in_one_subtask(
            _without_columns(self._with_single_key().aggregate(*aggregates, **named), (ALL_ROWS_KEY,))
        )

    def reduce(self, function: Callable[[Any, Any], Any]) -> DataStream:
        """Reduce the rows of each window, two at a time, to one row of the same columns."""
        return self._in_one_subtask(self._with_single_key().reduce(function))

    def apply(self, function: Callable[[Any, Any], Any], *, returns: Any = None) -> DataStream:
        """Call a function of (window, rows) for each window; it yields or returns any number of rows.

        The output type is the function's return annotation, such as `Iterator[Out]`, or `returns`.
        """
        given: Any = function
        return self._in_one_subtask(self._with_single_key().apply(given, returns=returns))

    def process(
        self, function: ProcessAllWindowFunction, *, returns: Any = None, side_outputs: dict[str, Any] | None = None
    ) -> DataStream:
        """Run a `ps.ProcessAllWindowFunction` on each window, with state per window and side outputs.

        Raises:
            GraphError: no such function, or a type that is not known.
        """
        given: Any = function
        return self._in_one_subtask(self._with_single_key().process(given, returns=returns, side_outputs=side_outputs))

    def top(self, count: int, *, by: str, descending: bool = True, ties: bool = False) -> DataStream:
        """Keep the `count` best rows of each window by one column, whole rows, and emit them when the window closes.

        With `ties`, also every row equal to the last of them (SQL's `RANK() <= count`); without, equal rows are taken
        in order of arrival (`ROW_NUMBER() <= count`). Rows keep their columns and are emitted best first; null is never
        among the best. Every subtask pre-selects its rows, one subtask selects the result. For tumbling and sliding
        windows of event time.

        Raises:
            GraphError: no such column, or one that cannot order rows; another window; or a trigger or the like.
        """
        from penstock.api.windows.window_top import TopSpec, window_top

        thin, choose = window_top(self._stream, self._window, self._options, TopSpec(by, count, descending, ties))
        return self._in_one_subtask(_append(_append(self._stream, thin), choose))

    def max_by(self, by: str, *, ties: bool = True) -> DataStream:
        """Keep the rows of each window with the greatest value of a column; without `ties` only the first of them."""
        return self.top(1, by=by, ties=ties)

    def min_by(self, by: str, *, ties: bool = True) -> DataStream:
        """Keep the rows of each window with the least value of a column; without `ties` only the first of them."""
        return self.top(1, by=by, descending=False, ties=ties)

    def _with_single_key(self) -> WindowedStream:
        """Return the windows of the one key; add the operator that assigns it."""
        from penstock.api.functions.key_selector import one_key

        require_no_window_columns(self._stream.columns, f"window_all({self._window.label})")
        return WindowedStream(_with_key(self._stream, *one_key()), self._window, self._options)

    def _with(self, options: WindowOptions) -> AllWindowedStream:
        return AllWindowedStream(self._stream, self._window, options)

    def _in_one_subtask(self, made: DataStream) -> DataStream:
        """Limit an operator to a single subtask."""
        made.set_parallelism(1)
        made.single = "windows over all rows are computed in one subtask"
        return made


class ConnectedStreams:
    """Two keyed streams as inputs of one function; each keeps its row type."""

    def __init__(self, first: KeyedStream, second: KeyedStream) -> None:
        """Made by `KeyedStream.connect`."""
        self._first = first
        self._second = second

    def process(
        self, function: KeyedCoProcessFunction, *, returns: Any = None, side_outputs: dict[str, Any] | None = None
    ) -> DataStream:
        """Run a user-defined function on the rows of each key of both streams, with state and timers of that key.

        The output type is the return annotation of its `process1` or `process2`, or `returns`; those of side outputs
        (`ctx.side(tag, row)`) are given by tag. The order between rows of the two streams is not defined.

        Raises:
            GraphError: no such function, keys of different types, event time on one side only, or a type that is not
                known.
        """
        from penstock.api.functions.process_functions import CO_PROCESS, compile_two_input

        streams = self._first, self._second
        return _append_two_input(
            *streams, compile_two_input(CO_PROCESS, function, returns, side_outputs or {}, streams)
        )


class BroadcastConnectedStream:
    """A keyed stream and a broadcast stream, which every subtask receives completely, as inputs of one function."""

    def __init__(self, keyed: KeyedStream, broadcast: DataStream) -> None:
        """Made by `KeyedStream.connect`."""
        self._keyed = keyed
        self._broadcast = broadcast

    def process(
        self,
        function: KeyedBroadcastProcessFunction,
        *,
        returns: Any = None,
        side_outputs: dict[str, Any] | None = None,
    ) -> DataStream:
        """Run a user-defined function on the rows of each key and of the broadcast stream, with shared broadcast state.

        The output type is the return annotation of its `process`, or `returns`. The order between rows of the two
        streams is not defined.

        Raises:
            GraphError: no such function, event time on one side only, or a type that is not known.
        """
        from penstock.api.functions.process_functions import BROADCAST_PROCESS, compile_two_input

        streams = self._keyed, self._broadcast
        return _append_two_input(
            *streams, compile_two_input(BROADCAST_PROCESS, function, returns, side_outputs or {}, streams)
        )


def unkeyed(stream: DataStream) -> DataStream:
    """Return a stream as it was before `key_by`."""
    if not isinstance(stream, KeyedStream):
        return stream
    before: DataStream | None = stream.flow.computed_of
    return DataStream(stream.environment, stream.flow.before_shuffle()) if before is None else before


def _append(stream: DataStream, new: NewOperator) -> DataStream:
    """Add an operator after a stream and return its output."""
    flow = append_operator(stream.environment.builder, stream.flow, new)
    return DataStream(stream.environment, flow, flow.upstreams[0].node)


def _append_two_input(first: DataStream, second: DataStream, new: NewOperator) -> DataStream:
    """Add an operator after two streams and return its output."""
    flow = append_two_input(first.environment.builder, first.flow, second.flow, new)
    return DataStream(first.environment, flow, flow.upstreams[0].node)


def _with_key(stream: DataStream, spec: OperatorSpec, keys: pa.Schema) -> KeyedStream:
    """Return the stream keyed by columns that an operator computes."""
    from penstock.api.functions.key_selector import with_key

    names, made = tuple(keys.names), _append(stream, with_key(stream.flow, spec, keys))
    return KeyedStream(stream.environment, made.flow.keyed(names, of=stream), names)


def _without_key(made: DataStream, keyed: DataStream) -> DataStream:
    """Return the output of a keyed stream's operator without the columns of a computed key."""
    return _without_columns(made, keyed.flow.computed) if keyed.flow.computed else made


def _without_columns(stream: DataStream, names: tuple[str, ...]) -> DataStream:
    """Return an operator's output without the columns of a computed key; later options apply to the operator."""
    left = stream.select(*(name for name in stream.columns if name not in names))
    flow = msgspec.structs.replace(left.flow, row_type=stream.flow.row_type)
    made = DataStream(stream.environment, flow, stream.flow.upstreams[0].node)
    made.followers = (left.flow.upstreams[0].node,)
    return made


def _with_hidden_columns(
    stream: KeyedStream, aggregates: list[Aggregate], where: str
) -> tuple[KeyedStream, list[Aggregate]]:
    """Return the stream with the columns that conditional aggregates need, computed before rows are sent by key."""
    from penstock.api.windows.aggregation import hidden_columns

    columns, plain = hidden_columns(aggregates, where)
    if not columns:
        return stream, plain
    before = DataStream(stream.environment, stream.flow.before_shuffle())
    of, flow = stream.flow, before.with_columns(**columns).flow.partitioned(KeyGroup(stream.keys))
    flow = msgspec.structs.replace(flow, computed=of.computed, computed_of=of.computed_of, spread=of.spread)
    return KeyedStream(stream.environment, flow, stream.keys), plain


def _require_partner(stream: DataStream, other: Any, where: str) -> None:
    """Check that another stream can be the second input.

    Raises:
        GraphError: it is no stream, or one of another environment.
    """
    if not isinstance(other, DataStream):
        given = "a list" if isinstance(other, (list, tuple)) else argument_text(other)
        raise GraphError(f"{where}: {given} is not a stream", hint="give the stream itself, several one by one")
    if other.environment is not stream.environment:
        msg = f"{where}: the streams belong to different environments"
        raise GraphError(msg, hint="build them from one ps.Environment")


def _keyed_partner(stream: DataStream, other: Any, where: str) -> KeyedStream:
    """Return another stream that can be the second input and is keyed. Raises GraphError."""
    _require_partner(stream, other, where)
    if not isinstance(other, KeyedStream):
        raise GraphError(f"{where}: the other stream has no key", hint="key it too: other.key_by(...)")
    return other


def _keyed_by(stream: DataStream, columns: tuple[Any, ...], returns: Any) -> KeyedStream:
    return stream.key_by(*columns) if returns is None else stream.key_by(*columns, returns=returns)
