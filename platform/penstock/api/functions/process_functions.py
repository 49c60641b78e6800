"""`.process(function)` on a stream, keyed or not, and on two connected streams.

States and types are read from the class, the function is pickled; run by `operators.process.keyed_process`.
"""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.api.building.operator_nodes import NewOperator
from penstock.api.functions.process_states import DeclaredState, declared_states
from penstock.api.functions.row_functions import input_type, is_row_type, output_schema, pickled, result_type
from penstock.api.functions.state_assignments import refuse_assignments
from penstock.core.errors import GraphError, argument_text
from penstock.core.schema import schema_to_text
from penstock.functions.broadcast_state import BROADCAST
from penstock.functions.folding_states import REDUCED, ReduceFunction
from penstock.functions.process_function import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
)
from penstock.functions.state_ttl import ttl_options
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.state_check import RESERVED_STATE_NAMES
from penstock.graph.validation import require_name
from penstock.operators.joins.join_schema import JoinSides, require_equal_keys
from penstock.operators.rows.columns import without_ts
from penstock.operators.rows.row_codec import named_tuple_of
from penstock.operators.windows.window_schemas import validate_rows

if TYPE_CHECKING:
    from penstock.api.building.flow import InputStream, KeyedInputStream
    from penstock.functions.state_ttl import TimeToLive


def compile_process(function: Any, returns: Any, sides: dict[str, Any], *, stream: KeyedInputStream) -> NewOperator:
    """Return the operator of a process function on the rows of a stream.

    Raises:
        GraphError: it is no process function, its output type or the type of a state is not known or has no Arrow
            type, or it cannot be pickled.
    """
    checked, output_type = _checked_function(function, returns, stream, KeyedProcessFunction)
    checked = msgspec.structs.replace(checked, keys={"key": list(stream.keys), **stream.flow.computed_config()})
    return process_operator(checked, output_type, sides, stream.flow.schema)


def compile_plain_process(function: Any, returns: Any, sides: dict[str, Any], *, stream: InputStream) -> NewOperator:
    """Return the operator of a process function on the rows of a stream without keys.

    Raises:
        GraphError: as `compile_process`.
    """
    if isinstance(function, KeyedProcessFunction):
        name = type(function).__name__
        msg = f"process({name}): it is for keyed streams, and this one has no keys"
        raise GraphError(msg, hint=f"key it: .key_by(...).process({name}()), or derive it from ps.ProcessFunction")
    checked, output_type = _checked_function(function, returns, stream, ProcessFunction)
    return process_operator(
        msgspec.structs.replace(checked, kind="plain_process"), output_type, sides, stream.flow.schema
    )


def _checked_function(function: Any, returns: Any, stream: InputStream, base: Any) -> tuple[CheckedFunction, Any]:
    """Return a checked function of one input, and its output type."""
    where = f"process({getattr(function, '__name__', type(function).__name__)})"
    if isinstance(function, type) and issubclass(function, base):
        raise GraphError(f"{where}: it is a class", hint=f"make one: .process({function.__name__}())")
    if not isinstance(function, base):
        msg = f"{where}: {argument_text(function)} is no process function"
        ways = "; a function of one row is for .map(f) and .flat_map(f)" if inspect.isroutine(function) else ""
        raise GraphError(msg, hint=f"derive a class from ps.{base.__name__} and pass its object{ways}")
    if type(function).process is base.process:
        raise GraphError(
            f"{where}: it has no process method", hint="write def process(self, row, ctx) -> Iterator[Out]"
        )
    _require_methods(type(function), where)
    annotated, result = annotations_of(type(function).process, where, needed=returns is None)
    given = input_type(annotated, stream.flow.row_type, stream.flow.rows, where)
    output_type = returns if returns is not None else result_type("flat_map", result, where)
    return CheckedFunction("process", where, {}, (function, given)), output_type


#: Method -> the parameters that the engine passes, and what they are.
_ROW = ("row, ctx", "a row and the context")
_METHODS = {
    "open": ("ctx", "the context"),
    "process": _ROW,
    "process1": _ROW,
    "process2": _ROW,
    "process_broadcast": _ROW,
    "on_timer": ("timestamp, ctx", "the time and the context"),
    "snapshot_state": ("", "self alone"),
    "close": ("", "self alone"),
}


