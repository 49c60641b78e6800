"""The configuration of windows that keep their rows: validation and output schema, without the operator.

Called by the API when the graph is built, and by `operators.windows.window_rows` when it opens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError
from penstock.kernels.keys.key_types import is_fixed, is_key_type
from penstock.operators.aggregates.window_schema import (
    WINDOW_END,
    WINDOW_START,
    Aggregate,
    aggregates_of,
    key_schema,
    output_field,
    validate_aggregates,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class WindowRowsConfig:
    """The configuration of a `window_rows` operator; times in microseconds."""

    key: tuple[str, ...]
    window: dict[str, Any]
    #: `aggregate`, `reduce`, `apply`, `process` or `join`.
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
