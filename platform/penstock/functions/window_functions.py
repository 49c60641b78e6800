"""`ProcessWindowFunction`: a user-defined class that computes whole windows, with state per window.

The argument of `.window(...).process(function)`; called by `operators.windows.window_rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.eventtime.windows import TimeWindow


class WindowContext:
    """The context of a window function: the window, times, state per window, and side outputs."""

    __slots__ = ("_state", "key", "merges", "processing_time", "sides", "time", "watermark", "window")

    def __init__(self, sides: dict[str, list[tuple[int, Any]]], *, merges: bool) -> None:
        """Made by the operator."""
        self.key: Any = None
        #: Start, end (exclusive) and `max_timestamp`, in microseconds since the epoch.
        self.window: Any = None
        #: The current watermark and the machine's clock, in microseconds since the epoch.
        self.watermark = 0
        self.processing_time = 0
        self.time = 0
        self.sides = sides
        self.merges = merges
        self._state: dict[str, Any] = {}

    def bind(self, key: Any, window: TimeWindow, state: dict[str, Any], time: int) -> None:
        """Set the window of the next call; `time` is the event time of its output."""
        self.key, self.window, self._state, self.time = key, window, state, time

    @property
    def window_state(self) -> dict[str, Any]:
        """The function's state of this window until it is over: numbers, strings, lists and dicts of these."""
        if self.merges:
            msg = "sessions have no state per window: they merge"
            raise UsageError(msg, hint="use tumbling or sliding windows, or compute it from the rows")
        return self._state

    def side(self, tag: str, row: Any) -> None:
        """Emit a row to a side output declared in `.process(..., side_outputs={tag: Row})`."""
        if tag not in self.sides:
            msg = f"there is no side output {tag!r}"
            raise UsageError(msg, hint=f"declare it: .process(..., side_outputs={{{tag!r}: Row}})")
        self.sides[tag].append((self.time, row))


class ProcessWindowFunction:
    """Base class of functions on whole windows.

    The output type is the return annotation of `process`, such as `Iterator[Out]`.
    """

    def process(self, key: Any, ctx: Any, rows: Sequence[Any]) -> Any:
        """Process a window's rows, in order of arrival; yield or return any number of rows."""
        raise NotImplementedError

    def clear(self, ctx: Any) -> None:
        """Clean up before the window and its state are deleted."""


class ProcessAllWindowFunction:
    """Base class of functions on whole windows over all rows, regardless of keys: `.window_all(...).process(f)`.

    The output type is the return annotation of `process`, such as `Iterator[Out]`.
    """

    def process(self, ctx: Any, rows: Sequence[Any]) -> Any:
        """Process a window's rows, in order of arrival; yield or return any number of rows."""
        raise NotImplementedError

    def clear(self, ctx: Any) -> None:
        """Clean up before the window and its state are deleted."""


class AllRowsFunction(ProcessWindowFunction):
    """A `ProcessAllWindowFunction` as a function of the one key that all rows share."""

    def __init__(self, function: ProcessAllWindowFunction) -> None:
        """Wrap `function`, which does not receive the key."""
        self._function = function

    def process(self, key: Any, ctx: Any, rows: Sequence[Any]) -> Any:
        """Call the wrapped function."""
        del key
        ctx.key = None
        return self._function.process(ctx, rows)

    def clear(self, ctx: Any) -> None:
        """Call the wrapped function."""
        ctx.key = None
        self._function.clear(ctx)


class AppliedToAll:
    """A plain function of (window, rows) as one of (key, window, rows)."""

    def __init__(self, function: Callable[[TimeWindow, Sequence[Any]], Any]) -> None:
        """Wrap `function`, which yields or returns rows."""
        self._function = function

    def __call__(self, key: Any, window: TimeWindow, rows: Sequence[Any]) -> Any:
        """Call the wrapped function."""
        del key
        return self._function(window, rows)


class AppliedFunction(ProcessWindowFunction):
    """A plain function of (key, window, rows), the argument of `.apply`."""

    def __init__(self, function: Callable[[Any, TimeWindow, Sequence[Any]], Any]) -> None:
        """Wrap `function`, which yields or returns rows."""
        self._function = function

    def process(self, key: Any, ctx: Any, rows: Sequence[Any]) -> Any:
        """Call the wrapped function."""
        return self._function(key, ctx.window, rows)
