"""`KeyedStream`: what `.key_by(...)` gives; the partitioning goes to the next operator, windows work per key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.data_stream import DataStream, Flow
from penstock.api.windows import Window, require_window
from penstock.core.errors import GraphError
from penstock.graph.validate import require_no_window_columns

if TYPE_CHECKING:
    from penstock.api.environment import Environment
    from penstock.api.windowed_stream import WindowedStream


class KeyedStream(DataStream):
    """A stream whose rows of one key meet in one subtask of the next operator."""

    def __init__(self, environment: Environment, flow: Flow, keys: tuple[str, ...]) -> None:
        """Made by `DataStream.key_by`."""
        super().__init__(environment, flow)
        self._keys = keys

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return self._keys

    def window(self, window: Window) -> WindowedStream:
        """Group the rows of each key into windows of event time."""
        from penstock.api.windowed_stream import WindowedStream

        where = f"window({require_window(window).label})"
        if not self.flow.has_event_time:
            msg = f"{where}: the stream has no event time"
            way = "ps.WatermarkStrategy.bounded_out_of_orderness('5s', timestamp=...)"
            raise GraphError(msg, hint=f"give env.from_source(..., watermarks={way})")
        require_no_window_columns(self.columns, where)
        return WindowedStream(self, window)
