"""The rows of a keyed stream by window: what the operators of all windows are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.api.building.flow import ALL

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.building.input_stream import KeyedInputStream
    from penstock.api.windows.window_options import WindowOptions
    from penstock.api.windows.windows import Window


class WindowedRows(msgspec.Struct, frozen=True):
    """The rows of a keyed stream by window, and what was said of it."""

    stream: KeyedInputStream
    window: Window
    options: WindowOptions
    #: Arrow schema of the rows as the window was opened over them: no hidden columns.
    seen: pa.Schema
    #: The only columns that travel to the operator, None: all of them.
    edge: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows that travel to the operator."""
        return self.stream.flow.schema if self.edge is None else self.edge

    @property
    def of_all(self) -> bool:
        """Whether the rows of all keys are in one window."""
        return self.stream.keys == (ALL,)

    def config(self) -> dict[str, Any]:
        """Return what the operators of all windows are told."""
        config: dict[str, Any] = {
            "key": list(self.stream.keys),
            "window": self.window.to_config(),
            "allowed_lateness_us": self.options.lateness_us,
        }
        if self.of_all:
            config["of_all"] = True
        if self.options.late_tag is not None:
            config["late_to"] = {"tag": self.options.late_tag, "columns": list(self.seen.names)}
        return config
