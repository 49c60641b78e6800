"""`a.connect(b).process(function)`: two streams into one function: both keyed, or the second one broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.api.process import Process, Written, annotations_of, process_of
from penstock.api.row_functions import input_type, result_type
from penstock.api.two_inputs import append_two_input
from penstock.core.errors import GraphError
from penstock.operators.join_schema import JoinSides, require_equal_keys
from penstock.operators.process_function import KeyedBroadcastProcessFunction, KeyedCoProcessFunction

if TYPE_CHECKING:
    from penstock.api.data_stream import DataStream
    from penstock.api.keyed_stream import KeyedStream


@dataclass(frozen=True, slots=True)
class _Shape:
    """A kind of function of two streams: its class and its methods for the rows of each."""

    kind: str
    base: Any
    methods: tuple[str, str]


_CO = _Shape("co_process", KeyedCoProcessFunction, ("process1", "process2"))
_BROADCAST = _Shape("broadcast_process", KeyedBroadcastProcessFunction, ("process", "process_broadcast"))


class ConnectedStreams:
    """Two keyed streams that keep their types on the way into one function."""

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
        return _append(compile_two_input(_CO, function, returns, side_outputs or {}, (self._first, self._second)), self)

    @property
    def streams(self) -> tuple[KeyedStream, DataStream]:
        """Both streams."""
        return self._first, self._second


class BroadcastConnectedStream:
    """A keyed stream, and one that every subtask sees whole, on the way into one function."""

    def __init__(self, keyed: KeyedStream, broadcast: DataStream) -> None:
        """Made by `KeyedStream.connect`."""
        self._keyed = keyed
        self._broadcast = broadcast

    def process(
        self,
        function: KeyedBroadcastProcessFunction,
        *,
        returns: Any = None,
        side_outputs: dict[str, Any] | None = None,
    ) -> DataStream:
        """Run a function of one's own on the rows of each key, beside the broadcast stream's rows and what they left.

        The output type is the return annotation of its `process`, or `returns`. The order between rows of the two
        streams is not defined.

        Raises:
            GraphError: no such function, event time on one side only, or a type that is not known.
        """
        streams = self._keyed, self._broadcast
        return _append(compile_two_input(_BROADCAST, function, returns, side_outputs or {}, streams), self)

    @property
    def streams(self) -> tuple[KeyedStream, DataStream]:
        """Both streams."""
        return self._keyed, self._broadcast


def _append(made: Process, connected: ConnectedStreams | BroadcastConnectedStream) -> DataStream:
    first, second = connected.streams
    stream = append_two_input(first, second, made.spec, made.schema, made.row_type)
    if made.sides:
        first.environment.builder.update(stream.flow.upstreams[0].node, side_outputs=made.sides)
    return stream


def compile_two_input(
    shape: _Shape, function: Any, returns: Any, sides: dict[str, Any], streams: tuple[KeyedStream, DataStream]
) -> Process:
    """Return the operator of a function of two streams.

    Raises:
        GraphError: as `ConnectedStreams.process`.
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


def _output_type(results: list[Any], shape: _Shape, where: str) -> Any:
    """Return the one row type that the methods which emit rows name."""
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
