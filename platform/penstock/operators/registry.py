"""The operator classes by kind, imported only when deployed.

Called by `penstock.task` when a chain is built. `penstock.graph.operator_kinds` has the properties of each kind, and
`penstock.backfill` says in `explain` and `qualify` how backfills run it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.core.errors import GraphError

if TYPE_CHECKING:
    from penstock.operators.operator import Operator

#: kind -> `module:class`; the class is made without arguments and receives its parameters in `open`.
OPERATORS = {
    "source": "penstock.operators.sources.source_operator:SourceOperator",
    "assign_watermarks": "penstock.operators.sources.assign_watermarks:AssignWatermarksOperator",
    "project": "penstock.operators.rows.project:ProjectOperator",
    "key_selector": "penstock.operators.rows.user_functions:KeySelectorOperator",
    "constant_key": "penstock.operators.rows.user_functions:ConstantKeyOperator",
    "spread_key": "penstock.operators.rows.spread_key:SpreadKeyOperator",
    "map": "penstock.operators.rows.user_functions:MapOperator",
    "flat_map": "penstock.operators.rows.user_functions:FlatMapOperator",
    "filter_rows": "penstock.operators.rows.user_functions:FilterRowsOperator",
    "map_batches": "penstock.operators.rows.user_functions:MapBatchesOperator",
    "plain_process": "penstock.operators.process.plain_process:PlainProcessOperator",
    "process": "penstock.operators.process.keyed_process:KeyedProcessOperator",
    "co_process": "penstock.operators.process.keyed_process:KeyedProcessOperator",
    "broadcast_process": "penstock.operators.process.keyed_process:KeyedProcessOperator",
    "window_aggregate": "penstock.operators.windows.window_aggregate:WindowAggregateOperator",
    "zoned_window": "penstock.operators.windows.window_aggregate:WindowAggregateOperator",
    "partial_window": "penstock.operators.windows.window_aggregate:WindowAggregateOperator",
    "merged_window": "penstock.operators.windows.window_aggregate:WindowAggregateOperator",
    "window_rows": "penstock.operators.windows.window_rows:WindowRowsOperator",
    "processing_window": "penstock.operators.windows.processing_window:ProcessingWindowOperator",
    "session_aggregate": "penstock.operators.windows.session_window:SessionAggregateOperator",
    "window_top": "penstock.operators.windows.window_top:WindowTopOperator",
    "running_aggregate": "penstock.operators.aggregates.running_operators:RunningAggregateOperator",
    "deduplicate": "penstock.operators.aggregates.running_operators:DeduplicateOperator",
    "interval_join": "penstock.operators.joins.interval_join:IntervalJoinOperator",
    "window_join": "penstock.operators.joins.window_join:WindowJoinOperator",
    "window_rows_join": "penstock.operators.joins.window_rows_join:WindowRowsJoinOperator",
    "temporal_join": "penstock.operators.joins.temporal_join:TemporalJoinOperator",
    "map_async": "penstock.operators.rows.map_async:MapAsyncOperator",
    "sink": "penstock.operators.sinks.sink_operator:SinkOperator",
    "collect": "penstock.operators.sinks.client_sinks:CollectOperator",
    "print": "penstock.operators.sinks.client_sinks:PrintOperator",
}


def create_operator(kind: str) -> Operator:
    """Return a new operator of this kind, not yet opened.

    Raises:
        GraphError: no such kind.
    """
    path = OPERATORS.get(kind)
    if path is None:
        msg = f"unknown operator kind {kind!r}"
        raise GraphError(msg, hint="the graph was made by another version of penstock; run one version everywhere")
    module_name, _, class_name = path.partition(":")
    operator: Operator = getattr(importlib.import_module(module_name), class_name)()
    return operator
