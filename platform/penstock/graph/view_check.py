"""Check that views reach only operators that accept them. Called by `penstock.graph.validate` before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import GraphError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.graph.stream_graph import StreamGraph, StreamNode

#: Kinds of operators that pass views on or convert them to plain columns.
_TAKE = frozenset({"project", "sink", "collect", "print"})


def check_views(graph: StreamGraph, node: StreamNode) -> None:
    """Check one operator's input.

    Raises:
        GraphError: a column of it is a view; names the operator, the column and a solution.
    """
    from penstock.core.schema import schema_from_text  # imports Pydantic, which the JobManager seldom needs

    for edge in graph.in_edges(node.id):
        for field in schema_from_text(edge.schema) if edge.schema else ():
            _check(node, field)


def _check(node: StreamNode, field: pa.Field) -> None:
    from penstock.core.views import holds_views, is_view

    if not holds_views(field.type):
        return
    if not is_view(field.type):
        msg = f"{node.label}: column {field.name!r} is {field.type}, which contains views"
        raise GraphError(msg, hint="views work for whole columns only: let the source declare plain strings in it")
    if node.operator.kind not in _TAKE:
        kind = "String" if str(field.type) == "string_view" else "Binary"
        way = f".with_columns(pl.col({field.name!r}).cast(pl.{kind}))"
        msg = f"{node.label}: column {field.name!r} is {field.type}, a type that this operator does not accept"
        raise GraphError(msg, hint=f"convert it to plain values first: {way}")
