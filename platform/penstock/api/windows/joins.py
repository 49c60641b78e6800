"""Joins of two streams: by key and time (`interval_join`, `temporal_join`), by key and window (`a.join(b)...`).

`api.streams` provides the functions that key a side and that join.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from penstock.api.building.operator_nodes import NewOperator
from penstock.api.windows.windows import Global, Window, is_aligned, require_window
from penstock.config.settings import parse_duration_us
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validation import require_name, require_no_window_columns
from penstock.operators.joins.join_schema import (
    SIDES,
    join_schema,
    parse_interval,
    parse_join_window,
    temporal_join_schema,
    validate_join,
    validate_join_of,
    validate_temporal_join,
    window_join_schema,
)
from penstock.operators.windows.window_schemas import validate_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.building.flow import InputStream, KeyedInputStream

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


#: Rows that a join emits: pairs only, or also unmatched rows of the left side, the right side or both.
How = Literal["inner", "left", "right", "full"]
#: The side-output tags of each side's late rows.
LateTo: TypeAlias = dict[Literal["left", "right"], str]


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """The options of a join besides its keys and its window."""

    how: How
    suffix: str
    late_to: LateTo | None = None


def interval_join(
    left: KeyedInputStream, right: KeyedInputStream, bounds: tuple[str | float, str | float], options: JoinOptions
) -> NewOperator:
    """Return the operator that joins rows of a key with event times within `bounds` (lower, upper).

    Raises:
        GraphError: keys of different types, a side without event time, the lower bound above the upper one, a name
            that would occur twice, or no such `how`.
    """
    lower, upper = bounds
    config = {
        "left_key": list(left.keys),
        "right_key": list(right.keys),
        "suffix": options.suffix,
        "lower_us": _signed_us(lower, "interval_join: lower bound"),
        "upper_us": _signed_us(upper, "interval_join: upper bound"),
        **({} if options.how == "inner" else {"how": options.how}),
        **_late_config(options.late_to, left, right, "interval_join"),
    }
    parse_interval(config)
    validate_join(config, left.flow.schema, right.flow.schema, "interval_join")
    name = f"IntervalJoin({'' if options.how == 'inner' else f'{options.how}, '}{lower}, {upper})"
    spec = OperatorSpec(uid="", name=name, kind="interval_join", config=config, stateful=True)
    return _join(spec, left, right, join_schema(config, left.flow.schema, right.flow.schema))


def temporal_join(left: KeyedInputStream, versions: KeyedInputStream, options: JoinOptions) -> NewOperator:
    """Return the operator that joins each row with the newest version of its key at its event time.

    Raises:
        GraphError: as `interval_join`; or a version has a column of a type that is not kept by key, such as a list.
    """
    config = {
        "left_key": list(left.keys),
        "right_key": list(versions.keys),
        "suffix": options.suffix,
        "how": options.how,
        **_late_config(options.late_to, left, versions, "temporal_join"),
    }
    validate_temporal_join(config, left.flow.schema, versions.flow.schema, "temporal_join")
    name = f"TemporalJoin({options.how})"
    spec = OperatorSpec(uid="", name=name, kind="temporal_join", config=config, stateful=True)
    return _join(spec, left, versions, temporal_join_schema(config, left.flow.schema, versions.flow.schema))


def window_join(left: KeyedInputStream, right: KeyedInputStream, window: Window, options: JoinOptions) -> NewOperator:
    """Return the operator that joins the rows of each key and window.

    Raises:
        GraphError: a global window, a side without event time where the window needs it, keys of different types,
            a name that would occur twice, or late rows of a window of processing time.
    """
    where = f"join over {require_window(window).label}"
    if isinstance(window, Global):
        raise GraphError(f"{where}: it would never end", hint="use another window, or .interval_join(...)")
    if options.late_to and window.time != "event":
        raise GraphError(f"{where}: no row is late in processing time", hint="leave late_to= out")
    config = {
        "left_key": list(left.keys),
        "right_key": list(right.keys),
        "suffix": options.suffix,
        "window": window.to_config(),
        "how": options.how,
        **_late_config(options.late_to, left, right, where),
    }
    aligned = is_aligned(window)
    if aligned:
        parse_join_window(config)
    for stream in (left, right):
        require_no_window_columns(stream.columns, where)
    validate_join_of(config, left.flow.schema, right.flow.schema, where, timed=window.time == "event")
    if not aligned:
        for stream in (left, right):
            validate_rows(config, stream.flow.schema, where)
    kind = "window_join" if aligned else "window_rows_join"
    spec = OperatorSpec(uid="", name=f"Join({options.how}, {window.label})", kind=kind, config=config, stateful=True)
    return _join(spec, left, right, window_join_schema(config, left.flow.schema, right.flow.schema))


def _join(spec: OperatorSpec, left: InputStream, right: InputStream, schema: pa.Schema) -> NewOperator:
    """Return an operator with a side output for the late rows of each side."""
    late = spec.config.get("late_to", {})
    sides = {
        late[side]["tag"]: schema_to_text(stream.flow.rows)
        for side, stream in zip(SIDES, (left, right), strict=True)
        if side in late
    }
    return NewOperator(spec, schema, side_outputs=sides)


def _late_config(late_to: LateTo | None, left: InputStream, right: InputStream, where: str) -> dict[str, Any]:
    """Return the operator's config entries for late rows.

    Raises:
        GraphError: a side or a tag that cannot be, or one tag for both.
    """
    if not late_to:
        return {}
    sides: Any = late_to
    if not isinstance(sides, dict) or not set(SIDES).issuperset(sides):
        msg = f"{where}: late_to={late_to!r} does not map sides to tags"
        raise GraphError(msg, hint='write late_to={"left": "late-orders", "right": "late-payments"}, or one of them')
    for tag in late_to.values():
        require_name(tag, f"{where}: late_to: the tag")
    if len(set(late_to.values())) < len(late_to):
        msg = f"{where}: late_to has one tag for both sides, whose columns differ"
        raise GraphError(msg, hint="give each side a separate tag")
    columns = {"left": left.flow.rows.names, "right": right.flow.rows.names}
    return {"late_to": {side: {"tag": tag, "columns": columns[side]} for side, tag in late_to.items()}}


def _signed_us(duration: str | float, what: str) -> int:
    """Return the microseconds of a duration that may be negative: `"-5s"`, or seconds.

    Raises:
        UsageError: not a duration.
    """
    if isinstance(duration, str) and duration.lstrip().startswith("-"):
        return -parse_duration_us(duration.lstrip()[1:], what)
    return parse_duration_us(duration, what)
