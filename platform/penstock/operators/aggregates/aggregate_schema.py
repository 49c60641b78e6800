"""The configuration of aggregation: of windows, running aggregates and deduplication; validation and output schema.

Loads no compiler. Called by the API when the graph is built, and by the operators when they open.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError
from penstock.core.schema import schema_from_text
from penstock.eventtime.windows import pane_size, validate_window
from penstock.kernels.keys.key_types import is_key_type
from penstock.operators.rows.columns import TS_FIELD

WINDOW_START, WINDOW_END = "window_start", "window_end"
FUNCTIONS = ("count", "sum", "min", "max", "mean", "var", "std", "first", "last", "approx_count_distinct")
#: Aggregates computed from the rows themselves: a window with one of these keeps its rows.
ROW_FUNCTIONS = ("collect", "count_distinct", "quantile", "aggregator")
_KINDS = ("tumbling", "sliding", "cumulative", "session")
_COUNTS = ("count", "count_distinct", "approx_count_distinct")
#: Aggregates for which the greatest integers need not fit an int64.
_ANY_INTEGERS = ("collect", "count_distinct", "approx_count_distinct")
_RESERVED = (WINDOW_START, WINDOW_END, TS_COLUMN)
_TIME = pa.timestamp("us", tz="UTC")
#: Longer windows (35 years) use the slower arithmetic, which has room for any length.
_LONGEST = 1 << 50


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One output column: `fn` over `column` (None: rows)."""

    fn: str
    column: str | None
    alias: str
    #: For `quantile`: the quantile, from 0 to 1.
    quantile: float = 0.5
    #: For a user-defined aggregate: its output column, as schema text.
    output: str = ""

    @property
    def kept(self) -> bool:
        """Whether it is computed from the rows themselves."""
        return self.fn in ROW_FUNCTIONS


def aggregates_of(config: dict[str, Any]) -> tuple[Aggregate, ...]:
    """Return the aggregates of an operator's configuration.

    Raises:
        KeyError: a part is missing.
    """
    return tuple(
        Aggregate(a["fn"], a.get("column"), a["alias"], a.get("quantile", 0.5), a.get("output", ""))
        for a in config["aggregates"]
    )


class Keyed(Protocol):
    """A configuration with key columns."""

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""


class Grouping(Keyed, Protocol):
    """A configuration of aggregates by key, with or without windows."""

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """The output columns."""


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """The configuration of a `window_aggregate` operator; times in microseconds."""

    key: tuple[str, ...]
    size: int
    slide: int
    offset: int
    allowed_lateness: int
    aggregates: tuple[Aggregate, ...]
    #: Whether late rows are emitted unchanged to a side output.
    late_rows: bool = False
    #: For cumulative windows: the distance of window ends within `size`; 0 for other windows.
    step: int = 0
    time_zone: str | None = None

    @property
    def pane(self) -> int:
        """Length of the panes that windows share."""
        return self.step or pane_size(self.size, self.slide)

    @property
    def plain(self) -> bool:
        """Whether rows of a key and pane are treated alike: none reopens a fired window or is between two windows."""
        return not self.allowed_lateness and self.slide <= self.size < _LONGEST

    @property
    def combines(self) -> bool:
        """Whether rows may be combined by key and pane before the shuffle: late ones are then only counted."""
        return self.plain and not self.late_rows and self.time_zone is None


def parse(config: dict[str, Any]) -> WindowConfig:
    """Parse the configuration.

    Raises:
        GraphError: a part is missing or the window's numbers are wrong.
    """
    try:
        window = config["window"]
        kind = window["kind"]
        if kind not in _KINDS:
            raise GraphError(f"unknown window kind {kind!r}", hint=f"use one of {', '.join(_KINDS)}")
        # a session's rows are kept in panes as long as the gap: rows of one pane are always in one session
        size = int(window["gap_us"] if kind == "session" else window["size_us"])
        slide = int(window["slide_us"]) if kind == "sliding" else size
        step = int(window["step_us"]) if kind == "cumulative" else 0
        aggregates = aggregates_of(config)
        key = tuple(config["key"])
    except KeyError as error:
        raise GraphError(
            f"window_aggregate: {error.args[0]!r} is missing in its configuration",
            hint="it has key, window and aggregates",
        ) from error
    offset = int(window.get("offset_us", 0))
    validate_window(size, slide if kind == "sliding" else None, offset)
    lateness = int(config.get("allowed_lateness_us", 0))
    late_rows, time_zone = "late_to" in config, window.get("time_zone")
    return WindowConfig(key, size, slide, offset, lateness, aggregates, late_rows, step, time_zone)


def validate(config: dict[str, Any], input_schema: pa.Schema) -> None:
    """Check a configuration against its input schema.

    Raises:
        GraphError: the first thing that is wrong, and what to do about it.
    """
    parsed = parse(config)
    if input_schema.get_field_index(TS_COLUMN) < 0:
        raise GraphError(
            "a window needs event time, its input has none", hint="call assign_timestamps_and_watermarks(...) before it"
        )
    if not parsed.key:
        raise GraphError("a window needs a key", hint="call key_by(...) before the window")
    if not parsed.aggregates:
        raise GraphError("a window without aggregates has no output", hint="name at least one, for example ps.count()")
    if parsed.allowed_lateness < 0:
        raise GraphError("allowed lateness is negative", hint="use 0 or a positive duration")
    for name in parsed.key:
        kind = field_of(name, input_schema, "key").type
        if name in _RESERVED:
            raise GraphError(
                f"key column {name!r} has the name of an output column", hint="rename it before the window"
            )
        if not is_key_type(kind):
            raise GraphError(f"column {name!r} of type {kind} cannot be a key", hint="key by plain values")
    validate_aggregates(parsed.aggregates, {*parsed.key, *_RESERVED}, input_schema)


