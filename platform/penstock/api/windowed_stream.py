"""`WindowedStream`: what `.window(...)` gives; `.aggregate(...)` ends it and adds the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from penstock.api.aggregates import Aggregate
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import GraphError
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import WINDOW_COLUMNS, require_columns, require_unique
from penstock.operators.window_schema import output_schema

if TYPE_CHECKING:
    from penstock.api.data_stream import DataStream
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.windows import Window


class WindowedStream:
    """Rows by key and window, waiting for what is to be done with each window."""

    def __init__(self, stream: KeyedStream, window: Window, lateness_us: int = 0) -> None:
        """Made by `KeyedStream.window`."""
        self._stream = stream
        self._window = window
        self._lateness_us = lateness_us

    def allowed_lateness(self, lateness: str | float) -> WindowedStream:
        """Keep closed windows for this long: late rows then give their key's window again, with the new values.

        The sink gets a row more for such a window, so it must take the last one of a key and window. Later rows are
        counted (`numLateRecordsDropped`) and dropped.
        """
        milliseconds = parse_duration_ms(lateness, "allowed lateness")
        if milliseconds < 0:
            msg = f"allowed_lateness({lateness!r}) is negative"
            raise GraphError(msg, hint="use 0 or a duration such as '1m'")
        return WindowedStream(self._stream, self._window, milliseconds * 1000)

    def late_to(self, tag: str) -> NoReturn:
        """Refuse to route late rows to a side output: they are counted (`numLateRecordsDropped`) and dropped.

        Raises:
            GraphError: always.
        """
        msg = f"late_to({tag!r}): late rows cannot be routed, they are counted in numLateRecordsDropped"
        raise GraphError(msg, hint="raise the bound of the watermark strategy, or use .allowed_lateness(...)")

    def aggregate(self, *aggregates: Aggregate, **named: Aggregate) -> DataStream:
        """Compute aggregates of each key and window; columns: the keys, window_start, window_end, then these in order.

        Raises:
            GraphError: no aggregate, an unknown column, a name twice, or a column of a type the aggregate cannot take.
        """
        stream, where = self._stream, f"aggregate over {self._window.label}"
        wanted = [*aggregates, *(_renamed(name, value, where) for name, value in named.items())]
        if not wanted:
            msg = f"{where}: no aggregate is given"
            raise GraphError(msg, hint="write for example .aggregate(n=ps.count(), total=ps.sum('amount'))")
        for value in wanted:
            _require_aggregate(value, where)
            if value.column is not None:
                require_columns([value.column], stream.columns, f"{where}: {value.fn}")
        require_unique([*stream.keys, *WINDOW_COLUMNS, *(value.name for value in wanted)], where)
        config = {
            "key": list(stream.keys),
            "window": self._window.to_config(),
            "aggregates": [value.to_config() for value in wanted],
            "allowed_lateness_us": self._lateness_us,
        }
        spec = OperatorSpec(
            uid="", name=f"Window({self._window.label})", kind="window_aggregate", config=config, stateful=True
        )
        schema = output_schema(config, stream.flow.schema)
        return stream.append_operator(spec, schema)


def _renamed(name: str, value: Any, where: str) -> Aggregate:
    _require_aggregate(value, f"{where}: {name}")
    renamed: Aggregate = msgspec.structs.replace(value, name=name)
    return renamed


def _require_aggregate(value: Any, where: str) -> None:
    if not isinstance(value, Aggregate):
        msg = f"{where}: {value!r} is not an aggregate"
        raise GraphError(msg, hint="there are ps.count, sum, min, max, mean, var, std, first and last")