def _require_methods(kind: type, where: str) -> None:
    """Refuse a class with a method that workers could not call.

    Raises:
        GraphError: it takes other arguments, or is a coroutine.
    """
    for name, (parameters, described) in _METHODS.items():
        method: Any = inspect.getattr_static(kind, name, None)
        if not inspect.isfunction(method):
            continue
        given = [part for part in parameters.split(", ") if part]
        result = " -> Iterator[Out]" if name.startswith("process") else ""
        example = f"def {name}({', '.join(['self', *given])}){result}"
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            way = "; a function that waits is for .map_async(f)" if given == ["row", "ctx"] else ""
            raise GraphError(f"{where}: its {name} method is a coroutine", hint=f"write def, not async def{way}")
        try:
            inspect.signature(method).bind(None, *given)
        except TypeError as error:
            msg = f"{where}: its {name} method does not take {described}: {error}"
            raise GraphError(msg, hint=f"write {example}") from error


def reduce_operator(function: Any, ttl: TimeToLive, *, stream: KeyedInputStream) -> NewOperator:
    """Return the operator that reduces the rows of each key, two at a time; the row type is the stream's.

    Raises:
        GraphError: it is no function, or a column has a type that state cannot hold.
    """
    where = f"reduce({getattr(function, '__name__', type(function).__name__)})"
    if not callable(function):
        raise GraphError(f"{where}: it is not a function", hint="pass a function of two rows")
    schema = stream.flow.rows
    rows = without_ts(schema)
    validate_rows({}, rows, where)
    row_type = stream.flow.row_type or named_tuple_of("Row", rows.names)
    config = {
        "key": list(stream.keys),
        **stream.flow.computed_config(),
        "states": {REDUCED: schema_to_text(rows)},
        "sides": {},
        "kinds": {REDUCED: {"kind": "reducing", **ttl_options(ttl, where)}},
    }
    payload = pickled((ReduceFunction(function), stream.flow.row_type, {REDUCED: row_type}), where)
    spec = OperatorSpec(uid="", name=where, kind="process", config=config, payload=payload, python=True, stateful=True)
    return NewOperator(spec, schema, stream.flow.row_type)


class CheckedFunction(msgspec.Struct, frozen=True):
    """A process function whose inputs have been checked."""

    kind: str
    where: str
    #: The keys of its inputs.
    keys: dict[str, Any]
    #: The function and the row type, or row types, of its input.
    given: tuple[Any, Any]


def process_operator(
    checked: CheckedFunction, output_type: Any, sides: dict[str, Any], schema: pa.Schema
) -> NewOperator:
    """Return the operator of a function with its states and outputs; `schema` determines whether there is event time.

    Raises:
        GraphError: the type of an output or of a state has no Arrow type, or the function cannot be pickled.
    """
    where, (function, given) = checked.where, checked.given
    output = output_schema(output_type, schema, where)
    states = declared_states(function, where)
    for name, state in states.items():
        _require_supported(name, state, checked)
    refuse_assignments(function, {name: state.kind.get("kind", "") for name, state in states.items()}, where)
    side_schemas = {tag: schema_to_text(_side(tag, side, schema, where)) for tag, side in sides.items()}
    config = {
        **checked.keys,
        "states": {name: schema_to_text(state.values) for name, state in states.items()},
        "sides": side_schemas,
    }
    kinds = {name: state.kind for name, state in states.items() if state.kind}
    if kinds:
        config["kinds"] = kinds
    types = {name: row_type for state in states.values() for name, row_type in state.types.items()}
    plain = checked.kind == "plain_process"
    unkeyed = {name: s.saved for name, s in states.items() if plain or s.kind.get("kind") == BROADCAST}
    spec = OperatorSpec(
        uid="",
        name=where,
        kind=checked.kind,
        config=config,
        payload=pickled((function, given, types), where),
        python=True,
        stateful=not plain or bool(states),
        operator_states=unkeyed,
    )
    return NewOperator(spec, output, output_type if is_row_type(output_type) else None, side_schemas)


def _require_supported(name: str, state: DeclaredState, checked: CheckedFunction) -> None:
    """Check that a state can be kept by a function of that kind.

    Raises:
        GraphError: it needs keys, or a broadcast stream, or a function without keys, or another name.
    """
    where, plain = f"{checked.where}: state {name!r}", checked.kind == "plain_process"
    if state.kind.get("kind") == BROADCAST and checked.kind != "broadcast_process":
        msg = f"{where} is a broadcast state, but no broadcast stream is connected"
        raise GraphError(msg, hint="connect a broadcast stream: .connect(other.broadcast()).process(...)")
    if plain and not state.is_operator_state:
        msg = f"{where} is by key, and the stream has no keys"
        raise GraphError(msg, hint="key the stream, or declare ps.operator_list_state() or ps.union_state()")
    if state.is_operator_state and not plain:
        msg = f"{where} is of a subtask, and the function has keys"
        raise GraphError(msg, hint="use ps.list_state(), or a ps.ProcessFunction on a stream without keys")
    if state.is_operator_state and name in RESERVED_STATE_NAMES:
        msg = f"{where} has a name that is reserved for state of the engine"
        raise GraphError(msg, hint=f"choose a name other than {', '.join(sorted(RESERVED_STATE_NAMES))}")


