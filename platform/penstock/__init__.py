"""penstock: exactly-once stream processing in Python, on Arrow data with open state.

    import penstock as ps

    env = ps.Environment(parallelism=2, checkpoint_interval="5s")

Names are loaded on first use, so that processes that only need a part (a JobManager, the command line) stay small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import snapshots as snapshots
    from penstock.api.aggregates import Aggregate as Aggregate
    from penstock.api.aggregates import aggregating as aggregating
    from penstock.api.aggregates import approx_count_distinct as approx_count_distinct
    from penstock.api.aggregates import collect as collect
    from penstock.api.aggregates import count as count
    from penstock.api.aggregates import count_distinct as count_distinct
    from penstock.api.aggregates import first as first
    from penstock.api.aggregates import last as last
    from penstock.api.aggregates import max as max  # noqa: A004
    from penstock.api.aggregates import mean as mean
    from penstock.api.aggregates import min as min  # noqa: A004
    from penstock.api.aggregates import quantile as quantile
    from penstock.api.aggregates import std as std
    from penstock.api.aggregates import sum as sum  # noqa: A004
    from penstock.api.aggregates import var as var
    from penstock.api.environment import Environment as Environment
    from penstock.api.streams import AllWindowedStream as AllWindowedStream
    from penstock.api.streams import BroadcastConnectedStream as BroadcastConnectedStream
    from penstock.api.streams import ConnectedStreams as ConnectedStreams
    from penstock.api.streams import DataStream as DataStream
    from penstock.api.streams import KeyedStream as KeyedStream
    from penstock.api.streams import WindowedStream as WindowedStream
    from penstock.api.watermarks import WatermarkStrategy as WatermarkStrategy
    from penstock.api.windowing import evictor as evictor
    from penstock.api.windowing import trigger as trigger
    from penstock.api.windows import Cumulative as Cumulative
    from penstock.api.windows import Global as Global
    from penstock.api.windows import Session as Session
    from penstock.api.windows import Sliding as Sliding
    from penstock.api.windows import Tumbling as Tumbling
    from penstock.config.settings import RestartStrategy as RestartStrategy
    from penstock.core.errors import GraphError as GraphError
    from penstock.core.errors import JobFailedError as JobFailedError
    from penstock.core.errors import PenstockError as PenstockError
    from penstock.core.errors import UsageError as UsageError
    from penstock.core.schema import Precision as Precision
    from penstock.core.schema import Schema as Schema
    from penstock.eventtime.generator import WatermarkGenerator as WatermarkGenerator
    from penstock.graph.executor import JobExecutor as JobExecutor
    from penstock.graph.executor import JobHandle as JobHandle
    from penstock.graph.executor import JobResult as JobResult
    from penstock.operators.async_retry import AsyncRetryStrategy as AsyncRetryStrategy
    from penstock.operators.broadcast_state import BroadcastState as BroadcastState
    from penstock.operators.broadcast_state import broadcast_state as broadcast_state
    from penstock.operators.evictors import Evictor as Evictor
    from penstock.operators.evictors import WindowElement as WindowElement
    from penstock.operators.folding_state import AggregatingState as AggregatingState
    from penstock.operators.folding_state import Aggregator as Aggregator
    from penstock.operators.folding_state import ReducingState as ReducingState
    from penstock.operators.folding_state import aggregating_state as aggregating_state
    from penstock.operators.folding_state import reducing_state as reducing_state
    from penstock.operators.keyed_collections import ListState as ListState
    from penstock.operators.keyed_collections import MapState as MapState
    from penstock.operators.keyed_collections import list_state as list_state
    from penstock.operators.keyed_collections import map_state as map_state
    from penstock.operators.migrate import migrate as migrate
    from penstock.operators.operator_lists import OperatorListState as OperatorListState
    from penstock.operators.operator_lists import UnionState as UnionState
    from penstock.operators.operator_lists import operator_list_state as operator_list_state
    from penstock.operators.operator_lists import union_state as union_state
    from penstock.operators.process_function import BroadcastContext as BroadcastContext
    from penstock.operators.process_function import KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction
    from penstock.operators.process_function import KeyedCoProcessFunction as KeyedCoProcessFunction
    from penstock.operators.process_function import KeyedProcessFunction as KeyedProcessFunction
    from penstock.operators.process_function import OpenContext as OpenContext
    from penstock.operators.process_function import ProcessContext as ProcessContext
    from penstock.operators.process_function import ProcessFunction as ProcessFunction
    from penstock.operators.process_function import RowContext as RowContext
    from penstock.operators.process_function import ValueState as ValueState
    from penstock.operators.process_function import value_state as value_state
    from penstock.operators.state_ttl import StateTtlConfig as StateTtlConfig
    from penstock.operators.triggers import Trigger as Trigger
    from penstock.operators.triggers import TriggerResult as TriggerResult
    from penstock.operators.window_function import ProcessAllWindowFunction as ProcessAllWindowFunction
    from penstock.operators.window_function import ProcessWindowFunction as ProcessWindowFunction
    from penstock.operators.window_function import WindowContext as WindowContext

__version__ = "0.1.0"

#: Where each name lives.
_MODULES = {
    "penstock.api.aggregates": [
        "Aggregate",
        "aggregating",
        "approx_count_distinct",
        "collect",
        "count",
        "count_distinct",
        "first",
        "last",
        "max",
        "mean",
        "min",
        "quantile",
        "std",
        "sum",
        "var",
    ],
    "penstock.api.environment": ["Environment"],
    "penstock.api.streams": [
        "AllWindowedStream",
        "BroadcastConnectedStream",
        "ConnectedStreams",
        "DataStream",
        "KeyedStream",
        "WindowedStream",
    ],
    "penstock.api.watermarks": ["WatermarkStrategy"],
    "penstock.api.windowing": ["evictor", "trigger"],
    "penstock.api.windows": ["Cumulative", "Global", "Session", "Sliding", "Tumbling"],
    "penstock.config.settings": ["RestartStrategy"],
    "penstock.core.errors": ["GraphError", "JobFailedError", "PenstockError", "UsageError"],
    "penstock.core.schema": ["Precision", "Schema"],
    "penstock.eventtime.generator": ["WatermarkGenerator"],
    "penstock.graph.executor": ["JobExecutor", "JobHandle", "JobResult"],
    "penstock.operators.async_retry": ["AsyncRetryStrategy"],
    "penstock.operators.broadcast_state": ["BroadcastState", "broadcast_state"],
    "penstock.operators.folding_state": [
        "AggregatingState",
        "Aggregator",
        "ReducingState",
        "aggregating_state",
        "reducing_state",
    ],
    "penstock.operators.keyed_collections": ["ListState", "MapState", "list_state", "map_state"],
    "penstock.operators.state_ttl": ["StateTtlConfig"],
    "penstock.operators.migrate": ["migrate"],
    "penstock.operators.operator_lists": ["OperatorListState", "UnionState", "operator_list_state", "union_state"],
    "penstock.operators.process_function": [
        "BroadcastContext",
        "KeyedBroadcastProcessFunction",
        "KeyedCoProcessFunction",
        "KeyedProcessFunction",
        "OpenContext",
        "ProcessContext",
        "ProcessFunction",
        "RowContext",
        "ValueState",
        "value_state",
    ],
    "penstock.operators.evictors": ["Evictor", "WindowElement"],
    "penstock.operators.triggers": ["Trigger", "TriggerResult"],
    "penstock.operators.window_function": ["ProcessAllWindowFunction", "ProcessWindowFunction", "WindowContext"],
}
#: Modules that are used by their name: `ps.snapshots.read(...)`.
_PACKAGES = ["snapshots"]
_NAMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted([*_NAMES, *_PACKAGES])]  # noqa: PLE0604 - names, computed


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _PACKAGES:
        return importlib.import_module(f"penstock.{name}")
    if name not in _NAMES:
        from penstock.core.names import near

        msg = f"penstock has no {name!r} ({near(name, sorted(_NAMES))})"
        raise AttributeError(msg)
    if _NAMES[name].startswith("penstock.api."):
        _wire()
    value = getattr(importlib.import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)


def _wire() -> None:
    """Tell the API what a job started as a plain Python program runs on; the client is loaded when a job is."""
    from penstock.api.executors import set_default_executor

    set_default_executor(_default_executor)


def _default_executor() -> JobExecutor:
    from penstock.client.executors import default_executor

    return default_executor()
