"""`Flow`: where a stream's rows come from and what they are; every `DataStream` has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.elements import TS_COLUMN
from penstock.core.views import plain_schema
from penstock.graph.stream_graph import Upstream
from penstock.operators.columns import visible

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.graph.job_graph import Partitioner


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stream's rows come from and what they are."""

    upstreams: tuple[Upstream, ...]
    #: Arrow schema, with `__ts` when rows have event time.
    schema: Any
    #: The class that stands for a row, when there is one.
    row_type: Any = None
    #: The schema before the rows were sent, which makes views plain; None: they were not.
    unsent: Any = None
    #: The key columns where a function has computed them, and the stream whose rows it was given.
    computed: tuple[str, ...] = ()
    computed_of: Any = None

    @property
    def has_event_time(self) -> bool:
        """Whether rows carry their event time."""
        return TS_COLUMN in self.schema.names

    @property
    def rows(self) -> pa.Schema:
        """Arrow schema of the rows as functions see them: no computed key, and `__ts` if there is event time."""
        return visible(self.schema, self.computed)

    def computed_config(self, name: str = "computed") -> dict[str, Any]:
        """Return what an operator with a Python function is told of a computed key."""
        return {name: list(self.computed)} if self.computed else {}

    def sent(self, partitioner: Partitioner) -> Flow:
        """Return the rows as they arrive behind an edge of that kind."""
        upstreams = tuple(msgspec.structs.replace(u, partitioner=partitioner) for u in self.upstreams)
        unsent = self.schema if self.unsent is None else self.unsent
        schema = plain_schema(self.schema)
        return Flow(upstreams=upstreams, schema=schema, row_type=self.row_type, unsent=unsent)

    def as_made(self) -> Flow:
        """Return the rows as they were before they were sent anywhere."""
        upstreams = tuple(msgspec.structs.replace(u, partitioner=None) for u in self.upstreams)
        schema = self.schema if self.unsent is None else self.unsent
        return Flow(upstreams=upstreams, schema=schema, row_type=self.row_type)
