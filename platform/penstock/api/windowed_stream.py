"""`WindowedStream`: what `.window(...)` gives; `.aggregate(...)`, `.reduce(...)`... end it and add the operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.aggregation import wanted_aggregates, with_conditions
from penstock.api.appending import append_operator
from penstock.api.windows import ALL, Global, Session
from penstock.config.settings import parse_duration_ms
from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import WINDOW_COLUMNS, require_name, require_unique
from penstock.operators.columns import with_ts
from penstock.operators.window_schema import KEPT_FUNCTIONS, output_schema, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.api.aggregates import Aggregate
    from penstock.api.data_stream import DataStream
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.window_rows import WindowRows
    from penstock.api.windows import Window
    from penstock.operators.evictors import Evictor
    from penstock.operators.triggers import Trigger
    from penstock.operators.window_function import ProcessWindowFunction


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """What was said of a window besides its assigner."""

    lateness_us: int = 0
    late_tag: str | None = None
    trigger: Trigger | None = None
    evictor: Evictor | None = None


def counted(size: int, slide: int | None, where: str) -> WindowOptions:
    """Return what makes global windows those of `size` rows, computed every `slide` rows.

    Raises:
        GraphError: a window without rows.
    """
    from penstock.operators.evictors import CountEvictor
    from penstock.operators.triggers import CountTrigger, PurgingTrigger

    if size < 1:
        raise GraphError(f"{where}({size!r}) has no rows", hint="use 1 or more")
    if slide is None:
        return WindowOptions(trigger=PurgingTrigger(CountTrigger(size)))
    return WindowOptions(trigger=CountTrigger(slide), evictor=CountEvictor(size, after=False))


class WindowedStream:
    """Rows by key and window, waiting for what is to be done with each window."""

    def __init__(self, stream: KeyedStream, window: Window, options: WindowOptions | None = None) -> None:
        """Made by `KeyedStream.window`."""
        self._stream = stream
        self._window = window
        self._options = options or WindowOptions()

    @property
    def options(self) -> WindowOptions:
        """What was said of the window."""
        return self._options

    def allowed_lateness(self, lateness: str | float) -> WindowedStream:
        """Keep closed windows for this long: late rows then give their key's window again, with the new values.

        The sink gets a row more for such a window, so it must take the last one of a key and window. Later rows are
        counted (`numLateRecordsDropped`) and dropped.
        """
        milliseconds = parse_duration_ms(lateness, "allowed lateness")
        if milliseconds < 0:
            msg = f"allowed_lateness({lateness!r}) is negative"
            raise GraphError(msg, hint="use 0 or a duration such as '1m'")
        if milliseconds and self._window.time != "event":
            msg = f"allowed_lateness({lateness!r}): no row is late for a window of {self._window.label}"
            raise GraphError(msg, hint="leave it out, or use a window of event time")
        return self._with(lateness_us=milliseconds * 1000)

    def late_to(self, tag: str) -> WindowedStream:
        """Put late rows aside, to be read with `.side_output(tag)` on the window's output.

        They have the columns and the event time of the window's input, and are no longer counted in
        `numLateRecordsDropped`. A row is late when all its windows are closed and their allowed lateness is over. All
        columns then travel to the window, and rows are not combined before the shuffle.
        """
        require_name(tag, "late_to: the tag")
        if self._window.time != "event":
            msg = f"late_to({tag!r}): no row is late for a window of {self._window.label}"
            raise GraphError(msg, hint="leave it out, or use a window of event time")
        return self._with(late_tag=tag)

    def trigger(self, trigger: Trigger) -> WindowedStream:
        """Compute windows when a trigger says so (`ps.trigger`), in place of once at their end.

        Such windows keep their rows, and every row is a Python call.
        """
        from penstock.operators.triggers import Trigger as Base

        if not isinstance(trigger, Base):
            msg = f"trigger({trigger!r}): that is no trigger"
            raise GraphError(msg, hint="use one of ps.trigger, or derive it from ps.Trigger")
        return self._with(trigger=trigger)

    def evictor(self, evictor: Evictor) -> WindowedStream:
        """Leave rows out of windows (`ps.evictor`) and forget them. Such windows keep their rows."""
        from penstock.operators.evictors import Evictor as Base

        if not isinstance(evictor, Base):
            msg = f"evictor({evictor!r}): that is no evictor"
            raise GraphError(msg, hint="use one of ps.evictor, or derive it from ps.Evictor")
        return self._with(evictor=evictor)

    def reduce(self, function: Callable[[Any, Any], Any]) -> DataStream:
        """Put the rows of each window together, two at a time, into one row of the same columns."""
        from penstock.api.window_rows import reduced

        return reduced(self._rows(self._stream), function)

    def apply(self, function: Callable[[Any, Any, Any], Any], *, returns: Any = None) -> DataStream:
        """Call a function of (key, window, rows) for each window; it yields or returns any number of rows.

        The window has `start`, `end` and `max_timestamp` in microseconds since the epoch; the output type is the
        function's return annotation, such as `Iterator[Out]`, or `returns`.
        """
        from penstock.api.window_rows import applied

        return applied(self._rows(self._stream), function, returns, of_all=self._stream.keys == (ALL,))

    def process(
        self, function: ProcessWindowFunction, *, returns: Any = None, side_outputs: dict[str, Any] | None = None
    ) -> DataStream:
        """Run a window function of one's own, with state per window and side outputs.

        Raises:
            GraphError: no window function, or a type that is not known.
        """
        from penstock.api.window_rows import processed

        return processed(self._rows(self._stream), function, returns, side_outputs or {})

    def aggregate(self, *aggregates: Aggregate, **named: Aggregate) -> DataStream:
        """Compute aggregates of each key and window; columns: the keys, window_start, window_end, then these in order.

        With `collect`, `count_distinct`, `quantile` or an aggregate of one's own the window keeps its rows.

        Raises:
            GraphError: no aggregate, an unknown column, a name twice, or a column of a type the aggregate cannot take.
        """
        where = f"aggregate over {self._window.label}"
        wanted = wanted_aggregates(aggregates, named, self._stream, where)
        stream, wanted = with_conditions(self._stream, wanted, where)
        require_unique([*stream.keys, *WINDOW_COLUMNS, *(value.name for value in wanted)], where)
        chosen = self._options.trigger or self._options.evictor or isinstance(self._window, Global)
        plain = not chosen and not (isinstance(self._window, Session) and self._window.time != "event")
        if not plain or any(value.fn in KEPT_FUNCTIONS for value in wanted):
            from penstock.api.window_rows import aggregated

            whole = not plain or any(value.fn == "aggregator" and value.column is None for value in wanted)
            return aggregated(self._rows(stream, None if whole else self._edge(stream, wanted)), wanted)
        config = {**self._config(stream), "aggregates": [value.to_config() for value in wanted]}
        name = f"Window({self._window.label})"
        spec = OperatorSpec(uid="", name=name, kind=self._kind, config=config, stateful=True)
        rows = stream.flow.schema if self._window.time == "event" else with_ts(stream.flow.schema)
        combine = self._kind in ("window_aggregate", "processing_window") and parse(config).combines
        output = append_operator(
            stream, spec, output_schema(config, rows), edge=self._edge(stream, wanted), combine=combine
        )
        if self._options.late_tag is not None:
            late = {self._options.late_tag: schema_to_text(self._stream.flow.rows)}
            output.environment.builder.update(output.flow.upstreams[0].node, side_outputs=late)
        return output

    def _edge(self, stream: KeyedStream, wanted: Sequence[Aggregate]) -> pa.Schema:
        """Return the columns the operator looks at: no other need travel to it."""
        if self._options.late_tag is not None:
            return stream.flow.schema
        time = {TS_COLUMN} if self._window.time == "event" else set()
        used = {*stream.keys, *(value.column for value in wanted), *time}
        return pa.schema([field for field in stream.flow.schema if field.name in used])

    def _config(self, stream: KeyedStream) -> dict[str, Any]:
        """Return what the operators of all windows are told."""
        config: dict[str, Any] = {
            "key": list(stream.keys),
            "window": self._window.to_config(),
            "allowed_lateness_us": self._options.lateness_us,
        }
        if stream.keys == (ALL,):
            config["of_all"] = True
        if self._options.late_tag is not None:
            config["late_to"] = {"tag": self._options.late_tag, "columns": list(self._stream.flow.rows.names)}
        return config

    def _rows(self, stream: KeyedStream, edge: pa.Schema | None = None) -> WindowRows:
        from penstock.api.window_rows import WindowRows

        return WindowRows(stream, self._window, self._options, self._config(stream), edge)

    def _with(self, **changes: Any) -> WindowedStream:
        return WindowedStream(self._stream, self._window, replace(self._options, **changes))

    @property
    def _kind(self) -> str:
        """The operator that serves the window."""
        if isinstance(self._window, Session):
            return "session_aggregate"
        if self._window.time != "event":
            return "processing_window"
        return "zoned_window" if "time_zone" in self._window.to_config() else "window_aggregate"
