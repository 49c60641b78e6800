"""`DataStream`: rows on their way through a job; each method adds an operator or says how rows travel to the next."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, overload

import msgspec

from penstock.api.appending import append_node, append_operator, append_process
from penstock.api.call_site import call_site
from penstock.api.flow import Flow
from penstock.api.operator_handle import OperatorHandle, StreamSink
from penstock.api.row_functions import compile_function
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import GraphError
from penstock.core.names import near
from penstock.core.views import plain_schema
from penstock.graph.job_graph import Broadcast, KeyGroup, OperatorSpec, Rebalance
from penstock.graph.stream_graph import StreamNode, Upstream
from penstock.graph.validate import require_key_types, require_name, require_unique
from penstock.operators.columns import without_ts

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from penstock.api.all_windowed_stream import AllWindowedStream
    from penstock.api.connectors import Sink
    from penstock.api.environment import Environment
    from penstock.api.expressions import ColumnLike, Mode
    from penstock.api.joined_streams import JoinedStreams
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.two_inputs import How, LateTo
    from penstock.api.windows import Window
    from penstock.eventtime.strategy import WatermarkStrategy
    from penstock.operators.async_retry import AsyncRetryStrategy
    from penstock.operators.process_function import ProcessFunction


class DataStream(OperatorHandle):
    """A stream of rows with a known schema."""

    def __init__(self, environment: Environment, flow: Flow, node: int | None = None) -> None:
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

    # --- column operations
    # ---------------------------------------------------------------------------------------------------

    def select(self, *columns: ColumnLike, **named: Any) -> DataStream:
        """Keep these columns: names or Polars expressions, also as `name=expression`."""
        return self._project("select", columns, named)

    def with_columns(self, *columns: pl.Expr, **named: Any) -> DataStream:
        """Add or replace columns: Polars expressions, also as `name=expression`."""
        return self._project("with_columns", columns, named)

    def filter(self, condition: pl.Expr | Callable[[Any], bool]) -> DataStream:
        """Keep the rows for which a Polars expression, or a function of one row, is true."""
        # Whoever has made an expression has loaded Polars; a job without one starts without it.
        polars: Any = sys.modules.get("polars")
        if polars is not None and isinstance(condition, polars.Expr):
            return self._project("filter", [condition], {}, self.flow.row_type)
        return self._function("filter_rows", condition, None)

    # --- Python functions
    # ----------------------------------------------------------------------------------------------------

    def map(self, function: Callable[[Any], Any], *, returns: Any = None) -> DataStream:
        """Turn each row into one row; the output type is the function's return annotation, or `returns`."""
        return self._function("map", function, returns)

    def flat_map(self, function: Callable[[Any], Any], *, returns: Any = None) -> DataStream:
        """Turn each row into any number of rows; annotated as `Iterator[Row]` or the like, or `returns=Row`."""
        return self._function("flat_map", function, returns)

    def map_batches(self, function: Callable[[Any], Any], *, returns: Any = None) -> DataStream:
        """Turn a whole batch (`pl.DataFrame` or `pa.RecordBatch`, as annotated) into another, row by row alike."""
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
        """Turn each row into one row by a coroutine function; up to `capacity` calls of a subtask are under way.

        A call that takes longer than `timeout`, all attempts of `retry` together, fails the job, or has the result
        that `timeout(row)` of the function gives where it is an object with that method. `ordered=False` emits rows as
        they are done, between the watermarks they came between. Rows under way are in the checkpoint and are asked
        again after a restore.

        Raises:
            GraphError: not a coroutine function, no known output type, or a number that makes no sense.
        """
        from penstock.operators.async_retry import Retrying

        timeout_ms = parse_duration_ms(timeout, "time-out of map_async")
        if capacity < 1 or timeout_ms <= 0:
            msg = f"map_async: capacity and timeout must be positive, not {capacity} and {timeout!r}"
            raise GraphError(msg, hint="write for example .map_async(f, capacity=100, timeout='5s')")
        carried = None if retry is None else Retrying(function, retry)
        flow = self.flow
        made = compile_function(
            "map_async", function, returns, schema=flow.schema, row_type=flow.row_type, carried=carried
        )
        config = {"capacity": capacity, "timeout_ms": timeout_ms, "ordered": ordered}
        spec = msgspec.structs.replace(made.spec, config=config, stateful=True)
        return append_operator(self, spec, made.schema, made.row_type)

    def process(
        self, function: ProcessFunction, *, returns: Any = None, side_outputs: dict[str, Any] | None = None
    ) -> DataStream:
        """Run a `ps.ProcessFunction` on the rows, with state of its subtask and side outputs.

        The output type is the return annotation of its `process`, such as `Iterator[Out]`, or `returns`; those of side
        outputs (`ctx.side(tag, row)`, read with `.side_output(tag)`) are given by tag. State by key and timers are for
        keyed streams: `.key_by(...).process(...)`.

        Raises:
            GraphError: no process function, or a type that is not known.
        """
        from penstock.api.process import compile_plain_process

        return append_process(self, compile_plain_process(function, returns, side_outputs or {}, stream=self))

    # --- event time
    # --------------------------------------------------------------------------------------------------------------

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """Give rows event time here, in place of what they may have had: from a column that a source does not know.

        What came before counts no longer. Each subtask's watermark follows from the rows it sees, and is in the
        checkpoint. A row without a time fails the job.

        Raises:
            GraphError: no strategy with event time, one that does not fit the columns, or one with alignment.
        """
        from penstock.api.watermarks import assigned

        return assigned(self, strategy)

    # --- how rows travel
    # -----------------------------------------------------------------------------------------------------

    @overload
    def key_by(self, *columns: str) -> KeyedStream: ...

    @overload
    def key_by(self, function: Callable[[Any], Any], /, *, returns: Any = None, name: str = "key") -> KeyedStream: ...

    def key_by(self, *columns: Any, returns: Any = None, name: str = "key") -> KeyedStream:
        """Send all rows of a key to the same subtask of the next operator; windows then work per key.

        The key is some columns, or what a function of one row returns: its return annotation, or `returns`, is the type
        of the key, which is a column `key` (`name`) of what is aggregated by it; a tuple's members are `key_0`, `key_1`
        and so on, the fields of a NamedTuple columns of their names. Python functions get rows as they were, with the
        key beside them; whole rows (reduced, deduplicated, joined, late ones) come out without it. The same row must
        always have the same key.

        Raises:
            GraphError: no column, one that does not exist, or a key of a type that is not known or cannot be one.
        """
        from penstock.api.keyed_stream import KeyedStream, unkeyed

        if any(not isinstance(column, str) and callable(column) for column in columns):
            from penstock.api.key_selector import keyed_by

            if len(columns) > 1:
                way = "let one function return a tuple: lambda row: (row.a, f(row))"
                raise GraphError("key_by: a function stands alone", hint=way)
            return keyed_by(unkeyed(self), columns[0], returns, name)
        if returns is not None or name != "key":
            raise GraphError("key_by: returns= and name= are for functions", hint="leave them out for columns")
        if not columns:
            msg = "key_by: no column is given"
            raise GraphError(msg, hint=f"there are: {', '.join(self.columns)}")
        for column in columns:
            if not isinstance(column, str):
                msg = f"key_by: {column!r} is not a column's name"
                raise GraphError(msg, hint="compute the key with .with_columns(key=...) and then .key_by('key')")
        flow = self.flow.sent(KeyGroup(tuple(columns)))
        require_key_types(columns, flow.schema, "key_by")
        require_unique(columns, "key_by")
        return KeyedStream(self.environment, flow, tuple(columns))

    def connect(self, other: DataStream) -> Any:
        """Refuse: only keyed streams are connected.

        Raises:
            GraphError: always; `KeyedStream.connect` is the one to call.
        """
        del other
        msg = "connect: this stream has no key"
        raise GraphError(msg, hint="key it: a.key_by(...).connect(b.key_by(...)), or .connect(b.broadcast())")

    def rebalance(self) -> DataStream:
        """Send batches to the next operator's subtasks in turn."""
        return DataStream(self.environment, self.flow.sent(Rebalance()))

    def broadcast(self) -> DataStream:
        """Send every row to every subtask of the next operator."""
        return DataStream(self.environment, self.flow.sent(Broadcast()))

    def union(self, *others: DataStream) -> DataStream:
        """Merge with streams of the same schema; the order between them is not defined."""
        for other in others:
            if other.environment is not self.environment:
                msg = "union: the streams belong to different environments"
                raise GraphError(msg, hint="build them from one ps.Environment")
            if other.flow.has_event_time != self.flow.has_event_time:
                msg = "union: one stream has event time and the other has none"
                way = "give its source watermarks=..., or .assign_timestamps_and_watermarks(...)"
                raise GraphError(msg, hint=f"give the other one event time too: {way}")
            if not other.flow.schema.equals(self.flow.schema):
                msg = f"union: the streams differ: {_difference(self.flow.schema, other.flow.schema)}"
                raise GraphError(msg, hint="bring them to one schema with .select(...)")
        upstreams = tuple(u for stream in (self, *others) for u in stream.flow.upstreams)
        types = {stream.flow.row_type for stream in (self, *others)}
        row_type = types.pop() if len(types) == 1 else None
        unsent = None if others else self.flow.unsent  # several inputs are sent whatever becomes of them
        flow = Flow(upstreams=upstreams, schema=self.flow.schema, row_type=row_type, unsent=unsent)
        return DataStream(self.environment, flow)

    def side_output(self, tag: str) -> DataStream:
        """Return the rows that the operator put aside under `tag`, such as late rows of a window."""
        node = self._operator("side_output")
        tags = self.environment.builder.node(node).side_outputs
        if tag not in tags:
            msg = f"{self.environment.builder.node(node).label} has no side output {tag!r}"
            ways = ".late_to(tag) gives a window one, on_bad_record='dead-letter' a source"
            raise GraphError(msg, hint=f"{near(tag, tags)}; {ways}")
        from penstock.core.schema import schema_from_text

        flow = Flow(upstreams=(Upstream(node=node, side_output=tag),), schema=schema_from_text(tags[tag]))
        return DataStream(self.environment, flow)

    # --- two streams
    # ---------------------------------------------------------------------------------------------------------

    def join(
        self, other: DataStream, *, how: How = "inner", suffix: str = "_right", late_to: LateTo | None = None
    ) -> JoinedStreams:
        """Join with another stream by key and window: `a.join(b).where("x").equal_to("y").window(ps.Tumbling("10s"))`.

        `how`: "inner", or "left", "right", "full" for rows of that side, or of both, that meet none, too. `late_to`:
        under which tags late rows are put aside, `{"left": "late-orders", "right": "late-payments"}` or one of them, to
        be read with `.side_output(tag)`, in place of being counted and dropped.
        """
        from penstock.api.joined_streams import JoinedStreams, JoinOptions
        from penstock.api.two_inputs import require_partner

        require_partner(self, other, "join")
        return JoinedStreams(self, other, JoinOptions(how, suffix, late_to))

    # --- windows over all keys
    # -----------------------------------------------------------------------------------------------

    def window_all(self, window: Window) -> AllWindowedStream:
        """Group all rows, whatever their keys, into windows, which one subtask computes.

        Windows of event time, or of processing time where the window says so; all that there are.
        """
        from penstock.api.all_windowed_stream import AllWindowedStream
        from penstock.api.keyed_stream import unkeyed
        from penstock.api.windows import require_window

        where = f"window_all({require_window(window).label})"
        if window.time == "event" and not self.flow.has_event_time:
            msg = f"{where}: the stream has no event time"
            way = "ps.WatermarkStrategy.bounded_out_of_orderness('5s', timestamp=...)"
            raise GraphError(msg, hint=f"give env.from_source(..., watermarks={way})")
        return AllWindowedStream(unkeyed(self), window)

    def count_window_all(self, size: int, slide: int | None = None) -> AllWindowedStream:
        """Group all rows by number: every `size` of them once; with `slide`, every `slide` the last `size`.

        The order in which rows of several subtasks come is not defined. Rows that do not fill a window up never come
        out. Needs no event time.
        """
        from penstock.api.all_windowed_stream import AllWindowedStream
        from penstock.api.keyed_stream import unkeyed
        from penstock.api.windowed_stream import counted
        from penstock.api.windows import Global

        return AllWindowedStream(unkeyed(self), Global(), counted(size, slide, "count_window_all"))

    # --- ends
    # ----------------------------------------------------------------------------------------------------------------

    def sink_to(self, sink: Sink, *, uid: str = "") -> StreamSink:
        """Write the rows to a sink."""
        if not callable(getattr(sink, "spec", None)):
            msg = f"sink_to: {sink!r} is not a sink"
            raise GraphError(msg, hint="use a connector, for example penstock_connectors.kafka.KafkaSink")
        if uid:
            require_name(uid, "uid")
        given = self.schema if getattr(sink, "takes_views", False) else plain_schema(self.schema)
        spec = OperatorSpec(
            uid=uid,
            name=f"Sink: {uid or type(sink).__name__}",
            kind="sink",
            config={"sink": msgspec.to_builtins(sink.spec(given))},
            stateful=True,
        )
        return StreamSink(self.environment, append_node(self, StreamNode(id=0, operator=spec, where=call_site())))

    def print(self, name: str = "print") -> StreamSink:
        """Print each row as a line of JSON that begins with `name> `, for a look at a stream.

        An embedded job shows the lines where it runs; on a cluster they are in `penstock logs`. Rows may be printed
        again after a restart.
        """
        require_name(name, "name")
        spec = OperatorSpec(uid="", name=f"Print: {name}", kind="print", config={"name": name})
        return StreamSink(self.environment, append_node(self, StreamNode(id=0, operator=spec, where=call_site())))

    def execute_and_collect(self, name: str = "collect", *, limit: int | None = None) -> pl.DataFrame:
        """Run the job up to here and return its rows; for tests and notebooks.

        The input must be bounded, or `limit` given: the job is cancelled as soon as there are so many rows.
        """
        from penstock.api.collect import collect

        return collect(self, name, limit)

    def _project(self, mode: Mode, columns: Any, named: dict[str, Any], row_type: Any = None) -> DataStream:
        from penstock.api.expressions import project

        projection = project(mode, columns, named, self.flow.schema)
        return append_operator(self, projection.spec, projection.schema, row_type)

    def _function(self, kind: Any, function: Any, returns: Any) -> DataStream:
        made = compile_function(kind, function, returns, schema=self.flow.schema, row_type=self.flow.row_type)
        return append_operator(self, made.spec, made.schema, made.row_type)


def _difference(left: pa.Schema, right: pa.Schema) -> str:
    if left.names != right.names:
        return f"columns {', '.join(left.names)} and {', '.join(right.names)}"
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if not a.equals(b)]
    return "; ".join(f"{a.name} is {_shown(a)} and {_shown(b)}" for a, b in pairs) or "schema metadata"


def _shown(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"
