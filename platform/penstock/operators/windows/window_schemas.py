"""The configurations of windows that keep their rows and of the best rows of a window: validation and output schema.

Loads no operator. Called by the API when the graph is built, and by the operators when they open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError
from penstock.eventtime.windows import validate_window
from penstock.kernels.keys.key_types import is_fixed, is_key_type
from penstock.operators.aggregates.aggregate_schema import (
    WINDOW_END,
    WINDOW_START,
    Aggregate,
    aggregates_of,
    field_of,
    key_schema,
    output_field,
    validate_aggregates,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIME = pa.timestamp("us", tz="UTC")
#: The stages of the windows of a spread key, in an operator's configuration: `stage`, or `mode` if it keeps rows.
PARTIAL, MERGED = "partial", "merged"


@dataclass(frozen=True, slots=True)
class WindowRowsConfig:
    """The configuration of a `window_rows` operator; times in microseconds."""

    key: tuple[str, ...]
    window: dict[str, Any]
    #: `aggregate`, `partial`, `merged`, `reduce`, `apply`, `process` or `join`.
    mode: str
    allowed_lateness: int
    aggregates: tuple[Aggregate, ...]


def parse_rows(config: dict[str, Any], key: Sequence[str] | None = None) -> WindowRowsConfig:
    """Parse the configuration; `key`: the key's columns, if the configuration has them in another form."""
    aggregates = aggregates_of({"aggregates": config.get("aggregates", ())})
    lateness = int(config.get("allowed_lateness_us", 0))
    names = config["key"] if key is None else key
    return WindowRowsConfig(tuple(names), config["window"], config.get("mode", "join"), lateness, aggregates)


def validate_rows(config: dict[str, Any], input_schema: pa.Schema, where: str) -> None:
    """Check that rows of the input can be kept.

    Raises:
        GraphError: a column has a type that state cannot hold.
    """
    del config
    for field in input_schema:
        if not (is_fixed(field.type) or is_key_type(field.type)):
            msg = f"{where}: column {field.name!r} of type {field.type} cannot be kept in state"
            raise GraphError(msg, hint="leave it out before the window with .select(...), or convert it")


def aggregated_schema(config: dict[str, Any], input_schema: pa.Schema) -> pa.Schema:
    """Return the output schema of aggregates: keys, bounds (none for a global window), aggregates, event time if any.

    Raises:
        GraphError: an aggregate cannot be computed, or a column would exist twice.
    """
    parsed = parse_rows(config)
    is_global = parsed.window["kind"] == "global"
    bounds = [] if is_global else [pa.field(name, _TIME, nullable=False) for name in (WINDOW_START, WINDOW_END)]
    validate_aggregates(parsed.aggregates, {*parsed.key, *(f.name for f in bounds), TS_COLUMN}, input_schema)
    fields = [*key_schema(parsed, input_schema), *bounds, *(output_field(a, input_schema) for a in parsed.aggregates)]
    if not is_global or TS_COLUMN in input_schema.names:
        fields.append(pa.field(TS_COLUMN, pa.int64(), nullable=False))
    return pa.schema(fields)


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
