"""`.key_by(..., spread=N).window(...).aggregate(...)`: the two stages that replace the window of an unspread key.

The rows of hot keys get a salt from 0 to N - 1. The first stage aggregates by key and salt and emits accumulators when
a window closes; the second merges them by key. Rows are late for the first stage alone, which emits them to the side
output. What cannot be shown to equal the window without `spread` is refused. Called by `api.streams`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.api.building.flow import SALT, Flow
from penstock.api.building.operator_nodes import NewOperator
from penstock.api.functions.key_selector import with_key
from penstock.api.windows.aggregation import keeps_rows, kept_rows, window_aggregate
from penstock.api.windows.windows import Global, Session
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.functions.folding_states import Aggregator
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.aggregates.aggregate_schema import parse
from penstock.operators.windows.window_schemas import MERGED, PARTIAL

if TYPE_CHECKING:
    from penstock.api.building.flow import KeyedInputStream
    from penstock.api.windows.aggregates import Aggregate
    from penstock.api.windows.window_options import WindowedRows

#: Aggregates that depend on the order of rows.
_BY_ORDER = ("first", "last", "collect")


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
    _require_mergeable(rows, wanted, where)
    stream = rows.stream
    merged_rows = msgspec.structs.replace(rows, options=msgspec.structs.replace(rows.options, late_tag=None))
    whole = window_aggregate(merged_rows, wanted, where)
    salt, salted = _salt_operator(stream)
    partial_rows = msgspec.structs.replace(rows, stream=salted)
    if keeps_rows(wanted):
        from penstock.api.windows.window_rows import row_stages

        first, last = row_stages(kept_rows(merged_rows, wanted), kept_rows(partial_rows, wanted), wanted)
    else:
        first, last = _cell_stages(whole, window_aggregate(partial_rows, wanted, where))
    first = msgspec.structs.replace(first, spec=_named(first.spec, PARTIAL), by=salted.keys)
    return NewOperator(_named(last, MERGED), whole.schema, before=(salt, first), by=stream.keys)


def _cell_stages(whole: NewOperator, partial: NewOperator) -> tuple[NewOperator, OperatorSpec]:
    """Return the stages of windows with accumulators, given the operators by key, and by key and salt."""
    from penstock.operators.windows.window_stages import partial_schema  # imports the kernels

    assert whole.edge is not None  # noqa: S101 - such windows have the columns that they use
    assert partial.edge is not None  # noqa: S101 - as above
    config = {**partial.spec.config, "stage": PARTIAL}
    first = msgspec.structs.replace(
        partial,
        spec=msgspec.structs.replace(partial.spec, kind="partial_window", config=config),
        schema=partial_schema(parse(config), partial.edge),
    )
    config = {**whole.spec.config, "stage": MERGED, "rows": schema_to_text(whole.edge)}
    return first, msgspec.structs.replace(whole.spec, kind="merged_window", config=config)


def _salt_operator(stream: KeyedInputStream) -> tuple[NewOperator, _SaltedStream]:
    """Return the operator that adds the salt, and its output."""
    spread = stream.flow.spread
    config = {"key": list(stream.keys), "spread": spread}
    spec = OperatorSpec(uid="", name=f"Spread(by {spread})", kind="spread_key", config=config)
    salt = pa.schema([pa.field(SALT, pa.uint8(), nullable=False)])
    flow = msgspec.structs.replace(
        stream.flow, schema=with_key(stream.flow, spec, salt).schema, computed=(*stream.flow.computed, SALT)
    )
    return with_key(stream.flow.before_shuffle(), spec, salt), _SaltedStream(flow, (*stream.keys, SALT))


def _named(spec: OperatorSpec, stage: str) -> OperatorSpec:
    return msgspec.structs.replace(spec, name=f"{spec.name.removesuffix(')')}, {stage})")


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
    for value in wanted:
        if value.fn in _BY_ORDER:
            reason = reason or f"{value.fn}({value.column!r}): it depends on the order of the rows"
        elif value.fn == "aggregator" and not _has_merge(value.aggregator):
            reason = reason or f"{type(value.aggregator).__name__}: it has no merge(left, right)"
    if reason:
        msg = f"{where}: key_by(spread={rows.stream.flow.spread}) does not support {reason}"
        raise GraphError(msg, hint="leave it out, or spread= of key_by")


def _has_merge(aggregator: Any) -> bool:
    """Return whether the class of an aggregator defines `merge`: that of `ps.Aggregator` does nothing."""
    return getattr(type(aggregator), "merge", Aggregator.merge) is not Aggregator.merge
