"""`a.connect(b).process(function)`: two keyed streams into one function, which shares its state between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.api.process import Written, annotations_of, process_of
from penstock.api.row_functions import input_type, result_type
from penstock.api.two_inputs import append_two_input
from penstock.core.errors import GraphError
from penstock.operators.join_schema import JoinSides, require_equal_keys
from penstock.operators.process_function import KeyedCoProcessFunction

if TYPE_CHECKING:
    from penstock.api.data_stream import DataStream
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.process import Process

_BASE: Any = KeyedCoProcessFunction
_METHODS = ("process1", "process2")


class ConnectedStreams:
    """Two streams that keep their types on the way into one function."""

    def __init__(self, first: KeyedStream, second: KeyedStream) -> None:
        """Made by `KeyedStream.connect`."""
        self._first = first
        self._second = second

    def process(
        self,
        function: KeyedCoProcessFunction,
        *,
        returns: Any = None,
        side_outputs: dict[str, Any] | None = None,
    ) -> DataStream:
        """Run a function of one's own on the rows of each key of both streams, with state and timers of that key.

        The output type is the return annotation of its `process1` or `process2`, or `returns`; those of side outputs
        (`ctx.side(tag, row)`) are given by tag. The order between rows of the two streams is not defined.

        Raises:
            GraphError: no such function, keys of different types, event time on one side only, or a type that is not
                known.
        """
        first, second = self._first, self._second
        made = _compile(function, returns, side_outputs or {}, (first, second))
        stream = append_two_input(first, second, made.spec, made.schema, made.row_type)
        if made.sides:
            first.environment.builder.update(stream.flow.upstreams[0].node, side_outputs=made.sides)
        return stream


def _compile(function: Any, returns: Any, sides: dict[str, Any], streams: tuple[KeyedStream, KeyedStream]) -> Process:
    where = f"process({getattr(function, '__name__', type(function).__name__)})"
    if isinstance(function, type) and issubclass(function, KeyedCoProcessFunction):
        raise GraphError(f"{where}: it is a class", hint=f"make one: .process({function.__name__}())")
    if not isinstance(function, KeyedCoProcessFunction):
        raise GraphError(
            f"{where}: {function!r} is no function of two streams", hint="derive it from ps.KeyedCoProcessFunction"
        )
    keys = JoinSides(streams[0].keys, streams[1].keys, "")
    require_equal_keys(keys, streams[0].flow.schema, streams[1].flow.schema, where)
    if streams[0].flow.has_event_time != streams[1].flow.has_event_time:
        raise GraphError(
            f"{where}: one stream has event time, the other has none",
            hint="give both sources watermarks=..., or none of them",
        )
    given, results = [], []
    for method, stream in zip(_METHODS, streams, strict=True):
        if getattr(type(function), method) is getattr(_BASE, method):
            raise GraphError(f"{where}: it has no {method} method", hint=f"write def {method}(self, row, ctx)")
        called = f"{where}, {method}"
        annotated, result = annotations_of(getattr(type(function), method), called, needed=returns is None)
        given.append(input_type(annotated, stream.flow.row_type, stream.flow.schema, called))
        if result is not None and result is not type(None):
            results.append(result)
    written = Written(
        "co_process", where, {"key": list(keys.left), "second_key": list(keys.right)}, (function, tuple(given))
    )
    output_type = returns if returns is not None else _output_type(results, where)
    return process_of(written, output_type, sides, streams[0].flow.schema)


def _output_type(results: list[Any], where: str) -> Any:
    """Return the one row type that the methods which emit rows name."""
    types = [result_type("flat_map", result, where) for result in results]
    if not types:
        return result_type("flat_map", None, where)
    if any(kind is not types[0] for kind in types):
        raise GraphError(
            f"{where}: process1 yields {types[0].__name__} and process2 {types[1].__name__}",
            hint="yield one row type from both, and others to side outputs",
        )
    return types[0]
