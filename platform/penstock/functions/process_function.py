"""The parts of a process function, as used by its author: the class, its state handles, its context and timers.

`penstock.operators.process.keyed_process` binds them: every handle receives the batch's keys before a batch, and the
index of the row's key before a row; changes are written back after the batch. The module does not depend on Arrow or on
slots.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.errors import UsageError
from penstock.functions.state_handles import PLAIN, Cells, Current, Declaration, NoTimerQueue, TimerQueue, renames

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.functions.migration import MigrateValues
    from penstock.functions.state_ttl import TimeToLive

T = TypeVar("T")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class ValueChanges:
    """Changes of a `ValueState` for the keys of a batch; the engine writes them back."""

    __slots__ = ("cleared", "marks", "stale")

    def __init__(self) -> None:
        """Start without keys."""
        #: By index of the key: 1 if the value was set or removed. Always the same object, as in `Cells`.
        self.marks = bytearray()
        #: Whether any value was removed.
        self.cleared = False
        #: With a time-to-live: indices of keys whose expired value is read for the last time.
        self.stale: frozenset[int] = frozenset()

    def begin(self, count: int) -> None:
        """Start a batch of `count` other keys."""
        self.marks[:] = bytes(count)
        self.cleared = False


class ValueState(Generic[T]):
    """One value for every key; declared as a class attribute: `seen: ps.ValueState[int] = ps.value_state()`."""

    __slots__ = ("_cells", "_changes", "_current", "_declaration", "_marks", "_values")

    def __init__(self, cells: Cells, changes: ValueChanges, declaration: Declaration = PLAIN) -> None:
        """Made by `ps.value_state` as a declaration, and by the operator for its keys."""
        self._cells = cells
        self._changes = changes
        self._declaration = declaration
        # Used by each call, in one step.
        self._current = cells.current
        self._values = cells.items
        self._marks = changes.marks

    def value(self) -> T | None:
        """Return the current key's value; None if it has none."""
        try:
            found: T | None = self._values[self._current.at]
        except IndexError:  # the first use in this batch
            self._cells.fill()
            found = self._values[self._current.at]
        return found

    def update(self, value: T | None) -> None:
        """Set the current key's value; None removes it."""
        at = self._current.at
        try:
            self._values[at] = value
        except IndexError:  # the first use in this batch
            self._cells.fill()
            self._values[at] = value
        self._marks[at] = 1
        if value is None:
            self._changes.cleared = True

    def clear(self) -> None:
        """Remove the current key's value."""
        self.update(None)


def value_state(
    *, ttl: TimeToLive = None, renamed: dict[str, str] | None = None, migrate: MigrateValues | None = None
) -> ValueState[Any]:
    """Declare a value by key: `count: ps.ValueState[int] = ps.value_state()`.

    The type is the annotation's: int, float, bool, str, bytes, datetime, date, Decimal with its precision, a tuple of
    these (`tuple[int, float | None]`) or a row type (NamedTuple, dataclass, `ps.Schema`). Tuples are made twice as fast
    as row types. With `ttl` (`"1h"`, or a `ps.StateTtlConfig`) the value expires this long after it was written.

    The fields of a row type may change between versions of a job: `renamed={"amount": "total"}` declares that the field
    `amount` was called `total`; a new field needs a default or `| None`. For other changes register a function:
    `migrate=ps.migrate(function, was=Old)`.
    """
    declaration = Declaration(ttl=ttl, renamed=renames(renamed), migrate=migrate)
    return ValueState(Cells(Current()), ValueChanges(), declaration)


class Timers:
    """Timers of the current key; times are microseconds since the epoch, or datetimes (naive ones are UTC)."""

    __slots__ = ("_current", "_event", "_processing")

    def __init__(
        self, current: Current, event: TimerQueue | NoTimerQueue, processing: TimerQueue | NoTimerQueue
    ) -> None:
        """Made by the operator."""
        self._current = current
        self._event = event
        self._processing = processing

    def event(self, timestamp: int | dt.datetime) -> None:
        """Call `on_timer` when the watermark has reached the time; once per key and time, however often requested."""
        time = timestamp if type(timestamp) is int else microseconds(timestamp)
        queue = self._event
        if time <= queue.horizon:
            queue.add_now(time, self._current.at)
        else:
            queue.times.append(time)
            queue.places.append(self._current.at)

    def processing(self, timestamp: int | dt.datetime) -> None:
        """Call `on_timer` when the machine's clock has reached the time."""
        time = timestamp if type(timestamp) is int else microseconds(timestamp)
        queue = self._processing
        if time <= queue.horizon:
            queue.add_now(time, self._current.at)
        else:
            queue.times.append(time)
            queue.places.append(self._current.at)

    def delete(self, timestamp: int | dt.datetime, *, processing: bool = False) -> None:
        """Delete the current key's event-time (or processing-time) timer of that time, if it exists."""
        time = timestamp if type(timestamp) is int else microseconds(timestamp)
        queue = self._processing if processing else self._event
        if time <= queue.horizon:
            queue.delete_now(time, self._current.at)
        else:
            queue.times.append(time)
            queue.places.append(~self._current.at)


