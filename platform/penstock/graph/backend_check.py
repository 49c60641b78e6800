"""Check that every operator of a job can keep its state with the job's state backend.

Called by `penstock.graph.validate` before anything runs: `remote` does not support every kind of state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import GraphError

if TYPE_CHECKING:
    from penstock.graph.stream_graph import StreamGraph, StreamNode

#: Kinds of operators whose keyed state can be in the object store.
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
_WAY_OUT = "use state_backend='rocksdb' for this job"


def check_backend(graph: StreamGraph, node: StreamNode) -> None:
    """Check one operator.

    Raises:
        GraphError: the backend does not support its state; names the operator and another backend.
    """
    operator = node.operator
    if graph.settings.state_backend != "remote" or not operator.keyed:
        return
    cannot = f"{node.label} cannot keep its state with state_backend='remote'"
    if operator.kind not in _REMOTE:
        only = "remote supports process functions, joins, running aggregates, deduplicate and windows"
        raise GraphError(cannot, hint=f"{only}; {_WAY_OUT}")
