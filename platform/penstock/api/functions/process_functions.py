"""`.process(function)` on a stream, keyed or not: states and types are read from the class, the function is pickled.

The payload is cloudpickle of `(function, input row type or None, {state: row type or None})`, for two connected streams
with a pair of input row types; run by `penstock.operators.process.keyed_process`.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.api.building.appending import NewOperator
from penstock.api.functions.process_states import DeclaredState, declared_states
from penstock.api.functions.row_functions import input_type, is_row_type, output_schema, pickled, result_type
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.functions.broadcast_state import BROADCAST
from penstock.functions.process_function import KeyedProcessFunction, ProcessFunction
from penstock.functions.reduce_function import REDUCED, ReduceFunction
from penstock.functions.state_ttl import ttl_options
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.unkeyed_check import BUILT_IN
from penstock.graph.validate import require_name
from penstock.operators.rows.columns import without_ts
from penstock.operators.rows.rows import named_tuple_of
from penstock.operators.windows.window_rows_schema import validate_rows

if TYPE_CHECKING:
    from penstock.api.building.input_stream import InputStream, KeyedInputStream
    from penstock.functions.state_ttl import TimeToLive


def compile_process(function: Any, returns: Any, sides: dict[str, Any], *, stream: KeyedInputStream) -> NewOperator:
    """Return the operator of a process function on the rows of a stream.

    Raises:
        GraphError: it is no process function, its output type or the type of a state is not known or has no Arrow
            type, or it cannot be pickled.
    """
    written, output_type = _written(function, returns, stream, KeyedProcessFunction)
    written = msgspec.structs.replace(written, keys={"key": list(stream.keys), **stream.flow.computed_config()})
    return process_of(written, output_type, sides, stream.flow.schema)


def compile_plain_process(function: Any, returns: Any, sides: dict[str, Any], *, stream: InputStream) -> NewOperator:
    """Return the operator of a process function on the rows of a stream without keys.

    Raises:
        GraphError: as `compile_process`.
    """
    if isinstance(function, KeyedProcessFunction):
        name = type(function).__name__
        msg = f"process({name}): it is for keyed streams, and this one has no keys"
        raise GraphError(msg, hint=f"key it: .key_by(...).process({name}()), or derive it from ps.ProcessFunction")
    written, output_type = _written(function, returns, stream, ProcessFunction)
    return process_of(msgspec.structs.replace(written, kind="plain_process"), output_type, sides, stream.flow.schema)


def _written(function: Any, returns: Any, stream: InputStream, base: Any) -> tuple[Written, Any]:
    """Return a checked function of one input, and its output type."""
    where = f"process({getattr(function, '__name__', type(function).__name__)})"
    if isinstance(function, type) and issubclass(function, base):
        raise GraphError(f"{where}: it is a class", hint=f"make one: .process({function.__name__}())")
    if not isinstance(function, base):
        raise GraphError(f"{where}: {function!r} is no process function", hint=f"derive it from ps.{base.__name__}")
    if type(function).process is base.process:
        raise GraphError(
            f"{where}: it has no process method", hint="write def process(self, row, ctx) -> Iterator[Out]"
        )
    annotated, result = annotations_of(type(function).process, where, needed=returns is None)
    given = input_type(annotated, stream.flow.row_type, stream.flow.rows, where)
    output_type = returns if returns is not None else result_type("flat_map", result, where)
    return Written("process", where, {}, (function, given)), output_type


def reduced(function: Any, ttl: TimeToLive, *, stream: KeyedInputStream) -> NewOperator:
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


class Written(msgspec.Struct, frozen=True):
    """A process function whose inputs have been checked."""

    kind: str
    where: str
    #: The keys of its inputs.
    keys: dict[str, Any]
    #: The function and the row type, or row types, of its input.
    given: tuple[Any, Any]


def process_of(written: Written, output_type: Any, sides: dict[str, Any], schema: pa.Schema) -> NewOperator:
    """Return the operator of a function with its states and outputs; `schema` determines whether there is event time.

    Raises:
        GraphError: the type of an output or of a state has no Arrow type, or the function cannot be pickled.
    """
    where, (function, given) = written.where, written.given
    output = output_schema(output_type, schema, where)
    states = declared_states(type(function), where)
    for name, state in states.items():
        _require_place(name, state, written)
    side_schemas = {tag: schema_to_text(_side(tag, side, schema, where)) for tag, side in sides.items()}
    config = {
        **written.keys,
        "states": {name: schema_to_text(state.values) for name, state in states.items()},
        "sides": side_schemas,
    }
    kinds = {name: state.kind for name, state in states.items() if state.kind}
    if kinds:
        config["kinds"] = kinds
    types = {name: row_type for state in states.values() for name, row_type in state.types.items()}
    plain = written.kind == "plain_process"
    unkeyed = {name: s.saved for name, s in states.items() if plain or s.kind.get("kind") == BROADCAST}
    spec = OperatorSpec(
        uid="",
        name=where,
        kind=written.kind,
        config=config,
        payload=pickled((function, given, types), where),
        python=True,
        stateful=not plain or bool(states),
        operator_states=unkeyed,
    )
    return NewOperator(spec, output, output_type if is_row_type(output_type) else None, side_schemas)


def _require_place(name: str, state: DeclaredState, written: Written) -> None:
    """Check that a state can be kept by a function of that kind.

    Raises:
        GraphError: it needs keys, or a broadcast stream, or a function without keys, or another name.
    """
    where, plain = f"{written.where}: state {name!r}", written.kind == "plain_process"
    if state.kind.get("kind") == BROADCAST and written.kind != "broadcast_process":
        msg = f"{where} is a broadcast state, but no broadcast stream is connected"
        raise GraphError(msg, hint="connect a broadcast stream: .connect(other.broadcast()).process(...)")
    if plain and not state.of_operator:
        msg = f"{where} is by key, and the stream has no keys"
        raise GraphError(msg, hint="key the stream, or declare ps.operator_list_state() or ps.union_state()")
    if state.of_operator and not plain:
        msg = f"{where} is of a subtask, and the function has keys"
        raise GraphError(msg, hint="use ps.list_state(), or a ps.ProcessFunction on a stream without keys")
    if state.of_operator and name in BUILT_IN:
        msg = f"{where} has a name that is reserved for state of the engine"
        raise GraphError(msg, hint=f"choose a name other than {', '.join(sorted(BUILT_IN))}")


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
