"""`AllWindowedStream`: what `.window_all(...)` gives: windows over the rows of all keys, which one subtask computes.

All but `.top(...)` are the windows of a keyed stream whose rows share one key, a column that nobody sees. Where rows
may be combined before the shuffle (`operators.combine`) every subtask before sends one row a pane and batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.api.appending import append_operator
from penstock.api.windows import ALL, require_event_time_window
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import require_columns, require_no_window_columns
from penstock.operators.top_schema import validate_top

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.api.aggregates import Aggregate
    from penstock.api.data_stream import DataStream
    from penstock.api.windowed_stream import WindowedStream, WindowOptions
    from penstock.api.windows import Window
    from penstock.operators.evictors import Evictor
    from penstock.operators.triggers import Trigger
    from penstock.operators.window_function import ProcessAllWindowFunction

_SINGLE = "windows over all rows are computed in one subtask"


class AllWindowedStream:
    """All rows by window, waiting for what is to be done with each window."""

    def __init__(self, stream: DataStream, window: Window, options: WindowOptions | None = None) -> None:
        """Made by `DataStream.window_all`."""
        from penstock.api.windowed_stream import WindowOptions

        self._stream = stream
        self._window = window
        self._options = options or WindowOptions()

    def allowed_lateness(self, lateness: str | float) -> AllWindowedStream:
        """Keep closed windows for this long, as `WindowedStream.allowed_lateness`."""
        return self._with(self._windows(self._stream).allowed_lateness(lateness))

    def late_to(self, tag: str) -> AllWindowedStream:
        """Put late rows aside, to be read with `.side_output(tag)` on the window's output."""
        return self._with(self._windows(self._stream).late_to(tag))

    def trigger(self, trigger: Trigger) -> AllWindowedStream:
        """Compute windows when a trigger says so (`ps.trigger`), in place of once at their end."""
        return self._with(self._windows(self._stream).trigger(trigger))

    def evictor(self, evictor: Evictor) -> AllWindowedStream:
        """Leave rows out of windows (`ps.evictor`) and forget them."""
        return self._with(self._windows(self._stream).evictor(evictor))

    def aggregate(self, *aggregates: Aggregate, **named: Aggregate) -> DataStream:
        """Compute aggregates of each window; columns: window_start, window_end, then these in order.

        Raises:
            GraphError: no aggregate, an unknown column, a name twice, or a column of a type the aggregate cannot take.
        """
        from penstock.api.key_selector import without_columns

        return self._alone(without_columns(self._of_all().aggregate(*aggregates, **named), (ALL,)))

    def reduce(self, function: Callable[[Any, Any], Any]) -> DataStream:
        """Put the rows of each window together, two at a time, into one row of the same columns."""
        return self._alone(self._of_all().reduce(function))

    def apply(self, function: Callable[[Any, Any], Any], *, returns: Any = None) -> DataStream:
        """Call a function of (window, rows) for each window; it yields or returns any number of rows.

        The output type is the function's return annotation, such as `Iterator[Out]`, or `returns`.
        """
        given: Any = function
        return self._alone(self._of_all().apply(given, returns=returns))

    def process(
        self, function: ProcessAllWindowFunction, *, returns: Any = None, side_outputs: dict[str, Any] | None = None
    ) -> DataStream:
        """Run a `ps.ProcessAllWindowFunction` on each window, with state per window and side outputs.

        Raises:
            GraphError: no such function, or a type that is not known.
        """
        given: Any = function
        return self._alone(self._of_all().process(given, returns=returns, side_outputs=side_outputs))

    def top(self, count: int, *, by: str, descending: bool = True, ties: bool = False) -> DataStream:
        """Keep the `count` best rows of each window by one column, whole rows, and emit them when the window closes.

        With `ties`, also every row equal to the last of them (SQL's `RANK() <= count`); without, rows that are equal
        are taken as they came (`ROW_NUMBER() <= count`). Rows keep their columns and come the best first; null is never
        among the best. Every subtask thins its rows out first, one subtask chooses. For tumbling and sliding windows of
        event time.

        Raises:
            GraphError: no such column, or one that cannot order rows; another window; or a trigger or the like.
        """
        from penstock.api.windowed_stream import WindowOptions
        from penstock.core.errors import GraphError

        require_event_time_window(self._window, "top")
        if self._options != WindowOptions():
            msg = "top: it has no triggers, evictors, allowed lateness or late rows"
            raise GraphError(msg, hint="leave them out, or choose the best rows in .apply(f)")
        stream = self._stream
        require_columns([by], stream.columns, "top")
        config: dict[str, Any] = {
            "window": self._window.to_config(),
            "by": by,
            "count": count,
            "descending": descending,
            "ties": ties,
        }
        validate_top({**config, "local": True}, stream.flow.schema)
        name = f"Top {count} by {by}({self._window.label})"
        first = OperatorSpec(uid="", name=f"Local{name}", kind="window_top", config={**config, "local": True})
        thinned = append_operator(stream, first, stream.flow.schema)
        spec = OperatorSpec(uid="", name=name, kind="window_top", config={**config, "local": False}, stateful=True)
        return self._alone(append_operator(thinned, spec, stream.flow.schema, stream.flow.row_type))

    def max_by(self, by: str, *, ties: bool = True) -> DataStream:
        """Keep the rows of each window that have the greatest value of a column; without `ties` the first of them."""
        return self.top(1, by=by, ties=ties)

    def min_by(self, by: str, *, ties: bool = True) -> DataStream:
        """Keep the rows of each window that have the least value of a column; without `ties` the first of them."""
        return self.top(1, by=by, descending=False, ties=ties)

    def _of_all(self) -> WindowedStream:
        """Return the windows of the one key; adds what gives rows that key."""
        from penstock.api.key_selector import keyed_as_one

        require_no_window_columns(self._stream.columns, f"window_all({self._window.label})")
        return self._windows(keyed_as_one(self._stream))

    def _windows(self, stream: Any) -> WindowedStream:
        from penstock.api.windowed_stream import WindowedStream

        return WindowedStream(stream, self._window, self._options)

    def _with(self, windows: WindowedStream) -> AllWindowedStream:
        return AllWindowedStream(self._stream, self._window, windows.options)

    def _alone(self, made: DataStream) -> DataStream:
        """Give an operator its one subtask."""
        made.set_parallelism(1)
        made.single = _SINGLE
        return made