def validate_aggregates(aggregates: Iterable[Aggregate], reserved: set[str], schema: pa.Schema) -> None:
    """Check aggregates whose output columns must differ from each other and from the reserved ones.

    Raises:
        GraphError: a column would exist twice, or an aggregate cannot be computed.
    """
    taken = set(reserved)
    for aggregate in aggregates:
        if aggregate.alias in taken:
            raise GraphError(
                f"output column {aggregate.alias!r} exists twice", hint="give the aggregate another name (alias)"
            )
        taken.add(aggregate.alias)
        validate_aggregate(aggregate, schema)


def validate_aggregate(aggregate: Aggregate, schema: pa.Schema) -> None:
    """Check one aggregate against the columns it reads.

    Raises:
        GraphError: it cannot be computed.
    """
    if aggregate.fn not in FUNCTIONS and not aggregate.kept:
        known = ", ".join([*FUNCTIONS, *ROW_FUNCTIONS])
        raise GraphError(f"unknown aggregate {aggregate.fn!r}", hint=f"use one of {known}")
    if aggregate.column is None:
        if aggregate.fn not in ("count", "aggregator"):
            raise GraphError(f"{aggregate.fn} needs a column", hint=f"write {aggregate.fn}('column')")
        return
    kind = field_of(aggregate.column, schema, aggregate.fn).type
    if aggregate.fn not in ("count", "aggregator"):
        _validate_type(aggregate, kind)


def _validate_type(aggregate: Aggregate, kind: pa.DataType) -> None:
    what = f"{aggregate.fn}({aggregate.column!r}): type {kind} is not supported"
    if pt.is_uint64(plain_type(kind)) and aggregate.fn not in _ANY_INTEGERS:
        raise GraphError(what, hint="cast the column to int64 or float64 first")
    if aggregate.fn == "quantile":
        if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)):
            raise GraphError(what, hint="quantile takes numbers; cast the column first")
        if not 0.0 <= aggregate.quantile <= 1.0:
            raise GraphError(f"quantile({aggregate.column!r}, {aggregate.quantile})", hint="it is between 0 and 1")
        return
    if aggregate.fn in ("sum", "mean", "var", "std"):
        if not (pt.is_integer(kind) or pt.is_floating(kind)):
            raise GraphError(what, hint="sum, mean, var and std take integers and floats; cast the column first")
    elif not is_key_type(kind):
        raise GraphError(what, hint=f"{aggregate.fn} takes no lists, maps and structs; select comparable fields")


def field_of(name: str, schema: pa.Schema, what: str) -> pa.Field:
    """Return a field by name.

    Raises:
        GraphError: there is none; names those that are near.
    """
    if schema.get_field_index(name) >= 0:
        return schema.field(name)
    known = [n for n in schema.names if n != TS_COLUMN]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"its columns are {', '.join(known)}"
    raise GraphError(f"{what}: the input has no column {name!r}", hint=hint)


def output_schema(config: dict[str, Any], input_schema: pa.Schema) -> pa.Schema:
    """Return the operator's output schema: key columns, window bounds, aggregates, `__ts`.

    Raises:
        GraphError: see `validate`.
    """
    validate(config, input_schema)
    parsed = parse(config)
    fields = [*key_schema(parsed, input_schema)]
    fields += [pa.field(WINDOW_START, _TIME, nullable=False), pa.field(WINDOW_END, _TIME, nullable=False)]
    fields += [output_field(a, input_schema) for a in parsed.aggregates]
    return pa.schema([*fields, pa.field(TS_COLUMN, pa.int64(), nullable=False)])


def key_schema(config: Keyed, input_schema: pa.Schema) -> pa.Schema:
    """Return the key columns; dictionary columns as their values."""
    fields = [input_schema.field(name) for name in config.key]
    return pa.schema([pa.field(f.name, plain_type(f.type), f.nullable) for f in fields])


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, of a dictionary column those of its dictionary."""
    return data_type.value_type if pt.is_dictionary(data_type) else data_type


def output_field(aggregate: Aggregate, schema: pa.Schema) -> pa.Field:
    """Return the output column of an aggregate."""
    if aggregate.fn == "aggregator":
        return schema_from_text(aggregate.output).field(0).with_name(aggregate.alias)
    if aggregate.fn in _COUNTS or aggregate.column is None:
        return pa.field(aggregate.alias, pa.int64(), nullable=False)
    field = schema.field(aggregate.column)
    if aggregate.fn == "collect":
        return pa.field(aggregate.alias, pa.list_(plain_type(field.type)), nullable=False)
    if aggregate.fn in ("var", "std", "quantile"):
        return pa.field(aggregate.alias, pa.float64())
    if aggregate.fn == "mean":
        return pa.field(aggregate.alias, pa.float64(), field.nullable)
    if aggregate.fn == "sum":
        kind = pa.float64() if pt.is_floating(field.type) else pa.int64()
        return pa.field(aggregate.alias, kind, field.nullable)
    return pa.field(aggregate.alias, plain_type(field.type), field.nullable)


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
