"""What is said of an operator right behind the call that made it: `.uid(...)`, `.name(...)`, `.set_parallelism(...)`.

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
        """The graph as far as it is written."""

    def job_graph(self, name: str = "job", *, only: Collection[int] | None = None) -> JobGraph:
        """Return the chained graph; with `only`, just these operators and what they are fed by."""


class OperatorHandle:
    """An operator of the stream graph that is being built."""

    def __init__(self, environment: JobBuilder, node: int | None) -> None:
        """`node` is None where the last call made no operator (a union, a re-partitioning)."""
        self.environment = environment
        self._node = node
        #: Operators behind it that are part of it.
        self.followers: tuple[int, ...] = ()
        #: Why it has one subtask and no more; empty: it may have any number.
        self.single = ""

    def uid(self, uid: str) -> Self:
        """Give the operator the name under which its state is found again: stable across changes of the job."""
        require_name(uid, "uid")
        self.environment.builder.update_operator(self._operator("uid"), uid=uid)
        return self

    def name(self, name: str) -> Self:
        """Give the operator a name for people: in `explain`, metrics and logs."""
        self.environment.builder.update_operator(self._operator("name"), name=name)
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Run the operator in this many subtasks instead of the environment's number."""
        node = self._operator("set_parallelism")
        if parallelism < 1:
            msg = f"parallelism {parallelism} is not a number of subtasks"
            raise GraphError(msg, hint="use 1 or more")
        if self.single and parallelism != 1:
            raise GraphError(f"parallelism {parallelism}: {self.single}", hint="take .set_parallelism(...) away")
        for each in (node, *self.followers):
            self.environment.builder.update(each, parallelism=parallelism)
        return self

    def slot_sharing_group(self, group: str) -> Self:
        """Let the operator (and what follows it) run in slots with the others of that group only."""
        node = self._operator("slot_sharing_group")
        self.environment.builder.update(node, slot_sharing_group=group)
        return self

    def disable_chaining(self) -> Self:
        """Run the operator in a task of its own."""
        self.environment.builder.update(self._operator("disable_chaining"), chaining=False)
        return self

    def _operator(self, call: str) -> int:
        if self._node is None:
            msg = f".{call}(...) must stand right behind the operator it is for"
            raise GraphError(msg, hint="key_by, rebalance, broadcast, union and side_output only say how rows travel")
        return self._node


class StreamSink(OperatorHandle):
    """The end of a stream."""
