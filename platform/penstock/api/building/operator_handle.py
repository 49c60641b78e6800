"""Options of an operator, set directly after the call that made it: `.uid(...)`, `.name(...)`, `.set_parallelism(...)`.

The common part of streams and sinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from penstock.core.errors import GraphError
from penstock.graph.validate import require_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.graph.job_graph import JobGraph
    from penstock.graph.stream_graph import StreamGraphBuilder


class JobBuilder(Protocol):
    """The job that streams are parts of: a `ps.Environment`."""

    @property
    def builder(self) -> StreamGraphBuilder:
        """The graph built so far."""

    def job_graph(self, name: str = "job", *, only: Collection[int] | None = None) -> JobGraph:
        """Return the chained graph; with `only`, just these operators and their inputs."""


class OperatorHandle:
    """An operator of the stream graph under construction."""

    def __init__(self, environment: JobBuilder, node: int | None) -> None:
        """Make a handle; `node` is None if the last call made no operator (a union, a re-partitioning)."""
        self.environment = environment
        self._node = node
        #: Later operators that are part of it.
        self.followers: tuple[int, ...] = ()
        #: The reason why it has a single subtask; empty: it may have any number.
        self.single = ""

    def uid(self, uid: str) -> Self:
        """Set the operator's uid, under which its state is found again; it must stay the same when the job changes."""
        require_name(uid, "uid")
        self.environment.builder.update_operator(self._operator("uid"), uid=uid)
        return self

    def name(self, name: str) -> Self:
        """Set the operator's name for display in `explain`, metrics and logs."""
        self.environment.builder.update_operator(self._operator("name"), name=name)
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Run the operator in this many subtasks instead of the environment's parallelism."""
        node = self._operator("set_parallelism")
        if parallelism < 1:
            msg = f"parallelism {parallelism} is not a number of subtasks"
            raise GraphError(msg, hint="use 1 or more")
        if self.single and parallelism != 1:
            raise GraphError(f"parallelism {parallelism}: {self.single}", hint="remove .set_parallelism(...)")
        for each in (node, *self.followers):
            self.environment.builder.update(each, parallelism=parallelism)
        return self

    def slot_sharing_group(self, group: str) -> Self:
        """Run the operator (and those after it) only in slots with others of that group."""
        node = self._operator("slot_sharing_group")
        self.environment.builder.update(node, slot_sharing_group=group)
        return self

    def disable_chaining(self) -> Self:
        """Run the operator in a separate task."""
        self.environment.builder.update(self._operator("disable_chaining"), chaining=False)
        return self

    def _operator(self, call: str) -> int:
        if self._node is None:
            msg = f".{call}(...) must directly follow the operator that it applies to"
            raise GraphError(msg, hint="key_by, rebalance, broadcast, union and side_output make no operator")
        return self._node


class StreamSink(OperatorHandle):
    """The end of a stream."""
