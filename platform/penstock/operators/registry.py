"""From an operator's kind to its class, imported only when it is deployed: the one list of what a job graph may hold.

Called by `penstock.task` when a chain is built. A kind is part of the graph's wire form, so it is never renamed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.core.errors import GraphError

if TYPE_CHECKING:
    from penstock.operators.operator import Operator

#: kind -> `module:class`; the class is made without arguments and told everything in `open`.
OPERATORS = {
    "source": "penstock.operators.source:SourceOperator",
    "assign_watermarks": "penstock.operators.assign_watermarks:AssignWatermarksOperator",
    "project": "penstock.operators.project:ProjectOperator",
    "key_selector": "penstock.operators.key_selector:KeySelectorOperator",
    "constant_key": "penstock.operators.key_selector:ConstantKeyOperator",
    "map": "penstock.operators.functions:MapOperator",
    "flat_map": "penstock.operators.functions:FlatMapOperator",
    "filter_rows": "penstock.operators.functions:FilterRowsOperator",
    "map_batches": "penstock.operators.functions:MapBatchesOperator",
    "plain_process": "penstock.operators.plain_process:PlainProcessOperator",
    "process": "penstock.operators.process:KeyedProcessOperator",
    "co_process": "penstock.operators.process:KeyedProcessOperator",
    "broadcast_process": "penstock.operators.process:KeyedProcessOperator",
    "window_aggregate": "penstock.operators.window:WindowAggregateOperator",
    "zoned_window": "penstock.operators.zoned_window:ZonedWindowOperator",
    "window_rows": "penstock.operators.window_rows:WindowRowsOperator",
    "processing_window": "penstock.operators.processing:ProcessingWindowOperator",
    "session_aggregate": "penstock.operators.session:SessionAggregateOperator",
    "window_top": "penstock.operators.top:WindowTopOperator",
    "running_aggregate": "penstock.operators.running:RunningAggregateOperator",
    "deduplicate": "penstock.operators.deduplicate:DeduplicateOperator",
    "interval_join": "penstock.operators.interval_join:IntervalJoinOperator",
    "window_join": "penstock.operators.window_join:WindowJoinOperator",
    "window_rows_join": "penstock.operators.window_rows_join:WindowRowsJoinOperator",
    "temporal_join": "penstock.operators.temporal_join:TemporalJoinOperator",
    "map_async": "penstock.operators.map_async:MapAsyncOperator",
    "sink": "penstock.operators.sink:SinkOperator",
    "collect": "penstock.operators.collect:CollectOperator",
    "print": "penstock.operators.printing:PrintOperator",
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
