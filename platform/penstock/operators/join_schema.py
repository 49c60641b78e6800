"""Joins as a configuration: validation, output schema, key types, without the operators.

Called by the API when the graph is built, and by the join operators when they open. The result has the columns of the
left side, then those of the right side without its key columns (they are equal to the left's); a right column whose
name is taken gets the suffix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError
from penstock.eventtime.windows import validate_window
from penstock.graph.validate import WINDOW_COLUMNS, is_key_type, require_key_types
from penstock.operators.columns import TS_FIELD, without_ts

#: Interval bounds beyond this (36 000 years) are refused instead of wrapping around.
_MOST_US = 1 << 60
#: Which rows of a window join come out: pairs alone, or rows without a partner of one side or both too.
JOIN_KINDS = ("inner", "left", "right", "full")


@dataclass(frozen=True, slots=True)
class JoinSides:
    """Key columns of both sides, in the same order, and what tells equal names apart."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    suffix: str

    def key(self, side: int) -> tuple[str, ...]:
        """Return the key columns of side 0 or 1."""
        return self.right if side else self.left


def parse_sides(config: dict[str, Any]) -> JoinSides:
    """Return the sides of a join's configuration.

    Raises:
        GraphError: a part is missing.
    """
    try:
        return JoinSides(tuple(config["left_key"]), tuple(config["right_key"]), str(config["suffix"]))
    except KeyError as error:
        raise GraphError(
            f"join: {error.args[0]!r} is missing in its configuration", hint="it has left_key, right_key and suffix"
        ) from error


def validate_join(config: dict[str, Any], left: pa.Schema, right: pa.Schema, where: str) -> None:
    """Check a join against the rows it will see.

    Raises:
        GraphError: a side has no event time, the keys do not fit each other, or a column cannot be kept.
    """
    sides = parse_sides(config)
    for name, schema in (("left", left), ("right", right)):
        if TS_COLUMN not in schema.names:
            raise GraphError(
                f"{where}: the {name} side has no event time", hint="give env.from_source(..., watermarks=...)"
            )
        for field in schema:
            if pt.is_dictionary(field.type):
                raise GraphError(
                    f"{where}: column {field.name!r} of the {name} side has the type {field.type}",
                    hint="cast it to its values first, with .with_columns(...)",
                )
    require_equal_keys(sides, left, right, where)
    joined_fields(sides, left, right, where)


def require_equal_keys(sides: JoinSides, left: pa.Schema, right: pa.Schema, where: str) -> None:
    """Check that the keys of both sides have the same types, one by one.

    Raises:
        GraphError: they do not.
    """
    require_key_types(sides.left, left, f"{where}, left side")
    require_key_types(sides.right, right, f"{where}, right side")
    ours = [left.field(name).type for name in sides.left]
    theirs = [right.field(name).type for name in sides.right]
    if ours != theirs:
        raise GraphError(
            f"{where}: the keys differ: {_shown(sides.left, ours)} and {_shown(sides.right, theirs)}",
            hint="key both sides by as many columns of the same types; convert one with .with_columns(...) first",
        )


def joined_fields(sides: JoinSides, left: pa.Schema, right: pa.Schema, where: str) -> list[pa.Field]:
    """Return the fields of the result, without `__ts`.

    Raises:
        GraphError: a name is taken even with the suffix.
    """
    fields = list(without_ts(left))
    taken = {field.name for field in fields}
    for field in value_fields(right, sides.right):
        name = field.name if field.name not in taken else field.name + sides.suffix
        if name in taken:
            raise GraphError(
                f"{where}: the result would have two columns {name!r}",
                hint="rename a column of the right side with .select(...), or give another suffix=",
            )
        taken.add(name)
        fields.append(field.with_name(name))
    return fields


