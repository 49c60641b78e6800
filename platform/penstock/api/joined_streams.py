"""`a.join(b).where(...).equal_to(...).window(...)`: two streams joined by key and window, one word after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.api.two_inputs import How, LateTo, append_two_input, late_config
from penstock.api.windows import require_aligned_window
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import require_no_window_columns
from penstock.operators.join_schema import parse_join_window, validate_join, window_join_schema

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

    def where(self, *columns: str) -> Where:
        """Name the key of the left side."""
        return Where(self._left.key_by(*columns), self._right, self._options)


class Where:
    """A join that knows the key of its left side."""

    def __init__(self, left: KeyedStream, right: DataStream, options: JoinOptions) -> None:
        """Made by `JoinedStreams.where`."""
        self._left = left
        self._right = right
        self._options = options

    def equal_to(self, *columns: str) -> EqualTo:
        """Name the key of the right side: as many columns of the same types, in the same order."""
        return EqualTo(self._left, self._right.key_by(*columns), self._options)


class EqualTo:
    """A join that knows the keys of both sides."""

    def __init__(self, left: KeyedStream, right: KeyedStream, options: JoinOptions) -> None:
        """Made by `Where.equal_to`."""
        self._left = left
        self._right = right
        self._options = options

    def window(self, window: Window) -> DataStream:
        """Join the rows of each key and window: every row of one side with every row of the other.

        Columns: the left side's, the right side's without its key columns (one whose name is taken gets the suffix),
        then `window_start` and `window_end`. Rows come out when the watermark has passed the window's end; of rows that
        come out without a partner the other side's columns are null. Rows that are late, as all their windows have come
        out, are counted (`numLateRecordsDropped`) and dropped, or put aside (`join(..., late_to=...)`).

        Raises:
            GraphError: a window that is not tumbling, sliding or cumulative in event time, a side without event time,
                keys of different types, or a name that would occur twice.
        """
        where, options = f"join over {require_aligned_window(window, 'join').label}", self._options
        config = {
            "left_key": list(self._left.keys),
            "right_key": list(self._right.keys),
            "suffix": options.suffix,
            "window": window.to_config(),
            "how": options.how,
            **late_config(options.late_to, self._left, self._right, where),
        }
        parse_join_window(config)
        left, right = self._left.flow.schema, self._right.flow.schema
        for stream in (self._left, self._right):
            require_no_window_columns(stream.columns, where)
        validate_join(config, left, right, where)
        name = f"Join({options.how}, {window.label})"
        spec = OperatorSpec(uid="", name=name, kind="window_join", config=config, stateful=True)
        return append_two_input(self._left, self._right, spec, window_join_schema(config, left, right))
