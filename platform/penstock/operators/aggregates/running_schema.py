"""Configurations of running aggregates and deduplication: validation and output schema, without loading a compiler.

Called by the API when the graph is built, and by `operators.aggregates.running_aggregate` and
`operators.aggregates.deduplicate` when they open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError
from penstock.kernels.keys.key_types import is_key_type
from penstock.operators.aggregates.window_schema import (
    Aggregate,
    aggregates_of,
    field_of,
    key_schema,
    output_field,
    validate_aggregates,
)
from penstock.operators.rows.columns import TS_FIELD

KEEP = ("first", "last")


@dataclass(frozen=True, slots=True)
class RunningConfig:
    """The configuration of a `running_aggregate` operator."""

    key: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    #: The time-to-live as in `state.log.ttl.Ttl`, without the clock.
    ttl: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DeduplicateConfig:
    """The configuration of a `deduplicate` operator; `by` None: by event time, or by arrival without event time."""

    key: tuple[str, ...]
    keep: str
    by: str | None
    ttl: dict[str, Any] | None = None


def parse_running(config: dict[str, Any]) -> RunningConfig:
    """Parse the configuration of a running aggregate.

    Raises:
        GraphError: a part is missing.
    """
    try:
        return RunningConfig(tuple(config["key"]), aggregates_of(config), config.get("ttl"))
    except KeyError as error:
        raise _missing("running_aggregate", error, "it has key and aggregates") from error


def parse_deduplicate(config: dict[str, Any]) -> DeduplicateConfig:
    """Parse the configuration of a deduplication.

    Raises:
        GraphError: a part is missing.
    """
    try:
        return DeduplicateConfig(tuple(config["key"]), config["keep"], config.get("by"), config.get("ttl"))
    except KeyError as error:
        raise _missing("deduplicate", error, "it has key, keep and by") from error


def running_schema(config: dict[str, Any], input_schema: pa.Schema) -> pa.Schema:
    """Return the output schema of a running aggregate: key columns, aggregates, and `__ts` if the input has it.

    Raises:
        GraphError: the configuration does not fit the input.
    """
    parsed = parse_running(config)
    _validate_key(parsed.key, input_schema, "a running aggregate")
    if not parsed.aggregates:
        raise GraphError("a running aggregate without aggregates has no output", hint="name one, such as ps.count()")
    for value in parsed.aggregates:
        if value.kept:
            msg = f"a running aggregate cannot be {value.fn}, which needs the rows of a window"
            raise GraphError(msg, hint="use .window(...) before it, approx_count_distinct, or a process function")
    validate_aggregates(parsed.aggregates, {*parsed.key, TS_COLUMN}, input_schema)
    fields = [*key_schema(parsed, input_schema), *(output_field(a, input_schema) for a in parsed.aggregates)]
    return pa.schema([*fields, TS_FIELD] if TS_COLUMN in input_schema.names else fields)


def validate_deduplicate(config: dict[str, Any], input_schema: pa.Schema) -> None:
    """Check a deduplication against its input schema.

    Raises:
        GraphError: it does not fit them.
    """
    parsed = parse_deduplicate(config)
    _validate_key(parsed.key, input_schema, "deduplicate")
    if parsed.keep not in KEEP:
        raise GraphError(f"deduplicate(keep={parsed.keep!r})", hint="keep the 'first' or the 'last' row of each key")
    if parsed.by is None:
        if parsed.keep == "last" and TS_COLUMN not in input_schema.names:
            raise GraphError(
                "deduplicate(keep='last'): the stream has no event time, and by arrival every row is the last",
                hint="name the column that orders the rows: by='updated_at'",
            )
        return
    kind = field_of(parsed.by, input_schema, "deduplicate").type
    if not is_order_type(kind):
        raise GraphError(
            f"deduplicate(by={parsed.by!r}): type {kind} is not supported",
            hint="order by integers, timestamps or dates",
        )


def is_order_type(data_type: pa.DataType) -> bool:
    """Return whether rows can be ordered by such a column: its canonical integers keep the order of its values."""
    return bool(
        (pt.is_integer(data_type) and not pt.is_uint64(data_type))
        or pt.is_timestamp(data_type)
        or pt.is_date(data_type)
    )


def _validate_key(key: tuple[str, ...], input_schema: pa.Schema, what: str) -> None:
    if not key:
        raise GraphError(f"{what} needs a key", hint="call key_by(...) before it")
    for name in key:
        kind = field_of(name, input_schema, "key").type
        if name == TS_COLUMN or not is_key_type(kind):
            raise GraphError(f"column {name!r} of type {kind} cannot be a key", hint="key by plain values")


def _missing(kind: str, error: KeyError, hint: str) -> GraphError:
    return GraphError(f"{kind}: {error.args[0]!r} is missing in its configuration", hint=hint)
