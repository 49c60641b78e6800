"""`.window_all(...).top(...)`: the best rows of each window, pre-selected in every subtask, selected in one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.api.building.operator_nodes import NewOperator
from penstock.api.windows.window_options import WindowOptions
from penstock.api.windows.windows import require_event_time_window
from penstock.core.errors import GraphError
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validation import require_columns
from penstock.operators.windows.window_schemas import validate_top

if TYPE_CHECKING:
    from penstock.api.building.flow import InputStream
    from penstock.api.windows.windows import Window


@dataclass(frozen=True, slots=True)
class TopSpec:
    """The selection of rows to keep."""

    by: str
    count: int
    descending: bool
    ties: bool


def window_top(
    stream: InputStream, window: Window, options: WindowOptions, top: TopSpec
) -> tuple[NewOperator, NewOperator]:
    """Return the operators that pre-select rows and that select the best of them.

    Raises:
        GraphError: no such column, or one that cannot order rows; another window; or a trigger or the like.
    """
    require_event_time_window(window, "top")
    if options != WindowOptions():
        msg = "top: it has no triggers, evictors, allowed lateness or late rows"
        raise GraphError(msg, hint="leave them out, or choose the best rows in .apply(f)")
    require_columns([top.by], stream.columns, "top")
    config: dict[str, Any] = {"window": window.to_config(), **asdict(top)}
    schema = stream.flow.schema
    validate_top({**config, "local": True}, schema)
    name = f"Top {top.count} by {top.by}({window.label})"
    first = OperatorSpec(uid="", name=f"Local{name}", kind="window_top", config={**config, "local": True})
    last = OperatorSpec(uid="", name=name, kind="window_top", config={**config, "local": False}, stateful=True)
    return NewOperator(first, schema), NewOperator(last, schema, stream.flow.row_type)
