"""`KeyedStream`: what `.key_by(...)` gives; the partitioning goes to the next operator, which works per key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from penstock.api.appending import append_operator, append_process
from penstock.api.data_stream import DataStream
from penstock.api.windows import Global, Window, require_window
from penstock.core.errors import GraphError
from penstock.graph.job_graph import Broadcast, KeyGroup, OperatorSpec
from penstock.graph.validate import require_columns, require_no_window_columns, require_unique

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.api.aggregates import Aggregate
    from penstock.api.connected_streams import BroadcastConnectedStream, ConnectedStreams
    from penstock.api.environment import Environment
    from penstock.api.flow import Flow
    from penstock.api.two_inputs import How, LateTo
    from penstock.api.windowed_stream import WindowedStream
    from penstock.operators.process_function import KeyedProcessFunction
    from penstock.operators.state_ttl import TimeToLive


class KeyedStream(DataStream):
    """A stream whose rows of one key meet in one subtask of the next operator."""

    def __init__(self, environment: Environment, flow: Flow, keys: tuple[str, ...]) -> None:
        """Made by `DataStream.key_by`."""
        super().__init__(environment, flow)
        self._keys = keys

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return self._keys

    def window(self, window: Window) -> WindowedStream:
        """Group the rows of each key into windows of event time, or of processing time where the window says so."""
        from penstock.api.windowed_stream import WindowedStream

        where = f"window({require_window(window).label})"
        if window.time == "event" and not self.flow.has_event_time:
            msg = f"{where}: the stream has no event time"
            way = "ps.WatermarkStrategy.bounded_out_of_orderness('5s', timestamp=...)"
            raise GraphError(msg, hint=f"give env.from_source(..., watermarks={way})")
        require_no_window_columns(self.columns, where)
        return WindowedStream(self, window)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream:
        """Group the rows of each key by number: every `size` of them once; with `slide`, every `slide` the last `size`.

        Rows that do not fill a window up never come out. Needs no event time.
        """
        from penstock.api.windowed_stream import WindowedStream, counted

        require_no_window_columns(self.columns, "count_window")
        return WindowedStream(self, Global(), counted(size, slide, "count_window"))

    def aggregate(self, *aggregates: Aggregate, ttl: TimeToLive | Aggregate = None, **named: Aggregate) -> DataStream:
        """Keep running aggregates of each key and emit them, as of that row, for every row.

        Columns: the keys, then the aggregates in the order given. Each row keeps its place and its event time; what
        was emitted for a key before is not taken back, so whoever wants the current values takes the last row of a key.
        With `ttl`, such as "1h", a key that had no row for so long begins anew.

        Raises:
            GraphError: no aggregate, an unknown column, a name twice, or a column of a type the aggregate cannot take.
        """
        from penstock.api.aggregates import Aggregate
        from penstock.api.aggregation import wanted_aggregates, with_conditions
        from penstock.operators.running_schema import running_schema
        from penstock.operators.state_ttl import row_ttl_options

        if isinstance(ttl, Aggregate):  # an output column of that name
            named, ttl = {**named, "ttl": ttl}, None
        wanted = wanted_aggregates(aggregates, named, self, "aggregate")
        require_unique([*self.keys, *(value.name for value in wanted)], "aggregate")
        stream, wanted = with_conditions(self, wanted, "aggregate")
        config: dict[str, Any] = {"key": list(self.keys), "aggregates": [value.to_config() for value in wanted]}
        config |= row_ttl_options(ttl, "aggregate")
        spec = OperatorSpec(uid="", name="Aggregate", kind="running_aggregate", config=config, stateful=True)
        return append_operator(stream, spec, running_schema(config, stream.flow.schema))

    def deduplicate(
        self, *, keep: Literal["first", "last"] = "first", by: str | None = None, ttl: TimeToLive = None
    ) -> DataStream:
        """Keep one row of each key, the first or the last by the column `by`, and emit a row when it takes that place.

        Without `by`, event time orders the rows (in a stream without event time, the order of arrival, for
        `keep="first"`). Of rows that are equal in it the first that came is the first, and the last that came the last.
        A null comes before all values. This is Flink's deduplication (`ROW_NUMBER() OVER (PARTITION BY key ORDER BY
        by) = 1`): the sink takes the last row of a key. No row is late, though, where Flink drops late ones for
        `keep="first"`. With `ttl`, such as "1h", a key is forgotten that long after a row last took its place.

        Raises:
            GraphError: no such column, or one that cannot order rows.
        """
        from penstock.operators.running_schema import validate_deduplicate
        from penstock.operators.state_ttl import row_ttl_options

        if by is not None:
            require_columns([by], self.columns, "deduplicate")
        config = {"key": list(self.keys), "keep": keep, "by": by, **row_ttl_options(ttl, "deduplicate")}
        validate_deduplicate(config, self.flow.schema)
        spec = OperatorSpec(uid="", name=f"Deduplicate(keep {keep})", kind="deduplicate", config=config, stateful=True)
        return without_computed(append_operator(self, spec, self.flow.schema, self.flow.row_type), self)

    def reduce(self, function: Callable[[Any, Any], Any], *, ttl: TimeToLive = None) -> DataStream:
        """Put the rows of each key together, two at a time, and emit for every row what there is as of it.

        `function(what there is, next row)` returns a row of the same columns; a key's first row comes out as it is.
        With `ttl` a key that had no row for so long begins anew.

        Raises:
            GraphError: no function, or a column has a type that state cannot hold.
        """
        from penstock.api.process import reduced

        made = reduced(function, ttl, stream=self)
        return append_operator(self, made.spec, made.schema, made.row_type)

    def process(  # type: ignore[override] # a keyed stream is for functions with keys
        self, function: KeyedProcessFunction, *, returns: Any = None, side_outputs: dict[str, Any] | None = None
    ) -> DataStream:
        """Run a function of one's own on the rows of each key, in order, with state and timers of that key.

        The output type is the return annotation of its `process`, such as `Iterator[Out]`, or `returns`; those of side
        outputs (`ctx.side(tag, row)`, read with `.side_output(tag)`) are given by tag.

        Raises:
            GraphError: no process function, or a type that is not known.
        """
        from penstock.api.process import compile_process

        return append_process(self, compile_process(function, returns, side_outputs or {}, stream=self))

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
        """Join with the rows of the same key in another stream whose event time is near.

        A row at time t meets the other stream's rows from t + `lower` to t + `upper`, both inclusive (durations such as
        "-5s", or seconds). Columns: this stream's, then the other's without its key columns; one whose name is taken
        gets the `suffix`. The result's event time is the later of the two.

        `how`: with "left", "right" or "full" a row of that side, or of both, that has met none comes out, too, when the
        watermark says that it can meet none any more: with nulls, and that moment as event time. Rows below the
        watermark are late: counted (`numLateRecordsDropped`) and dropped, or put aside with `late_to`:
        `{"left": "late-orders", "right": "late-payments"}` or one of them, to be read with `.side_output(tag)`.

        Raises:
            GraphError: the other stream is not keyed by columns of the same types, a side has no event time, the lower
                bound is above the upper one, a name would occur twice, or there is no such `how`.
        """
        from penstock.api.two_inputs import append_two_input, late_config, require_keyed, require_partner, signed_us
        from penstock.operators.join_schema import join_schema, parse_interval, validate_join

        require_partner(self, other, "interval_join")
        config = {
            "left_key": list(self.keys),
            "right_key": list(require_keyed(other, "interval_join").keys),
            "suffix": suffix,
            "lower_us": signed_us(lower, "interval_join: lower bound"),
            "upper_us": signed_us(upper, "interval_join: upper bound"),
            **({} if how == "inner" else {"how": how}),
            **late_config(late_to, self, other, "interval_join"),
        }
        parse_interval(config)
        left, right = self.flow.schema, other.flow.schema
        validate_join(config, left, right, "interval_join")
        name = f"IntervalJoin({'' if how == 'inner' else f'{how}, '}{lower}, {upper})"
        spec = OperatorSpec(uid="", name=name, kind="interval_join", config=config, stateful=True)
        return without_computed(append_two_input(self, other, spec, join_schema(config, left, right)), self)

    def temporal_join(
        self,
        versions: KeyedStream,
        *,
        how: Literal["inner", "left"] = "inner",
        suffix: str = "_right",
        late_to: str | None = None,
    ) -> DataStream:
        """Join each row with the newest version of its key at its event time.

        A row of `versions` holds for its key from its event time until that of the next one; of two at the same time
        the one that came last. Rows come out when the watermark has reached them, with their own event time; those
        without a version only with `how="left"`, with nulls. Late rows are counted (`numLateRecordsDropped`) and
        dropped, or put aside under the tag `late_to`; late versions hold for the rows that have not come out yet.
        Columns as of `interval_join`.

        Raises:
            GraphError: as `interval_join`; or a version has a column of a type that is not kept by key, such as a list.
        """
        from penstock.api.two_inputs import append_two_input, late_config, require_keyed, require_partner
        from penstock.operators.join_schema import temporal_join_schema, validate_temporal_join

        require_partner(self, versions, "temporal_join")
        config = {
            "left_key": list(self.keys),
            "right_key": list(require_keyed(versions, "temporal_join").keys),
            "suffix": suffix,
            "how": how,
            **late_config(None if late_to is None else {"left": late_to}, self, versions, "temporal_join"),
        }
        left, right = self.flow.schema, versions.flow.schema
        validate_temporal_join(config, left, right, "temporal_join")
        name = f"TemporalJoin({how})"
        spec = OperatorSpec(uid="", name=name, kind="temporal_join", config=config, stateful=True)
        return without_computed(append_two_input(self, versions, spec, temporal_join_schema(config, left, right)), self)

    @overload  # a keyed stream is never a broadcast one
    def connect(self, other: KeyedStream) -> ConnectedStreams: ...  # type: ignore[overload-overlap]

    @overload
    def connect(self, other: DataStream) -> BroadcastConnectedStream: ...

    def connect(self, other: DataStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Bring two streams into one function: `a.connect(b).process(function)`; the other is keyed or broadcast.

        Raises:
            GraphError: the other stream is neither, or of another environment.
        """
        from penstock.api.connected_streams import BroadcastConnectedStream, ConnectedStreams
        from penstock.api.two_inputs import require_partner

        require_partner(self, other, "connect")
        if isinstance(other, KeyedStream):
            return ConnectedStreams(self, other)
        if all(isinstance(upstream.partitioner, Broadcast) for upstream in other.flow.upstreams):
            return BroadcastConnectedStream(self, other)
        msg = "connect: the other stream has no key"
        raise GraphError(msg, hint="key it too: other.key_by(...); or other.broadcast(), for a broadcast state")


def unkeyed(stream: DataStream) -> DataStream:
    """Return a stream without what a `key_by` has made of it."""
    if not isinstance(stream, KeyedStream):
        return stream
    before: DataStream | None = stream.flow.computed_of
    return DataStream(stream.environment, stream.flow.as_made()) if before is None else before


def with_hidden_columns(stream: KeyedStream, columns: dict[str, Any]) -> KeyedStream:
    """Return a stream with columns that are computed before rows are sent to their keys."""
    before = DataStream(stream.environment, stream.flow.as_made())
    flow = before.with_columns(**columns).flow.sent(KeyGroup(stream.keys))
    computed = {"computed": stream.flow.computed, "computed_of": stream.flow.computed_of}
    return KeyedStream(stream.environment, msgspec.structs.replace(flow, **computed), stream.keys)


def without_computed(made: DataStream, keyed: DataStream) -> DataStream:
    """Return whole rows that came of a keyed stream's without a computed key."""
    if not keyed.flow.computed:
        return made
    from penstock.api.key_selector import without_columns

    return without_columns(made, keyed.flow.computed)
