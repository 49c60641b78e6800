"""`AllWindowedStream`: what `.window_all(...)` gives: windows over the rows of all keys; `.top(...)` ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import require_columns
from penstock.operators.top_schema import validate_top

if TYPE_CHECKING:
    from penstock.api.data_stream import DataStream
    from penstock.api.windows import Window


class AllWindowedStream:
    """All rows by window, waiting for what is to be done with each window."""

    def __init__(self, stream: DataStream, window: Window) -> None:
        """Made by `DataStream.window_all`."""
        self._stream = stream
        self._window = window

    def top(self, count: int, *, by: str, descending: bool = True, ties: bool = False) -> DataStream:
        """Keep the `count` best rows of each window by one column, whole rows, and emit them when the window closes.

        With `ties`, also every row equal to the last of them (SQL's `RANK() <= count`); without, rows that are equal
        are taken as they came (`ROW_NUMBER() <= count`). Rows keep their columns and come the best first; null is never
        among the best. Every subtask thins its rows out first, one subtask chooses.

        Raises:
            GraphError: no such column, or one that cannot order rows.
        """
        stream = self._stream
        require_columns([by], stream.columns, "top")
        config: dict[str, Any] = {
            "window": self._window.to_config(),
            "by": by,
            "count": count,
            "descending": descending,
            "ties": ties,
        }
        validate_top({**config, "local": True}, stream.flow.schema)
        name = f"Top {count} by {by}({self._window.label})"
        first = OperatorSpec(uid="", name=f"Local{name}", kind="window_top", config={**config, "local": True})
        thinned = stream.append_operator(first, stream.flow.schema)
        spec = OperatorSpec(uid="", name=name, kind="window_top", config={**config, "local": False}, stateful=True)
        return thinned.append_operator(spec, stream.flow.schema, stream.flow.row_type).set_parallelism(1)

    def max_by(self, by: str, *, ties: bool = True) -> DataStream:
        """Keep the rows of each window that have the greatest value of a column; without `ties` the first of them."""
        return self.top(1, by=by, ties=ties)

    def min_by(self, by: str, *, ties: bool = True) -> DataStream:
        """Keep the rows of each window that have the least value of a column; without `ties` the first of them."""
        return self.top(1, by=by, descending=False, ties=ties)
