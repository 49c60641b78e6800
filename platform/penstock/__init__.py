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
    from penstock.api.environment import Environment as Environment
    from penstock.api.streams import AllWindowedStream as AllWindowedStream
    from penstock.api.streams import BroadcastConnectedStream as BroadcastConnectedStream
    from penstock.api.streams import ConnectedStreams as ConnectedStreams
    from penstock.api.streams import DataStream as DataStream
    from penstock.api.streams import KeyedStream as KeyedStream
    from penstock.api.streams import WindowedStream as WindowedStream
    from penstock.api.watermarks import WatermarkStrategy as WatermarkStrategy
    from penstock.api.windows.aggregates import Aggregate as Aggregate
    from penstock.api.windows.aggregates import aggregating as aggregating
    from penstock.api.windows.aggregates import approx_count_distinct as approx_count_distinct
    from penstock.api.windows.aggregates import collect as collect
    from penstock.api.windows.aggregates import count as count
    from penstock.api.windows.aggregates import count_distinct as count_distinct
    from penstock.api.windows.aggregates import first as first
    from penstock.api.windows.aggregates import last as last
    from penstock.api.windows.aggregates import max as max  # noqa: A004
    from penstock.api.windows.aggregates import mean as mean
    from penstock.api.windows.aggregates import min as min  # noqa: A004
    from penstock.api.windows.aggregates import quantile as quantile
    from penstock.api.windows.aggregates import std as std
    from penstock.api.windows.aggregates import sum as sum  # noqa: A004
    from penstock.api.windows.aggregates import var as var
    from penstock.api.windows.windowing import evictor as evictor
    from penstock.api.windows.windowing import trigger as trigger
    from penstock.api.windows.windows import Cumulative as Cumulative
    from penstock.api.windows.windows import Global as Global
    from penstock.api.windows.windows import Session as Session
    from penstock.api.windows.windows import Sliding as Sliding
    from penstock.api.windows.windows import Tumbling as Tumbling
    from penstock.config.settings import ResourceProfile as ResourceProfile
    from penstock.config.settings import RestartStrategy as RestartStrategy
    from penstock.core.errors import GraphError as GraphError
    from penstock.core.errors import JobFailedError as JobFailedError
    from penstock.core.errors import PenstockError as PenstockError
    from penstock.core.errors import UsageError as UsageError
    from penstock.core.schema import Precision as Precision
    from penstock.core.schema import Schema as Schema
    from penstock.eventtime.strategy import WatermarkGenerator as WatermarkGenerator
    from penstock.functions.async_retry import AsyncRetryStrategy as AsyncRetryStrategy
    from penstock.functions.broadcast_state import BroadcastState as BroadcastState
    from penstock.functions.broadcast_state import broadcast_state as broadcast_state
    from penstock.functions.evictors import Evictor as Evictor
    from penstock.functions.evictors import WindowElement as WindowElement
    from penstock.functions.folding_states import AggregatingState as AggregatingState
    from penstock.functions.folding_states import Aggregator as Aggregator
    from penstock.functions.folding_states import ReducingState as ReducingState
    from penstock.functions.folding_states import aggregating_state as aggregating_state
    from penstock.functions.folding_states import reducing_state as reducing_state
    from penstock.functions.keyed_states import ListState as ListState
    from penstock.functions.keyed_states import MapState as MapState
    from penstock.functions.keyed_states import list_state as list_state
    from penstock.functions.keyed_states import map_state as map_state
    from penstock.functions.migration import migrate as migrate
    from penstock.functions.operator_lists import OperatorListState as OperatorListState
    from penstock.functions.operator_lists import UnionState as UnionState
    from penstock.functions.operator_lists import operator_list_state as operator_list_state
    from penstock.functions.operator_lists import union_state as union_state
    from penstock.functions.process_function import BroadcastContext as BroadcastContext
    from penstock.functions.process_function import KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction
    from penstock.functions.process_function import KeyedCoProcessFunction as KeyedCoProcessFunction
    from penstock.functions.process_function import KeyedProcessFunction as KeyedProcessFunction
    from penstock.functions.process_function import OpenContext as OpenContext
    from penstock.functions.process_function import ProcessContext as ProcessContext
    from penstock.functions.process_function import ProcessFunction as ProcessFunction
    from penstock.functions.process_function import RowContext as RowContext
    from penstock.functions.process_function import ValueState as ValueState
    from penstock.functions.process_function import value_state as value_state
    from penstock.functions.state_ttl import StateTtlConfig as StateTtlConfig
    from penstock.functions.triggers import Trigger as Trigger
    from penstock.functions.triggers import TriggerResult as TriggerResult
    from penstock.functions.window_functions import ProcessAllWindowFunction as ProcessAllWindowFunction
    from penstock.functions.window_functions import ProcessWindowFunction as ProcessWindowFunction
    from penstock.functions.window_functions import WindowContext as WindowContext
    from penstock.graph.executor import JobExecutor as JobExecutor
    from penstock.graph.executor import JobHandle as JobHandle
    from penstock.graph.executor import JobResult as JobResult

__version__ = "0.1.0"

#: Where each name lives.
_MODULES = {
    "penstock.api.windows.aggregates": [
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
    "penstock.api.windows.windowing": ["evictor", "trigger"],
    "penstock.api.windows.windows": ["Cumulative", "Global", "Session", "Sliding", "Tumbling"],
    "penstock.config.settings": ["ResourceProfile", "RestartStrategy"],
    "penstock.core.errors": ["GraphError", "JobFailedError", "PenstockError", "UsageError"],
    "penstock.core.schema": ["Precision", "Schema"],
    "penstock.eventtime.strategy": ["WatermarkGenerator"],
    "penstock.graph.executor": ["JobExecutor", "JobHandle", "JobResult"],
    "penstock.functions.async_retry": ["AsyncRetryStrategy"],
    "penstock.functions.broadcast_state": ["BroadcastState", "broadcast_state"],
    "penstock.functions.folding_states": [
        "AggregatingState",
        "Aggregator",
        "ReducingState",
        "aggregating_state",
        "reducing_state",
    ],
    "penstock.functions.keyed_states": ["ListState", "MapState", "list_state", "map_state"],
    "penstock.functions.state_ttl": ["StateTtlConfig"],
    "penstock.functions.migration": ["migrate"],
    "penstock.functions.operator_lists": ["OperatorListState", "UnionState", "operator_list_state", "union_state"],
    "penstock.functions.process_function": [
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
    "penstock.functions.evictors": ["Evictor", "WindowElement"],
    "penstock.functions.triggers": ["Trigger", "TriggerResult"],
    "penstock.functions.window_functions": ["ProcessAllWindowFunction", "ProcessWindowFunction", "WindowContext"],
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
        from penstock.core.errors import unknown_name_hint

        msg = f"penstock has no {name!r} ({unknown_name_hint(name, sorted(_NAMES))})"
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
    from penstock.api.building.executors import set_default_executor, set_preview_executor

    set_default_executor(_default_executor)
    set_preview_executor(_preview_executor)


def _default_executor() -> JobExecutor:
    from penstock.client.executors import default_executor

    return default_executor()


#: `stream.show()` shows what it has after this time without a row.
_QUIET_MS = 5_000.0


def _preview_executor() -> JobExecutor:
    from penstock.client.in_process import InProcessExecutor

    return InProcessExecutor(idle_ms=_QUIET_MS)
