"""`a.connect(b).process(function)`: the operator of a function of two streams, both keyed or the second broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.api.functions.process_functions import Written, annotations_of, process_of
from penstock.api.functions.row_functions import input_type, result_type
from penstock.core.errors import GraphError
from penstock.functions.process_function import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from penstock.operators.joins.join_schema import JoinSides, require_equal_keys

if TYPE_CHECKING:
    from penstock.api.building.appending import NewOperator
    from penstock.api.building.input_stream import InputStream, KeyedInputStream


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of function of two streams: its class and its methods for the rows of each."""

    kind: str
    base: Any
    methods: tuple[str, str]


CO = Shape("co_process", KeyedCoProcessFunction, ("process1", "process2"))
BROADCAST = Shape("broadcast_process", KeyedBroadcastProcessFunction, ("process", "process_broadcast"))


def compile_two_input(
    shape: Shape, function: Any, returns: Any, sides: dict[str, Any], streams: tuple[KeyedInputStream, InputStream]
) -> NewOperator:
    """Return the operator of a function of two streams.

    Raises:
        GraphError: no such function, keys of different types, event time on one side only, or a type that is not known.
    """
    where = f"process({getattr(function, '__name__', type(function).__name__)})"
    if isinstance(function, type) and issubclass(function, shape.base):
        raise GraphError(f"{where}: it is a class", hint=f"make one: .process({function.__name__}())")
    if not isinstance(function, shape.base):
        raise GraphError(
            f"{where}: {function!r} is no function of these two streams",
            hint=f"derive it from ps.{shape.base.__name__}",
        )
    if streams[0].flow.has_event_time != streams[1].flow.has_event_time:
        raise GraphError(
            f"{where}: one stream has event time, the other has none",
            hint="give both sources watermarks=..., or none of them",
        )
    given, results = [], []
    for method, stream in zip(shape.methods, streams, strict=True):
        if getattr(type(function), method) is getattr(shape.base, method):
            raise GraphError(f"{where}: it has no {method} method", hint=f"write def {method}(self, row, ctx)")
        called = f"{where}, {method}"
        annotated, result = annotations_of(getattr(type(function), method), called, needed=returns is None)
        given.append(input_type(annotated, stream.flow.row_type, stream.flow.rows, called))
        if result is not None and result is not type(None):
            results.append(result)
    written = Written(shape.kind, where, _keys(streams, where), (function, tuple(given)))
    output_type = returns if returns is not None else _output_type(results, shape, where)
    return process_of(written, output_type, sides, streams[0].flow.schema)


def _keys(streams: tuple[Any, Any], where: str) -> dict[str, Any]:
    """Return the keys of both inputs; a broadcast stream has none."""
    first, second = streams
    keys = getattr(second, "keys", None)
    if keys is not None:
        require_equal_keys(JoinSides(first.keys, keys, ""), first.flow.schema, second.flow.schema, where)
    hidden = first.flow.computed_config() | ({} if keys is None else second.flow.computed_config("second_computed"))
    return {"key": list(first.keys), "second_key": None if keys is None else list(keys), **hidden}


def _output_type(results: list[Any], shape: Shape, where: str) -> Any:
    """Return the one row type of the methods that emit rows."""
    types = [result_type("flat_map", result, where) for result in results]
    if not types:
        return result_type("flat_map", None, where)
    if any(kind is not types[0] for kind in types):
        first, second = shape.methods
        raise GraphError(
            f"{where}: {first} yields {types[0].__name__} and {second} {types[1].__name__}",
            hint="yield one row type from both, and others to side outputs",
        )
    return types[0]
