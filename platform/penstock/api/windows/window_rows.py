"""Windows that keep their rows: the operator of a window with a trigger, an evictor or a function.

The payload is cloudpickle of `(trigger, evictor, function, input row type or None)`; for aggregates, the user-defined
ones by output column replace the function. Run by `penstock.operators.windows.window_rows`.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

from penstock.api.building.flow import SALT
from penstock.api.building.operator_nodes import NewOperator
from penstock.api.functions.row_functions import is_row_type, output_schema, pickled, result_type
from penstock.api.windows.windows import Global, Session
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.functions.triggers import EventTimeTrigger, NeverTrigger, ProcessingTimeTrigger
from penstock.functions.window_functions import (
    AllRowsFunction,
    AppliedToAll,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
)
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validation import require_name
from penstock.operators.aggregates.aggregate_schema import key_schema
from penstock.operators.windows.window_schemas import MERGED, PARTIAL, aggregated_schema, parse_rows, validate_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.windows.aggregates import Aggregate
    from penstock.api.windows.window_options import WindowedRows
    from penstock.functions.evictors import Evictor
    from penstock.functions.triggers import Trigger


def aggregate_operator(rows: WindowedRows, aggregates: list[Aggregate]) -> NewOperator:
    """Return the operator that computes aggregates."""
    config = {**rows.config(), "mode": "aggregate", "aggregates": [value.to_config() for value in aggregates]}
    own = {value.name: value.aggregator for value in aggregates if value.fn == "aggregator"}
    return _operator(rows, config, own, (aggregated_schema(config, rows.schema), None))


def row_stages(
    rows: WindowedRows, salted: WindowedRows, aggregates: list[Aggregate]
) -> tuple[NewOperator, OperatorSpec]:
    """Return the two stages of a spread key: that of `salted`, the same rows by key and salt, and the merge.

    Raises:
        GraphError: the accumulators of a user-defined aggregate cannot be kept.
    """
    from penstock.api.functions.process_states import accumulator_columns
    from penstock.operators.windows.row_stages import Mergeable, merged_windows, parts_schema  # imports the kernels

    where, kinds, own = f"window({rows.window.label})", {}, {}
    for value in aggregates:
        if value.fn == "aggregator":
            columns, kind = accumulator_columns(value.aggregator, f"{where}: {type(value.aggregator).__name__}")
            kinds[value.name], own[value.name] = schema_to_text(columns), Mergeable(value.aggregator, kind)
    more = {"aggregates": [value.to_config() for value in aggregates], "accumulators": kinds}
    config = {**rows.config(), **more, "mode": MERGED}
    key = key_schema(parse_rows(config), rows.schema)
    schema = parts_schema(config, rows.schema, key)
    first = _operator(salted, {**salted.config(), **more, "mode": PARTIAL}, own, (schema, None))
    windows, kept = merged_windows(config), schema_to_text(rows.schema)
    config = {**config, "window": windows, "computed": list(key.names), "rows": kept}
    return first, _spec(rows, config, (EventTimeTrigger(), None, own, None), where)


def reduce_operator(rows: WindowedRows, function: Any) -> NewOperator:
    """Return the operator that reduces rows."""
    flow = rows.stream.flow
    if not callable(function):
        raise GraphError(f"reduce: {function!r} is not a function", hint="pass a function of two rows")
    return _operator(rows, {**rows.config(), "mode": "reduce"}, function, (rows.stream.flow.rows, flow.row_type))


def apply_operator(rows: WindowedRows, function: Any, returns: Any) -> NewOperator:
    """Return the operator that calls a function of (key, window, rows), over all rows of (window, rows)."""
    where = f"apply({getattr(function, '__name__', type(function).__name__)})"
    if not callable(function):
        raise GraphError(
            f"{where}: it is not a function", hint=f"pass a function of ({'' if rows.of_all else 'key, '}window, rows)"
        )
    output = _output_of(function, returns, rows, where)
    called = AppliedToAll(function) if rows.of_all else function
    return _operator(rows, {**rows.config(), "mode": "apply"}, called, output)


def process_window_operator(rows: WindowedRows, function: Any, returns: Any, sides: dict[str, Any]) -> NewOperator:
    """Return the operator that calls a `ProcessWindowFunction`, over all rows a `ProcessAllWindowFunction`."""
    where = f"process({getattr(function, '__name__', type(function).__name__)})"
    base = ProcessAllWindowFunction if rows.of_all else ProcessWindowFunction
    if not isinstance(function, base):
        msg = f"{where}: {function!r} is no window function"
        raise GraphError(msg, hint=f"make one of a class derived from ps.{base.__name__}")
    output = _output_of(type(function).process, returns, rows, where)
    texts = {}
    for tag, side in sides.items():
        require_name(tag, f"{where}: side output")
        texts[tag] = schema_to_text(output_schema(side, rows.stream.flow.schema, f"{where}: side output {tag!r}"))
    called = AllRowsFunction(function) if isinstance(function, ProcessAllWindowFunction) else function
    return _operator(rows, {**rows.config(), "mode": "process", "sides": texts}, called, output)


def _output_of(function: Any, returns: Any, rows: WindowedRows, where: str) -> tuple[pa.Schema, Any]:
    """Return the output's schema and row type."""
    if returns is None:
        try:
            annotated = typing.get_type_hints(function).get("return")
        except (NameError, TypeError) as error:
            msg = f"{where}: its annotations cannot be read: {error}"
            raise GraphError(msg, hint="give the row type as returns=...") from error
        returns = result_type("flat_map", annotated, where)
    return output_schema(returns, rows.stream.flow.schema, where), returns if is_row_type(returns) else None


