"""`a.join(b).where(...).equal_to(...).window(...)`: two streams joined by key and window, step by step.

`streams` provides the functions that key a side (`Key`) and that join (`Join`), for a `ps.KeyedStream` and a
`ps.DataStream`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from penstock.api.windows.windows import Window

K = TypeVar("K")
S = TypeVar("S")
#: Keys a side by columns or a function, with the function's return type.
Key: TypeAlias = Callable[[tuple[Any, ...], Any], K]
#: Joins two keyed sides over a window.
Join: TypeAlias = Callable[[K, K, Window], S]


class JoinedStreams(Generic[K, S]):
    """Two streams to join."""

    def __init__(self, left: Key[K], right: Key[K], join: Join[K, S]) -> None:
        """Made by `DataStream.join`."""
        self._left = left
        self._right = right
        self._join = join

    def where(self, *columns: Any, returns: Any = None) -> Where[K, S]:
        """Set the key of the left side: columns, or a function as for `key_by`."""
        return Where(self._left(columns, returns), self._right, self._join)


class Where(Generic[K, S]):
    """A join with the key of its left side."""

    def __init__(self, left: K, right: Key[K], join: Join[K, S]) -> None:
        """Made by `JoinedStreams.where`."""
        self._left = left
        self._right = right
        self._join = join

    def equal_to(self, *columns: Any, returns: Any = None) -> EqualTo[K, S]:
        """Set the key of the right side: as many columns of the same types, in the same order, or a function."""
        return EqualTo(self._left, self._right(columns, returns), self._join)


class EqualTo(Generic[K, S]):
    """A join with the keys of both sides."""

    def __init__(self, left: K, right: K, join: Join[K, S]) -> None:
        """Made by `Where.equal_to`."""
        self._left = left
        self._right = right
        self._join = join

    def window(self, window: Window) -> S:
        """Join the rows of each key and window: every row of one side with every row of the other.

        A session is made of the rows of both sides. Sessions, windows of processing time and those in a time zone keep
        their rows as Python objects; tumbling, sliding and cumulative ones of event time keep columns.

        Columns: the left side's, the right side's without its key columns (one whose name is taken gets the suffix),
        then `window_start` and `window_end`. Rows are emitted when the watermark has passed the window's end; an
        unmatched row has nulls in the other side's columns. A row is late when all its windows were emitted: it is
        counted (`numLateRecordsDropped`) and dropped, or emitted to a side output (`join(..., late_to=...)`).

        Raises:
            GraphError: a global window, a side without event time where the window needs it, keys of different types,
                a name that would occur twice, or late rows of a window of processing time.
        """
        return self._join(self._left, self._right, window)
