"""`a.join(b).where(...).equal_to(...).window(...)`: two streams joined by key and window, one word after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.api.keyed_stream import without_computed
from penstock.api.two_inputs import How, LateTo, append_two_input, late_config
from penstock.api.windows import Global, is_aligned, require_window
from penstock.core.errors import GraphError
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import require_no_window_columns
from penstock.operators.join_schema import parse_join_window, validate_join_of, window_join_schema
from penstock.operators.window_rows_schema import validate_rows

if TYPE_CHECKING:
    from penstock.api.data_stream import DataStream
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.windows import Window


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """What was said of a join besides its keys and its window."""

    how: How
    suffix: str
    late_to: LateTo | None = None


class JoinedStreams:
    """Two streams that are to be joined."""

    def __init__(self, left: DataStream, right: DataStream, options: JoinOptions) -> None:
        """Made by `DataStream.join`."""
        self._left = left
        self._right = right
        self._options = options

    def where(self, *columns: Any, returns: Any = None) -> Where:
        """Name the key of the left side: columns, or a function as of `key_by`."""
        return Where(_keyed(self._left, columns, returns), self._right, self._options)


class Where:
    """A join that knows the key of its left side."""

    def __init__(self, left: KeyedStream, right: DataStream, options: JoinOptions) -> None:
        """Made by `JoinedStreams.where`."""
        self._left = left
        self._right = right
        self._options = options

    def equal_to(self, *columns: Any, returns: Any = None) -> EqualTo:
        """Name the key of the right side: as many columns of the same types, in the same order, or a function."""
        return EqualTo(self._left, _keyed(self._right, columns, returns), self._options)


class EqualTo:
    """A join that knows the keys of both sides."""

    def __init__(self, left: KeyedStream, right: KeyedStream, options: JoinOptions) -> None:
        """Made by `Where.equal_to`."""
        self._left = left
        self._right = right
        self._options = options

    def window(self, window: Window) -> DataStream:
        """Join the rows of each key and window: every row of one side with every row of the other.

        A session is made of the rows of both sides. Sessions, windows of processing time and those in a time zone keep
        their rows as Python objects; tumbling, sliding and cumulative ones of event time keep columns.

        Columns: the left side's, the right side's without its key columns (one whose name is taken gets the suffix),
        then `window_start` and `window_end`. Rows come out when the watermark has passed the window's end; of rows that
        come out without a partner the other side's columns are null. Rows that are late, as all their windows have come
        out, are counted (`numLateRecordsDropped`) and dropped, or put aside (`join(..., late_to=...)`).

        Raises:
            GraphError: a global window, a side without event time where the window needs it, keys of different types,
                a name that would occur twice, or late rows of a window of processing time.
        """
        where, options = f"join over {require_window(window).label}", self._options
        if isinstance(window, Global):
            raise GraphError(f"{where}: it would never end", hint="use another window, or .interval_join(...)")
        if options.late_to and window.time != "event":
            raise GraphError(f"{where}: no row is late in processing time", hint="leave late_to= out")
        config = {
            "left_key": list(self._left.keys),
            "right_key": list(self._right.keys),
            "suffix": options.suffix,
            "window": window.to_config(),
            "how": options.how,
            **late_config(options.late_to, self._left, self._right, where),
        }
        aligned = is_aligned(window)
        if aligned:
            parse_join_window(config)
        left, right = self._left.flow.schema, self._right.flow.schema
        for stream in (self._left, self._right):
            require_no_window_columns(stream.columns, where)
        validate_join_of(config, left, right, where, timed=window.time == "event")
        if not aligned:
            for stream in (self._left, self._right):
                validate_rows(config, stream.flow.schema, where)
        name = f"Join({options.how}, {window.label})"
        kind = "window_join" if aligned else "window_rows_join"
        spec = OperatorSpec(uid="", name=name, kind=kind, config=config, stateful=True)
        made = append_two_input(self._left, self._right, spec, window_join_schema(config, left, right))
        return without_computed(made, self._left)


def _keyed(stream: DataStream, columns: tuple[Any, ...], returns: Any) -> KeyedStream:
    return stream.key_by(*columns) if returns is None else stream.key_by(*columns, returns=returns)
