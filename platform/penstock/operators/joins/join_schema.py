"""The configuration of joins: validation, output schema and key types, without the operators.

Called by the API when the graph is built, and by the join operators when they open. The result has the columns of the
left side, then those of the right side without its key columns (equal to the left ones); a right column whose name is
taken gets the suffix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError
from penstock.eventtime.windows import validate_cumulative, validate_window
from penstock.graph.validation import WINDOW_COLUMNS, is_key_type, require_key_types
from penstock.operators.rows.columns import TS_FIELD, without_ts

#: Interval bounds beyond this (36 000 years) are rejected, so that they cannot overflow.
_MOST_US = 1 << 60
#: Rows that a join emits: pairs only, or also the unmatched rows of one side or both.
JOIN_KINDS = ("inner", "left", "right", "full")
SIDES = ("left", "right")


@dataclass(frozen=True, slots=True)
class JoinSides:
    """Key columns of both sides, in the same order, and the suffix for equal names."""

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
    """Check a join against its input schemas.

    Raises:
        GraphError: a side has no event time, the keys do not fit each other, or a column cannot be kept.
    """
    validate_join_of(config, left, right, where, timed=True)


def validate_join_of(config: dict[str, Any], left: pa.Schema, right: pa.Schema, where: str, *, timed: bool) -> None:
    """Check a join as `validate_join` does; if not `timed`, no side needs event time."""
    sides = parse_sides(config)
    for name, schema in (("left", left), ("right", right)):
        if timed and TS_COLUMN not in schema.names:
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


def outer_fields(sides: JoinSides, how: str, left: pa.Schema, right: pa.Schema) -> list[pa.Field]:
    """Return the fields as `joined_fields` does; a side that may be missing has nullable columns."""
    lefts = len(without_ts(left))
    fields = joined_fields(sides, left, right, "join")
    named = [
        field if field.name in sides.left else field.with_nullable(field.nullable or is_outer(how, int(place < lefts)))
        for place, field in enumerate(fields)
    ]
    nullable_keys = {name for name, other in zip(sides.left, sides.right, strict=True) if right.field(other).nullable}
    return [field.with_nullable(True) if field.name in nullable_keys else field for field in named]


def is_outer(how: str, side: int) -> bool:
    """Return whether unmatched rows of side 0 or 1 are emitted."""
    return how in ("full", SIDES[side])


def require_kind(how: Any, where: str) -> str:
    """Return the kind of a join.

    Raises:
        GraphError: there is none of that name.
    """
    if how not in JOIN_KINDS:
        raise GraphError(f"{where}(how={how!r}) is not known", hint=f"use one of {', '.join(JOIN_KINDS)}")
    return str(how)


def join_schema(config: dict[str, Any], left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return the schema of an interval join's result, with `__ts`."""
    sides, how = parse_sides(config), parse_interval(config).how
    if how == "inner":
        return pa.schema([*joined_fields(sides, left, right, "join"), TS_FIELD])
    return pa.schema([*outer_fields(sides, how, left, right), TS_FIELD])


def value_fields(schema: pa.Schema, key: Sequence[str]) -> list[pa.Field]:
    """Return the fields that a side keeps of a row, without its key and time."""
    return [field for field in without_ts(schema) if field.name not in key]


def key_schema_of(sides: JoinSides, left: pa.Schema) -> pa.Schema:
    """Return the key's columns, named as on the left side."""
    return pa.schema([left.field(name).with_nullable(True) for name in sides.left])


@dataclass(frozen=True, slots=True)
class JoinWindow:
    """The windows of a window join, in microseconds, and the sides whose unmatched rows are emitted."""

    size: int
    #: For cumulative windows: the size.
    slide: int
    offset: int
    how: str
    #: For cumulative windows: the distance of window ends within `size`; 0 for other windows.
    step: int = 0

    @property
    def description(self) -> str:
        """The windows as text for messages."""
        kind = f"every {self.step / 1e6:g} s up to" if self.step else f"every {self.slide / 1e6:g} s, of"
        return f"by windows {kind} {self.size / 1e6:g} s, from {self.offset / 1e6:g} s on"


def parse_join_window(config: dict[str, Any]) -> JoinWindow:
    """Return the windows of a window join.

    Raises:
        GraphError: a part is missing or makes no sense.
    """
    try:
        window, how = config["window"], require_kind(config["how"], "join")
        size, offset, step = int(window["size_us"]), int(window.get("offset_us", 0)), int(window.get("step_us", 0))
        slide = size if step else int(window["slide_us"])
    except KeyError as error:
        raise GraphError(
            f"window join: {error.args[0]!r} is missing in its configuration", hint="it has window and how"
        ) from error
    if step:
        validate_cumulative(step, size, offset)
    else:
        validate_window(size, slide, offset)
    return JoinWindow(size, slide, offset, how, step)


def window_join_schema(config: dict[str, Any], left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return the result's schema, with `__ts`; a side that may be missing has nullable columns."""
    time = pa.timestamp("us", tz="UTC")
    bounds = [pa.field(name, time, nullable=False) for name in WINDOW_COLUMNS]
    return pa.schema(
        [*outer_fields(parse_sides(config), require_kind(config["how"], "join"), left, right), *bounds, TS_FIELD]
    )


def validate_temporal_join(config: dict[str, Any], left: pa.Schema, right: pa.Schema, where: str) -> None:
    """Check a temporal join against its input schemas.

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
    """Bounds of the right row's time minus the left one's, inclusive, in microseconds, and the join's kind."""

    lower: int
    upper: int
    how: str = "inner"

    @property
    def description(self) -> str:
        """The bounds as text for messages."""
        return f"by time, from {self.lower / 1e6:g} s to {self.upper / 1e6:g} s"

    @property
    def unmatched(self) -> bytes:
        """The sides whose unmatched rows are emitted; see `core.evolution`."""
        return b"".join(b"%d" % side for side in (0, 1) if is_outer(self.how, side))

    def reach(self, side: int) -> int:
        """Return how long after a row of side 0 or 1, in event time, a matching row may arrive."""
        return max(-self.lower if side else self.upper, 0)

    def needed(self, side: int) -> int:
        """Return how long a row of side 0 or 1 is needed: by later rows, or to decide that another one is unmatched.

        The latter is known at the end of the other row's reach, which may be older by as much as the bounds allow.
        """
        if not is_outer(self.how, 1 - side):
            return self.reach(side)
        return max(self.reach(side), self.reach(1 - side) + (self.upper if side == 0 else -self.lower))


def parse_interval(config: dict[str, Any]) -> Interval:
    """Return the bounds of an interval join.

    Raises:
        GraphError: they are missing, in the wrong order, or too far apart.
    """
    try:
        how = require_kind(config.get("how", "inner"), "interval_join")
        interval = Interval(int(config["lower_us"]), int(config["upper_us"]), how)
    except KeyError as error:
        raise GraphError(
            f"interval_join: {error.args[0]!r} is missing in its configuration", hint="it has lower_us and upper_us"
        ) from error
    if interval.lower > interval.upper:
        raise GraphError(
            f"interval_join: the lower bound ({interval.lower / 1e6:g} s) is above the upper one"
            f" ({interval.upper / 1e6:g} s)",
            hint="a row at time t matches rows of the other side from t + lower to t + upper",
        )
    if max(-interval.lower, interval.upper) > _MOST_US:
        raise GraphError("interval_join: a bound is beyond 36,000 years", hint="use a smaller one")
    return interval


def _shown(names: Sequence[str], types: Sequence[pa.DataType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
