"""`a.join(b).where(...).equal_to(...).window(...)`: two streams joined by key and window, one word after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.api.two_inputs import append_two_input
from penstock.api.windows import require_event_time_window
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import require_no_window_columns
from penstock.operators.join_schema import parse_join_window, validate_join, window_join_schema

if TYPE_CHECKING:
    from penstock.api.data_stream import DataStream
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.windows import Window

#: Which rows come out: pairs alone, or also rows of the left side, the right side or both that meet none.
How = Literal["inner", "left", "right", "full"]


class JoinedStreams:
    """Two streams that are to be joined."""

    def __init__(self, left: DataStream, right: DataStream, how: How, suffix: str) -> None:
        """Made by `DataStream.join`."""
        self._left = left
        self._right = right
        self._how = how
        self._suffix = suffix

    def where(self, *columns: str) -> Where:
        """Name the key of the left side."""
        return Where(self._left.key_by(*columns), self._right, self._how, self._suffix)


class Where:
    """A join that knows the key of its left side."""

    def __init__(self, left: KeyedStream, right: DataStream, how: How, suffix: str) -> None:
        """Made by `JoinedStreams.where`."""
        self._left = left
        self._right = right
        self._how = how
        self._suffix = suffix

    def equal_to(self, *columns: str) -> EqualTo:
        """Name the key of the right side: as many columns of the same types, in the same order."""
        return EqualTo(self._left, self._right.key_by(*columns), self._how, self._suffix)


class EqualTo:
    """A join that knows the keys of both sides."""

    def __init__(self, left: KeyedStream, right: KeyedStream, how: How, suffix: str) -> None:
        """Made by `Where.equal_to`."""
        self._left = left
        self._right = right
        self._how = how
        self._suffix = suffix

    def window(self, window: Window) -> DataStream:
        """Join the rows of each key and window: every row of one side with every row of the other.

        Columns: the left side's, the right side's without its key columns (one whose name is taken gets the suffix),
        then `window_start` and `window_end`. Rows come out when the watermark has passed the window's end; of rows that
        come out without a partner the other side's columns are null. Late rows are counted (`numLateRecordsDropped`)
        and dropped.

        Raises:
            GraphError: a window that is not tumbling or sliding in event time, a side without event time, keys of
                different types, or a name that would occur twice.
        """
        where = f"join over {require_event_time_window(window, 'join').label}"
        config = {
            "left_key": list(self._left.keys),
            "right_key": list(self._right.keys),
            "suffix": self._suffix,
            "window": window.to_config(),
            "how": self._how,
        }
        parse_join_window(config)
        left, right = self._left.flow.schema, self._right.flow.schema
        for stream in (self._left, self._right):
            require_no_window_columns(stream.columns, where)
        validate_join(config, left, right, where)
        name = f"Join({self._how}, {window.label})"
        spec = OperatorSpec(uid="", name=name, kind="window_join", config=config, stateful=True)
        return append_two_input(self._left, self._right, spec, window_join_schema(config, left, right))
