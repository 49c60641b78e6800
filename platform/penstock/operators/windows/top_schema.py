"""The configuration of the best rows of a window: validation, without the operator.

Called by the API when the graph is built, and by `operators.windows.window_top` when it opens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError
from penstock.eventtime.windows import validate_window
from penstock.operators.aggregates.window_schema import field_of


@dataclass(frozen=True, slots=True)
class TopConfig:
    """The configuration of a `window_top` operator; times in microseconds."""

    size: int
    slide: int
    offset: int
    by: str
    count: int
    descending: bool
    #: Keep every row that is equal to the last kept one.
    ties: bool
    #: Only drop rows that cannot be among the best of the same subtask; a later operator selects the result.
    local: bool

    @property
    def windows_per_row(self) -> int:
        """The number of windows that contain a row."""
        return -(-self.size // self.slide)


def parse_top(config: dict[str, Any]) -> TopConfig:
    """Parse the configuration.

    Raises:
        GraphError: a part is missing or a number makes no sense.
    """
    try:
        window = config["window"]
        size, slide, offset = int(window["size_us"]), int(window["slide_us"]), int(window.get("offset_us", 0))
        parsed = TopConfig(
            size=size,
            slide=slide,
            offset=offset,
            by=config["by"],
            count=int(config["count"]),
            descending=bool(config["descending"]),
            ties=bool(config["ties"]),
            local=bool(config["local"]),
        )
    except KeyError as error:
        raise GraphError(
            f"window_top: {error.args[0]!r} is missing in its configuration",
            hint="it has window, by, count, descending, ties and local",
        ) from error
    validate_window(size, slide, offset)
    if parsed.count < 1:
        raise GraphError(f"top({parsed.count}) keeps no row", hint="keep 1 or more")
    return parsed


def validate_top(config: dict[str, Any], input_schema: pa.Schema) -> None:
    """Check a configuration against its input schema.

    Raises:
        GraphError: it does not fit them.
    """
    parsed = parse_top(config)
    if input_schema.get_field_index(TS_COLUMN) < 0:
        raise GraphError("a window needs event time, its input has none", hint="give env.from_source(watermarks=...)")
    kind = field_of(parsed.by, input_schema, "top").type
    ordered = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_timestamp(kind) or pt.is_date(kind)
    if not ordered or pt.is_uint64(kind):
        raise GraphError(
            f"top(by={parsed.by!r}): type {kind} is not supported",
            hint="order by integers, floats, timestamps or dates; cast the column first",
        )