def annotations_of(method: Any, where: str, *, needed: bool) -> tuple[Any, Any]:
    """Return the annotations of the row and of the result."""
    try:
        hints = typing.get_type_hints(method)
    except (NameError, TypeError) as error:
        if not needed:
            return None, None
        msg = f"{where}: its annotations cannot be read: {error}"
        raise GraphError(msg, hint="give the row type as returns=...") from error
    names = method.__code__.co_varnames[1:2] if hasattr(method, "__code__") else ()
    return (hints.get(names[0]) if names else None), hints.get("return")


def _side(tag: str, side: Any, schema: pa.Schema, where: str) -> pa.Schema:
    require_name(tag, f"{where}: side output")
    return output_schema(side, schema, f"{where}: side output {tag!r}")


@dataclass(frozen=True, slots=True)
class TwoInputKind:
    """A kind of function of two streams: its class and its methods for the rows of each."""

    kind: str
    base: Any
    methods: tuple[str, str]


CO_PROCESS = TwoInputKind("co_process", KeyedCoProcessFunction, ("process1", "process2"))
BROADCAST_PROCESS = TwoInputKind("broadcast_process", KeyedBroadcastProcessFunction, ("process", "process_broadcast"))


def compile_two_input(
    two_input: TwoInputKind,
    function: Any,
    returns: Any,
    sides: dict[str, Any],
    streams: tuple[KeyedInputStream, InputStream],
) -> NewOperator:
    """Return the operator of a function of two streams.

    Raises:
        GraphError: no such function, keys of different types, event time on one side only, or a type that is not known.
    """
    where = f"process({getattr(function, '__name__', type(function).__name__)})"
    if isinstance(function, type) and issubclass(function, two_input.base):
        raise GraphError(f"{where}: it is a class", hint=f"make one: .process({function.__name__}())")
    if not isinstance(function, two_input.base):
        raise GraphError(
            f"{where}: {function!r} is no function of these two streams",
            hint=f"derive it from ps.{two_input.base.__name__}",
        )
    if streams[0].flow.has_event_time != streams[1].flow.has_event_time:
        raise GraphError(
            f"{where}: one stream has event time, the other has none",
            hint="give both sources watermarks=..., or none of them",
        )
    _require_methods(type(function), where)
    given, results = [], []
    for method, stream in zip(two_input.methods, streams, strict=True):
        if getattr(type(function), method) is getattr(two_input.base, method):
            raise GraphError(f"{where}: it has no {method} method", hint=f"write def {method}(self, row, ctx)")
        called = f"{where}, {method}"
        annotated, result = annotations_of(getattr(type(function), method), called, needed=returns is None)
        given.append(input_type(annotated, stream.flow.row_type, stream.flow.rows, called))
        if result is not None and result is not type(None):
            results.append(result)
    checked = CheckedFunction(two_input.kind, where, _keys(streams, where), (function, tuple(given)))
    output_type = returns if returns is not None else _output_type(results, two_input, where)
    return process_operator(checked, output_type, sides, streams[0].flow.schema)


def _keys(streams: tuple[Any, Any], where: str) -> dict[str, Any]:
    """Return the keys of both inputs; a broadcast stream has none."""
    first, second = streams
    keys = getattr(second, "keys", None)
    if keys is not None:
        require_equal_keys(JoinSides(first.keys, keys, ""), first.flow.schema, second.flow.schema, where)
    hidden = first.flow.computed_config() | ({} if keys is None else second.flow.computed_config("second_computed"))
    return {"key": list(first.keys), "second_key": None if keys is None else list(keys), **hidden}


def _output_type(results: list[Any], two_input: TwoInputKind, where: str) -> Any:
    """Return the one row type of the methods that emit rows."""
    types = [result_type("flat_map", result, where) for result in results]
    if not types:
        return result_type("flat_map", None, where)
    if any(kind is not types[0] for kind in types):
        first, second = two_input.methods
        raise GraphError(
            f"{where}: {first} yields {types[0].__name__} and {second} {types[1].__name__}",
            hint="yield one row type from both, and others to side outputs",
        )
    return types[0]