def microseconds(timestamp: Any) -> int:
    """Return a point in time as microseconds since the epoch.

    Raises:
        UsageError: it is no point in time, or out of range.
    """
    if isinstance(timestamp, dt.datetime):
        aware = timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // _MICROSECOND
    try:
        time = timestamp.__index__()
    except (AttributeError, TypeError) as error:
        msg = f"a timer's time is {timestamp!r}, which is neither microseconds nor a datetime"
        raise UsageError(msg, hint="for example ctx.timestamp + 10_000_000") from error
    return int(time)


class ProcessContext:
    """The context of `process` and `on_timer`: its members, `timestamp`, `watermark`, `timers`, `time_domain`.

    `timestamp` (None without event time) and `watermark` are microseconds since the epoch; `timers` sets and deletes
    timers of the key; `time_domain` is "event" or "processing" in `on_timer`.
    """

    __slots__ = (
        "_clock",
        "_current",
        "_keys",
        "_loaded",
        "_side_rows",
        "time_domain",
        "timers",
        "timestamp",
        "watermark",
    )

    def __init__(self, keys: Cells, timers: Timers, clock: Clock, side_rows: dict[str, list[Any]]) -> None:
        """Made by the operator."""
        self._keys = keys
        self._loaded = keys.items
        self._current = keys.current
        self._clock = clock
        self._side_rows = side_rows
        self.timers = timers
        #: Event time of the row, or the time of the timer, in microseconds since the epoch; None without event time.
        self.timestamp: Any = None
        #: The current watermark in microseconds since the epoch: no row up to it follows, except late ones.
        self.watermark: int = MIN_TIMESTAMP
        #: In `on_timer`: "event" or "processing".
        self.time_domain: str | None = None

    @property
    def key(self) -> Any:
        """The current key; a tuple when there are several key columns."""
        try:
            return self._loaded[self._current.at]
        except IndexError:  # the first use for this row
            self._keys.fill()
            return self._loaded[self._current.at]

    @property
    def processing_time(self) -> int:
        """The machine's clock in microseconds since the epoch."""
        return self._clock.now_ms() * 1000

    @property
    def at_end(self) -> bool:
        """Whether all input has ended, so that every event-time timer fires now."""
        return self.watermark == MAX_TIMESTAMP

    def side(self, tag: str, row: Any) -> None:
        """Emit a row to a side output declared in `.process(..., side_outputs={tag: Row})`."""
        side_rows_of(self._side_rows, tag).append((output_time(self), row))


def output_time(context: ProcessContext) -> int:
    """Return the event time of output: that of the row or timer; for processing-time timers one that is never late."""
    time: int = context.timestamp
    if context.time_domain != "processing" or context.watermark == MIN_TIMESTAMP:
        return time
    return min(context.watermark + 1, MAX_TIMESTAMP)


class BroadcastContext:
    """The context of `process_broadcast`: times and side outputs; there is no key."""

    __slots__ = ("_context",)

    def __init__(self, context: ProcessContext) -> None:
        """Made by the operator."""
        self._context = context

    @property
    def timestamp(self) -> int | None:
        """Event time of the row in microseconds since the epoch; None without event time."""
        time: int | None = self._context.timestamp
        return time

    @property
    def watermark(self) -> int:
        """The current watermark in microseconds since the epoch."""
        return self._context.watermark

    @property
    def processing_time(self) -> int:
        """The machine's clock in microseconds since the epoch."""
        return self._context.processing_time

    def side(self, tag: str, row: Any) -> None:
        """Emit a row to a side output."""
        self._context.side(tag, row)


class RowContext:
    """The context of a function without keys: times and side outputs."""

    __slots__ = ("_clock", "_side_rows", "timestamp", "watermark")

    def __init__(self, clock: Clock, side_rows: dict[str, list[Any]]) -> None:
        """Made by the operator."""
        self._clock = clock
        self._side_rows = side_rows
        #: Event time of the row in microseconds since the epoch; None without event time.
        self.timestamp: int | None = None
        #: The current watermark in microseconds since the epoch: no row up to it follows, except late ones.
        self.watermark: int = MIN_TIMESTAMP

    @property
    def processing_time(self) -> int:
        """The machine's clock in microseconds since the epoch."""
        return self._clock.now_ms() * 1000

    def side(self, tag: str, row: Any) -> None:
        """Emit a row to a side output declared in `.process(..., side_outputs={tag: Row})`."""
        side_rows_of(self._side_rows, tag).append((self.timestamp, row))


