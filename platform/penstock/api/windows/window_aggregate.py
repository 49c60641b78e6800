"""`.window(...).aggregate(...)`: the operator of a window's aggregates, over columns or over kept rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from penstock.api.building.appending import NewOperator
from penstock.api.windows.windows import Global, Session
from penstock.core.elements import TS_COLUMN
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import WINDOW_COLUMNS, require_unique
from penstock.operators.aggregates.window_schema import KEPT_FUNCTIONS, output_schema, parse
from penstock.operators.rows.columns import with_ts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.api.windows.aggregates import Aggregate
    from penstock.api.windows.windowed_rows import WindowedRows
    from penstock.api.windows.windows import Window


def window_aggregate(rows: WindowedRows, wanted: list[Aggregate], where: str) -> NewOperator:
    """Return the operator that computes aggregates of each key and window.

    Raises:
        GraphError: a name twice, or a column of a type the aggregate cannot take.
    """
    stream, window, options = rows.stream, rows.window, rows.options
    require_unique([*stream.keys, *WINDOW_COLUMNS, *(value.name for value in wanted)], where)
    chosen = options.trigger or options.evictor or isinstance(window, Global)
    plain = not chosen and not (isinstance(window, Session) and window.time != "event")
    edge = _used_columns(rows, wanted)
    if not plain or any(value.fn in KEPT_FUNCTIONS for value in wanted):
        from penstock.api.windows.window_rows import aggregated

        whole = not plain or any(value.fn == "aggregator" and value.column is None for value in wanted)
        return aggregated(rows if whole else msgspec.structs.replace(rows, edge=edge), wanted)
    config = {**rows.config(), "aggregates": [value.to_config() for value in wanted]}
    kind = _kind(window)
    spec = OperatorSpec(uid="", name=f"Window({window.label})", kind=kind, config=config, stateful=True)
    given = stream.flow.schema if window.time == "event" else with_ts(stream.flow.schema)
    combine = kind in ("window_aggregate", "processing_window") and parse(config).combines
    late = {} if options.late_tag is None else {options.late_tag: schema_to_text(rows.seen)}
    return NewOperator(spec, output_schema(config, given), side_outputs=late, edge=edge, combine=combine)


def _used_columns(rows: WindowedRows, wanted: Sequence[Aggregate]) -> pa.Schema:
    """Return the columns that the operator uses: no others are sent to it."""
    schema = rows.stream.flow.schema
    if rows.options.late_tag is not None:
        return schema
    time = {TS_COLUMN} if rows.window.time == "event" else set()
    used = {*rows.stream.keys, *(value.column for value in wanted), *time}
    return pa.schema([field for field in schema if field.name in used])


def _kind(window: Window) -> str:
    """Return the kind of the operator that supports a window."""
    if isinstance(window, Session):
        return "session_aggregate"
    if window.time != "event":
        return "processing_window"
    return "zoned_window" if "time_zone" in window.to_config() else "window_aggregate"