def join_schema(config: dict[str, Any], left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return the result's schema, with `__ts`."""
    return pa.schema([*joined_fields(parse_sides(config), left, right, "join"), TS_FIELD])


def value_fields(schema: pa.Schema, key: Sequence[str]) -> list[pa.Field]:
    """Return what a side keeps of a row besides its key and its time."""
    return [field for field in without_ts(schema) if field.name not in key]


def key_schema_of(sides: JoinSides, left: pa.Schema) -> pa.Schema:
    """Return the key's columns, named as on the left side."""
    return pa.schema([left.field(name).with_nullable(True) for name in sides.left])


@dataclass(frozen=True, slots=True)
class JoinWindow:
    """The windows of a window join, in microseconds, and which rows without a partner come out too."""

    size: int
    slide: int
    offset: int
    how: str

    def outer(self, side: int) -> bool:
        """Whether rows of side 0 or 1 come out also when they meet none."""
        return self.how in ("full", ("left", "right")[side])


def parse_join_window(config: dict[str, Any]) -> JoinWindow:
    """Return the windows of a window join.

    Raises:
        GraphError: a part is missing or makes no sense.
    """
    try:
        window, how = config["window"], str(config["how"])
        size, slide, offset = int(window["size_us"]), int(window["slide_us"]), int(window.get("offset_us", 0))
    except KeyError as error:
        raise GraphError(
            f"window join: {error.args[0]!r} is missing in its configuration", hint="it has window and how"
        ) from error
    validate_window(size, slide, offset)
    if how not in JOIN_KINDS:
        raise GraphError(f"join(how={how!r}) is not known", hint=f"use one of {', '.join(JOIN_KINDS)}")
    return JoinWindow(size, slide, offset, how)


def window_join_schema(config: dict[str, Any], left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return the result's schema, with `__ts`; what may have no partner makes the other side's columns nullable."""
    sides, window = parse_sides(config), parse_join_window(config)
    fields = joined_fields(sides, left, right, "join")
    lefts = len(without_ts(left))
    fields = [
        field.with_nullable(field.nullable or window.outer(int(place < lefts)))
        if field.name not in sides.left
        else field
        for place, field in enumerate(fields)
    ]
    time = pa.timestamp("us", tz="UTC")
    bounds = [pa.field(name, time, nullable=False) for name in WINDOW_COLUMNS]
    nullable_keys = {name for name, other in zip(*map(sides.key, (0, 1)), strict=True) if right.field(other).nullable}
    fields = [f.with_nullable(True) if f.name in nullable_keys else f for f in fields]
    return pa.schema([*fields, *bounds, TS_FIELD])


def validate_temporal_join(config: dict[str, Any], left: pa.Schema, right: pa.Schema, where: str) -> None:
    """Check a temporal join against the rows it will see.

    Raises:
        GraphError: as `validate_join`; or another `how`; or a version has a column that cannot be kept by key.
    """
    if config.get("how") not in ("inner", "left"):
        raise GraphError(f"{where}: how={config.get('how')!r} is not known", hint="use 'inner' or 'left'")
    validate_join(config, left, right, where)
    for field in value_fields(right, parse_sides(config).right):
        if not is_key_type(field.type):
            raise GraphError(
                f"{where}: column {field.name!r} of the right side has the type {field.type}, which is not kept by key",
                hint="leave it out or convert it first with .select(...)",
            )


def temporal_join_schema(config: dict[str, Any], left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return the result's schema, with `__ts`; rows without a version make the right side's columns nullable."""
    fields = joined_fields(parse_sides(config), left, right, "temporal_join")
    outer, lefts = config["how"] == "left", len(without_ts(left))
    return pa.schema(
        [*(f.with_nullable(f.nullable or (outer and place >= lefts)) for place, f in enumerate(fields)), TS_FIELD]
    )


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of the right row's time minus the left one's, inclusive, in microseconds."""

    lower: int
    upper: int


def parse_interval(config: dict[str, Any]) -> Interval:
    """Return the bounds of an interval join.

    Raises:
        GraphError: they are missing, in the wrong order, or too far apart.
    """
    try:
        interval = Interval(int(config["lower_us"]), int(config["upper_us"]))
    except KeyError as error:
        raise GraphError(
            f"interval_join: {error.args[0]!r} is missing in its configuration", hint="it has lower_us and upper_us"
        ) from error
    if interval.lower > interval.upper:
        raise GraphError(
            f"interval_join: the lower bound ({interval.lower / 1e6:g} s) is above the upper one"
            f" ({interval.upper / 1e6:g} s)",
            hint="a row at time t meets rows of the other side from t + lower to t + upper",
        )
    if max(-interval.lower, interval.upper) > _MOST_US:
        raise GraphError("interval_join: a bound is beyond 36,000 years", hint="use a smaller one")
    return interval


def _shown(names: Sequence[str], types: Sequence[pa.DataType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
