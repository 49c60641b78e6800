"""`.key_by(..., spread=N).window(...).aggregate(...)`: the two stages that replace the window of an unspread key.

The rows of hot keys get a salt from 0 to N - 1. The first stage aggregates by key and salt and emits accumulators when
a window closes; the second merges them by key. What cannot be shown to equal the window without `spread` is refused.
Called by `api.streams`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.api.building.flow import SALT, Flow
from penstock.api.building.operator_nodes import NewOperator
from penstock.api.functions.key_selector import with_key
from penstock.api.windows.aggregation import window_aggregate
from penstock.api.windows.windows import Global, Session
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.aggregates.aggregate_schema import parse

if TYPE_CHECKING:
    from penstock.api.building.flow import KeyedInputStream
    from penstock.api.windows.aggregates import Aggregate
    from penstock.api.windows.window_options import WindowedRows

#: Aggregates that depend on the order of rows, and the ones for which every row has to reach the second stage.
_BY_ORDER = ("first", "last", "collect")
_OF_ALL_ROWS = ("count_distinct", "quantile")


class _SaltedStream(msgspec.Struct, frozen=True):
    """The rows with their salt, by key and salt."""

    flow: Flow
    keys: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        return list(self.flow.schema.names)


def windowed(rows: WindowedRows, wanted: list[Aggregate], where: str) -> NewOperator:
    """Return the operator that computes aggregates of each key and window, in two stages for a spread key.

    Raises:
        GraphError: as `window_aggregate`; or two stages cannot give the same result.
    """
    chosen = spread_aggregate if rows.stream.flow.spread > 1 else window_aggregate
    return chosen(rows, wanted, where)


def spread_aggregate(rows: WindowedRows, wanted: list[Aggregate], where: str) -> NewOperator:
    """Return the second stage, with the operators before it.

    Raises:
        GraphError: a window, an option or an aggregate that is not supported; or as `window_aggregate`.
    """
    from penstock.operators.windows.window_stages import MERGED, PARTIAL, partial_schema  # imports the kernels

    _require_mergeable(rows, wanted, where)
    whole = window_aggregate(rows, wanted, where)
    assert whole.edge is not None  # noqa: S101 - only late rows need all columns, and they were refused
    stream = rows.stream
    salt, salted = _salt_operator(stream)
    partial = window_aggregate(msgspec.structs.replace(rows, stream=salted), wanted, where)
    assert partial.edge is not None  # noqa: S101 - as above
    first = NewOperator(
        _staged(partial.spec, "partial_window", PARTIAL),
        partial_schema(parse(partial.spec.config), partial.edge),
        edge=partial.edge,
        combine=partial.combine,
        by=salted.keys,
    )
    last = _staged(whole.spec, "merged_window", MERGED, rows=schema_to_text(whole.edge))
    return NewOperator(last, whole.schema, before=(salt, first), by=stream.keys)


def _salt_operator(stream: KeyedInputStream) -> tuple[NewOperator, _SaltedStream]:
    """Return the operator that adds the salt, and its output."""
    spread = stream.flow.spread
    config = {"key": list(stream.keys), "spread": spread}
    spec = OperatorSpec(uid="", name=f"Spread(by {spread})", kind="spread_key", config=config)
    salt = pa.schema([pa.field(SALT, pa.uint8(), nullable=False)])
    flow = msgspec.structs.replace(stream.flow, schema=with_key(stream.flow, spec, salt).schema)
    return with_key(stream.flow.before_shuffle(), spec, salt), _SaltedStream(flow, (*stream.keys, SALT))


def _staged(spec: OperatorSpec, kind: str, stage: str, **config: Any) -> OperatorSpec:
    name = f"{spec.name.removesuffix(')')}, {stage})"
    return msgspec.structs.replace(spec, kind=kind, name=name, config={**spec.config, "stage": stage, **config})


def _require_mergeable(rows: WindowedRows, wanted: list[Aggregate], where: str) -> None:
    """Check that the two stages give the result of one.

    Raises:
        GraphError: they do not.
    """
    window, options, reason = rows.window, rows.options, ""
    if isinstance(window, (Session, Global)) or window.time != "event" or "time_zone" in window.to_config():
        reason = f"windows of {window.label}; it takes tumbling, sliding and cumulative ones of event time, in UTC"
    elif options.trigger or options.evictor:
        reason = "triggers and evictors"
    elif options.lateness_us:
        reason = "allowed lateness: the first stage would have to emit a window again"
    elif options.late_tag is not None:
        reason = "side outputs of late rows"
    for value in wanted:
        if value.fn in _BY_ORDER:
            reason = reason or f"{value.fn}({value.column!r}): it depends on the order of the rows"
        elif value.fn in _OF_ALL_ROWS or value.fn == "aggregator":
            reason = reason or f"{value.fn}({value.column!r}): it needs all values in one place"
    if reason:
        msg = f"{where}: key_by(spread={rows.stream.flow.spread}) does not support {reason}"
        raise GraphError(msg, hint="leave it out, or spread= of key_by")
