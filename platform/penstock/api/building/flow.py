"""`Flow`: the origin and the schema of a stream's rows; and the protocols of a stream for the modules after it.

Every stream has a flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError, did_you_mean
from penstock.core.schema import schema_from_text
from penstock.core.views import plain_schema
from penstock.graph.job_graph import KeyGroup
from penstock.graph.stream_graph import Upstream
from penstock.operators.rows.columns import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from penstock.graph.job_graph import Partitioner
    from penstock.graph.stream_graph import StreamGraphBuilder

#: The column of the key that all rows share, for windows over all rows.
ALL_ROWS_KEY = "__all"
#: The column that divides the rows of a hot key: `key_by(..., spread=N)`.
SALT = "__salt"


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The origin and the schema of a stream's rows."""

    upstreams: tuple[Upstream, ...]
    #: Arrow schema, with `__ts` when rows have event time.
    schema: Any
    #: The class of a row, if there is one.
    row_type: Any = None
    #: The schema before the rows are sent, which converts view types; None: they are not sent.
    schema_before_shuffle: Any = None
    #: The key columns that a function has computed, and the stream whose rows it received.
    computed: tuple[str, ...] = ()
    computed_of: Any = None
    #: The number of parts of a hot key's rows; 1: the key is not spread.
    spread: int = 1

    @property
    def has_event_time(self) -> bool:
        """Whether rows carry their event time."""
        return TS_COLUMN in self.schema.names

    @property
    def rows(self) -> pa.Schema:
        """Arrow schema of the rows as functions receive them: no computed key, and `__ts` if there is event time."""
        return visible(self.schema, self.computed)

    def computed_config(self, name: str = "computed") -> dict[str, Any]:
        """Return the config entries of a computed key for an operator with a Python function."""
        return {name: list(self.computed)} if self.computed else {}

    def partitioned(self, partitioner: Partitioner) -> Flow:
        """Return the rows as they arrive after an edge of that kind."""
        upstreams = tuple(msgspec.structs.replace(u, partitioner=partitioner) for u in self.upstreams)
        schema_before_shuffle = self.schema if self.schema_before_shuffle is None else self.schema_before_shuffle
        schema = plain_schema(self.schema)
        return Flow(
            upstreams=upstreams, schema=schema, row_type=self.row_type, schema_before_shuffle=schema_before_shuffle
        )

    def keyed(self, keys: tuple[str, ...], *, of: object) -> Flow:
        """Return the rows sent by keys that an operator has computed from the rows of the stream `of`."""
        upstreams = tuple(msgspec.structs.replace(u, partitioner=KeyGroup(keys)) for u in self.upstreams)
        return msgspec.structs.replace(self, upstreams=upstreams, computed=keys, computed_of=of)

    def union_with(self, others: Sequence[Flow]) -> Flow:
        """Return the union of the rows with those of others of the same schema."""
        every = (self, *others)
        types = {flow.row_type for flow in every}
        return Flow(
            upstreams=tuple(upstream for flow in every for upstream in flow.upstreams),
            schema=self.schema,
            row_type=types.pop() if len(types) == 1 else None,
            schema_before_shuffle=None if others else self.schema_before_shuffle,  # several inputs are always sent
        )

    def before_shuffle(self) -> Flow:
        """Return the rows as they were before being sent."""
        upstreams = tuple(msgspec.structs.replace(u, partitioner=None) for u in self.upstreams)
        schema = self.schema if self.schema_before_shuffle is None else self.schema_before_shuffle
        return Flow(upstreams=upstreams, schema=schema, row_type=self.row_type)


def require_same_rows(flow: Flow, other: Flow) -> None:
    """Check that rows of two streams can be merged.

    Raises:
        GraphError: one has event time and the other has none, or their columns differ.
    """
    for each in (flow, other):
        require_whole_keys(each, "union")
    if other.has_event_time != flow.has_event_time:
        msg = "union: one stream has event time and the other has none"
        way = "give its source watermarks=..., or .assign_timestamps_and_watermarks(...)"
        raise GraphError(msg, hint=f"give the other one event time too: {way}")
    if not other.schema.equals(flow.schema):
        msg = f"union: the streams differ: {_difference(flow.schema, other.schema)}"
        raise GraphError(msg, hint="bring them to one schema with .select(...)")


def _difference(left: pa.Schema, right: pa.Schema) -> str:
    missing = [name for name in left.names if name not in right.names]
    more = [name for name in right.names if name not in left.names]
    if missing or more:
        parts = [f"the other one {verb} {', '.join(names)}" for verb, names in (("lacks", missing), ("also has", more))]
        return " and ".join(part for part, names in zip(parts, (missing, more), strict=True) if names)
    if left.names != right.names:
        return f"the order of columns is {', '.join(left.names)} and {', '.join(right.names)}"
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if not a.equals(b)]
    return "; ".join(f"{a.name} is {_shown(a)} and {_shown(b)}" for a, b in pairs) or "schema metadata"


def _shown(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def require_whole_keys(flow: Flow, where: str) -> None:
    """Check that the rows of each key are sent to one subtask, for an operator other than a spread window.

    Raises:
        GraphError: the key is spread.
    """
    if flow.spread > 1:
        msg = f"{where}: key_by(spread={flow.spread}) is for aggregates of windows only"
        raise GraphError(msg, hint="leave spread= out of key_by, or use .window(...).aggregate(...)")


def side_flow(builder: StreamGraphBuilder, node: int, tag: str) -> Flow:
    """Return the rows of a side output of an operator or of one of its parts.

    Raises:
        GraphError: it has no side output of that name.
    """
    tags = {name: (part.id, text) for part in builder.with_parts(node) for name, text in part.side_outputs.items()}
    if tag not in tags:
        msg = f"{builder.node(node).label} has no side output {tag!r}"
        ways = ".late_to(tag) gives a window one, on_bad_record='dead-letter' a source"
        raise GraphError(msg, hint=f"{did_you_mean(tag, tags)}; {ways}")
    part, text = tags[tag]
    return Flow(upstreams=(Upstream(node=part, side_output=tag),), schema=schema_from_text(text))


class InputStream(Protocol):
    """Rows that an operator receives."""

    @property
    def flow(self) -> Flow:
        """The origin and the schema of the rows."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""


class KeyedInputStream(InputStream, Protocol):
    """Rows of which those of one key reach the same subtask of the operator."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns."""
