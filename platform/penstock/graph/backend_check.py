"""Whether every operator of a job can keep its state with the backend that the job names.

Called by `penstock.graph.validate` before anything runs: `remote` is not for every kind of state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import GraphError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.graph.stream_graph import StreamGraph, StreamNode

#: Kinds of operators whose keyed state can stay in the object store.
_REMOTE = frozenset(
    {
        "running_aggregate",
        "deduplicate",
        "window_aggregate",
        "zoned_window",
        "processing_window",
        "window_rows",
        "window_rows_join",
        "session_aggregate",
        "process",
        "co_process",
        "broadcast_process",
        "interval_join",
        "window_join",
        "temporal_join",
    }
)
#: Those that keep rows, of which aggregates are made anew.
_ROWS = frozenset({"window_rows"})
#: Aggregates that keep one of the values, of whatever length it is.
_PICKS = frozenset({"min", "max", "first", "last"})
#: Digits of a decimal that fits the eight bytes of a cell.
_SHORT_DECIMAL = 18
_WAY_OUT = "use state_backend='rocksdb' for this job"


def check_backend(graph: StreamGraph, node: StreamNode) -> None:
    """Check one operator.

    Raises:
        GraphError: its state cannot be kept so; names the operator and another backend.
    """
    operator = node.operator
    if graph.settings.state_backend != "remote" or not operator.keyed:
        return
    cannot = f"{node.label} cannot keep its state with state_backend='remote'"
    if operator.kind not in _REMOTE:
        only = "remote is for process functions, joins, running aggregates, deduplicate and windows"
        raise GraphError(cannot, hint=f"{only}; {_WAY_OUT}")
    text = next((edge.schema for edge in graph.in_edges(node.id)), "")
    cells = () if operator.kind in _ROWS else operator.config.get("aggregates", ())
    picked = [(a["fn"], a["column"]) for a in cells if a["fn"] in _PICKS]
    if picked and text:
        from penstock.core.schema import schema_from_text

        schema = schema_from_text(text)
        for function, column in picked:
            kind = schema.field(column).type
            if _of_any_length(kind):
                msg = f"{cannot}: {function}({column!r}) keeps values of type {kind}, which have no fixed width"
                raise GraphError(msg, hint=_WAY_OUT)


def _of_any_length(kind: pa.DataType) -> bool:
    import pyarrow.types as pt

    if pt.is_dictionary(kind):
        return _of_any_length(kind.value_type)
    if pt.is_decimal(kind):
        return bool(kind.precision > _SHORT_DECIMAL)
    return not (pt.is_primitive(kind) or pt.is_boolean(kind))