def side_rows_of(sides: dict[str, list[Any]], tag: str) -> list[Any]:
    """Return the rows of a side output.

    Raises:
        UsageError: there is none of that tag.
    """
    rows = sides.get(tag)
    if rows is None:
        msg = f"there is no side output {tag!r}"
        raise UsageError(msg, hint=f"declare it: .process(..., side_outputs={{{tag!r}: Row}})")
    return rows


class OpenContext:
    """The context of `open`: `job_name`, `subtask` (its index, from 0), `parallelism`."""

    __slots__ = ("job_name", "parallelism", "subtask")

    def __init__(self, job_name: str, subtask: int, parallelism: int) -> None:
        """Made by the operator."""
        self.job_name = job_name
        self.subtask = subtask
        self.parallelism = parallelism


class ProcessFunction:
    """Base class of functions on the rows of a stream without keys, with state of their subtask.

    `process` is called for every row and yields (or returns) rows; the output type is its return annotation, such as
    `Iterator[Out]`. States are `ps.operator_list_state()` and `ps.union_state()`; they are restored when `open` is
    called. There are no timers.
    """

    def open(self, ctx: OpenContext) -> None:
        """Prepare for work; called once in every subtask before the first row."""

    def process(self, row: Any, ctx: RowContext) -> Any:
        """Process one row; yield or return any number of rows."""
        raise NotImplementedError

    def snapshot_state(self) -> None:
        """Update the states before a checkpoint from data that the function keeps elsewhere."""

    def close(self) -> None:
        """Release resources; called once at the end, also after a failure."""


class KeyedProcessFunction:
    """Base class of functions on the rows of each key in order, with state and timers of that key.

    `process` is called for every row, `on_timer` for every timer that is due; both yield (or return) rows. The output
    type is the return annotation of `process`, such as `Iterator[Out]`.
    """

    def open(self, ctx: OpenContext) -> None:
        """Prepare for work; called once in every subtask before the first row."""

    def process(self, row: Any, ctx: ProcessContext) -> Any:
        """Process one row; yield or return any number of rows."""
        raise NotImplementedError

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Any:
        """Handle a timer of the current key that is due; yield or return any number of rows."""

    def close(self) -> None:
        """Release resources; called once at the end, also after a failure."""


class KeyedCoProcessFunction:
    """Base class of functions on the rows of each key of two connected streams, with state and timers of that key.

    `process1` is called for the rows of the first stream, `process2` for those of the second, `on_timer` for timers;
    they share the states. The output type is the return annotation of `process1`, of `process2`, or of both.
    """

    def open(self, ctx: OpenContext) -> None:
        """Prepare for work; called once in every subtask before the first row."""

    def process1(self, row: Any, ctx: ProcessContext) -> Any:
        """Process one row of the first stream; yield or return any number of rows."""
        raise NotImplementedError

    def process2(self, row: Any, ctx: ProcessContext) -> Any:
        """Process one row of the second stream; yield or return any number of rows."""
        raise NotImplementedError

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Any:
        """Handle a timer of the current key that is due; yield or return any number of rows."""

    def close(self) -> None:
        """Release resources; called once at the end, also after a failure."""


class KeyedBroadcastProcessFunction:
    """Base class of functions on the rows of each key, with a broadcast stream that every subtask receives completely.

    `process_broadcast` is called for every row of the broadcast stream, in every subtask; it may change the broadcast
    states, has no key, and must do the same in all of them. `process` and `on_timer` have state and timers of their
    key, and read the broadcast states. The output type is the return annotation of `process`.
    """

    def open(self, ctx: OpenContext) -> None:
        """Prepare for work; called once in every subtask before the first row."""

    def process(self, row: Any, ctx: ProcessContext) -> Any:
        """Process one row of the keyed stream; yield or return any number of rows."""
        raise NotImplementedError

    def process_broadcast(self, row: Any, ctx: BroadcastContext) -> Any:
        """Process one row of the broadcast stream; yield or return any number of rows, in each subtask."""
        raise NotImplementedError

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Any:
        """Handle a timer of the current key that is due; yield or return any number of rows."""

    def close(self) -> None:
        """Release resources; called once at the end, also after a failure."""