def _operator(rows: WindowedRows, config: dict[str, Any], function: Any, output: tuple[pa.Schema, Any]) -> NewOperator:
    stream, where = rows.stream, f"window({rows.window.label}).{config['mode']}"
    validate_rows(config, rows.schema, where)
    row_type = stream.flow.row_type if rows.edge is None else None
    hidden = stream.flow.computed
    if any(value["column"] in hidden for value in config.get("aggregates", ())):
        row_type, hidden = None, tuple(name for name in hidden if name == SALT)  # the rows include the requested key
    config = {**config, "computed": list(hidden)} if hidden else config
    payload = (_trigger_of(rows, where), _evictor_of(rows, where), function, row_type)
    sides = dict(config.get("sides", {}))
    if "late_to" in config:
        sides[config["late_to"]["tag"]] = schema_to_text(rows.visible_schema)
    schema, output_type = output
    return NewOperator(_spec(rows, config, payload, where), schema, output_type, side_outputs=sides, edge=rows.edge)


def _spec(rows: WindowedRows, config: dict[str, Any], payload: tuple[Any, ...], where: str) -> OperatorSpec:
    return OperatorSpec(
        uid="",
        name=f"Window({rows.window.label}, keeps rows)",
        kind="window_rows",
        config=config,
        payload=pickled(payload, where),
        python=True,
        stateful=True,
    )


def _trigger_of(rows: WindowedRows, where: str) -> Trigger:
    """Return the trigger; by default the window's.

    Raises:
        GraphError: it does not go with the window.
    """
    chosen = rows.options.trigger
    if chosen is None:
        if isinstance(rows.window, Global):
            return NeverTrigger()
        return EventTimeTrigger() if rows.window.time == "event" else ProcessingTimeTrigger()
    if isinstance(rows.window, Session) and not chosen.can_merge:
        msg = f"{where}: {type(chosen).__name__} cannot be used with sessions, which merge"
        raise GraphError(msg, hint="use another trigger, or give a custom one can_merge = True and on_merge")
    if chosen.event_time and not rows.stream.flow.has_event_time:
        msg = f"{where}: {type(chosen).__name__} needs event time, the stream has none"
        raise GraphError(msg, hint="give env.from_source(..., watermarks=...), or use processing time")
    return chosen


def _evictor_of(rows: WindowedRows, where: str) -> Evictor | None:
    """Return the evictor, if one was given.

    Raises:
        GraphError: it goes by event time, and the stream has none.
    """
    chosen = rows.options.evictor
    if chosen is not None and chosen.event_time and not rows.stream.flow.has_event_time:
        msg = f"{where}: {type(chosen).__name__} needs event time, the stream has none"
        raise GraphError(msg, hint="give env.from_source(..., watermarks=...), or use ps.evictor.count or delta")
    return chosen
