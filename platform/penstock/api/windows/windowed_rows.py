"""The rows of a keyed stream by window: the input of the operators of all windows."""

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
    """The rows of a keyed stream by window, with the window's options."""

    stream: KeyedInputStream
    window: Window
    options: WindowOptions
    #: Arrow schema of the rows at the call of `window`: no hidden columns.
    seen: pa.Schema
    #: The only columns sent to the operator; None: all of them.
    edge: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows sent to the operator."""
        return self.stream.flow.schema if self.edge is None else self.edge

    @property
    def of_all(self) -> bool:
        """Whether the rows of all keys are in one window."""
        return self.stream.keys == (ALL,)

    def config(self) -> dict[str, Any]:
        """Return the config entries common to the operators of all windows."""
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
