"""Filters over the rows of a state, and the keys and namespaces outside which no row can match; pure.

A reader skips the row groups without such a key and the files without such a namespace. Called by `ps.snapshots.read`,
`penstock state read --where` and Spark's data source. Unknown forms of an expression prune nothing.
"""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import UsageError
from penstock.core.keygroup import HASH_MAX, HASH_MIN, HashRange
from penstock.kernels.keys.hashing import hash_columns
from penstock.state.log.segment_columns import NAMESPACE, one_batch

if TYPE_CHECKING:
    from penstock.core.snapshot import KeyedStateSnapshot
    from penstock.kernels.compiler.compile import I64

#: Most keys that are looked up by their hashes.
_MOST_KEYS = 100_000
_ANY = (HASH_MIN, HASH_MAX)
#: Column with the position of a row in its table.
_PLACE = "__place"


@dataclass(frozen=True, slots=True)
class Pruning:
    """The only rows that a filter can match."""

    #: Keys; None: any.
    keys: pa.Table | None = None
    #: Lowest and highest namespace.
    namespaces: tuple[int, int] = _ANY

    @property
    def hashes(self) -> I64 | None:
        """Return the sorted hashes of the keys; None: any."""
        return None if self.keys is None else hashes_of(self.keys)

    def both(self, other: Pruning) -> Pruning:
        """Return the rows that neither excludes."""
        if self.keys is None or other.keys is None:
            keys = other.keys if self.keys is None else self.keys
        else:
            keys = rows_of_keys(self.keys, other.keys)
        (a, b), (c, d) = self.namespaces, other.namespaces
        return Pruning(keys, (max(a, c), min(b, d)))

    def segments(self, parts: Iterable[KeyedStateSnapshot]) -> tuple[KeyedStateSnapshot, ...]:
        """Return the parts of a state without files whose namespaces are all outside.

        Rows of two namespaces never replace each other.
        """
        low, high = self.namespaces
        return tuple(
            msgspec.structs.replace(
                part, segments=tuple(s for s in part.segments if s.namespace_min <= high and low <= s.namespace_max)
            )
            for part in parts
        )


#: Nothing is excluded.
ALL_ROWS = Pruning()


def hashes_of(keys: pa.Table) -> I64:
    """Return the sorted, distinct hashes of keys."""
    return np.unique(_each_hash(keys))


def keys_within(keys: pa.Table, within: HashRange) -> pa.Table:
    """Return the keys whose hash is in a range."""
    hashes = _each_hash(keys)
    return keys.filter(pa.array((hashes >= within.low) & (hashes <= within.high)))


def rows_of_keys(table: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows of some keys: hashes alone may be those of others too."""
    names = keys.column_names
    asked, there = (pl.DataFrame(pl.from_arrow(side.select(names))) for side in (keys, table))
    found = there.with_row_index(_PLACE).join(asked, on=names, how="semi", nulls_equal=True, maintain_order="left")
    return table.take(found[_PLACE].to_arrow())


def rows_that_match(table: pa.Table, expression: pl.Expr) -> pa.Table:
    """Return the rows for which a condition is true."""
    read = expression.meta.root_names() or table.column_names[:1]
    frame = pl.DataFrame(pl.from_arrow(table.select(list(dict.fromkeys(read)))))
    return table.take(frame.with_row_index(_PLACE).filter(expression)[_PLACE].to_arrow())


def _each_hash(keys: pa.Table) -> I64:
    return hash_columns(one_batch(keys), tuple(keys.column_names))


def parsed_filter(text: str, columns: pl.Schema, what: str) -> pl.Expr:
    """Return the expression of a filter in SQL, as Polars reads it; `what` begins the message of an error.

    Raises:
        UsageError: it is not SQL, names a column that is not there, or is no condition.
    """
    try:
        expression = pl.sql_expr(text)
        pl.DataFrame(schema=columns).filter(expression)
    except pl.exceptions.PolarsError as error:
        msg = f"{what} {text!r}: {str(error).splitlines()[0]}"
        raise UsageError(msg, hint=f"columns: {', '.join(columns)}") from error
    return expression


def pruning_of(expression: pl.Expr, keys: pa.Schema) -> Pruning:
    """Return what rows a filter can match; `keys` are the state's key columns, none if it is not keyed."""
    tree = json.loads(expression.meta.serialize(format="json"))
    values = [_values(tree, field) for field in keys]
    low, high = _span(tree)
    known = [each for each in values if each is not None]
    if not known or len(known) < len(values) or math.prod(map(len, known)) > _MOST_KEYS:
        return Pruning(namespaces=(low, high))
    rows = list(itertools.product(*known))
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(keys)]
    return Pruning(pa.table(columns, schema=pa.schema([pa.field(f.name, f.type) for f in keys])), (low, high))


def _values(tree: Any, field: pa.Field) -> frozenset[Any] | None:
    """Return the values of a column with which the condition may be true; None: any."""
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            both = [side for side in (_values(left, field), _values(right, field)) if side is not None]
            return frozenset.intersection(*both) if both else None
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            one, other = _values(left, field), _values(right, field)
            return None if one is None or other is None else one | other
        case {"BinaryExpr": {"left": left, "op": "Eq" | "EqValidity", "right": right}}:
            value = right if left == {"Column": field.name} else left if right == {"Column": field.name} else None
            return _literals(value, field, single=True)
        case {"Function": {"input": [{"Column": field.name}, among], "function": function}} if _is_in(function):
            return _literals(among, field, single=False)
        case {"Function": {"input": [{"Column": field.name}], "function": {"Boolean": "IsNull"}}}:
            return frozenset({None})
    return None


def _is_in(function: Any) -> bool:
    match function:
        case {"Boolean": {"IsIn": _}} | {"Sql": {"IsIn": _}}:
            return True
    return False


def _literals(tree: Any, field: pa.Field, *, single: bool) -> frozenset[Any] | None:
    """Return literal values as those of a column; None if they are none, or compared in another type."""
    found = _series(tree)
    if found is None:
        return None
    if not single and found.dtype == pl.List and len(found) == 1:
        found = found.explode()
    if (single and len(found) != 1) or not _is_compared_as_is(found.dtype, field.type):
        return None
    try:
        return frozenset(pa.array(found.to_list(), field.type).to_pylist())
    except (pa.ArrowException, OverflowError):
        return None


def _is_compared_as_is(literal: pl.DataType, column: pa.DataType) -> bool:
    if literal == pl.Null:
        return True
    if pt.is_integer(column):
        return literal.is_integer()
    if pt.is_string(column) or pt.is_large_string(column) or pt.is_string_view(column):
        return literal == pl.String
    return (pt.is_boolean(column) and literal == pl.Boolean) or (pt.is_date32(column) and literal == pl.Date)


def _series(tree: Any) -> pl.Series | None:
    match tree:
        case {"Literal": _}:
            literal = pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")
            return pl.select(literal.alias("")).to_series()
    return None


def _span(tree: Any) -> tuple[int, int]:
    """Return the lowest and highest namespace with which the condition may be true."""
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            (a, b), (c, d) = _span(left), _span(right)
            return max(a, c), min(b, d)
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            (a, b), (c, d) = _span(left), _span(right)
            return min(a, c), max(b, d)
        case {"BinaryExpr": {"left": {"Column": "__namespace"}, "op": op, "right": value}}:
            return _compared(op, value)
        case {"BinaryExpr": {"left": value, "op": op, "right": {"Column": "__namespace"}}}:
            return _compared(_MIRRORED.get(op, op), value)
    return _ANY


_MIRRORED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}


def _compared(op: str, tree: Any) -> tuple[int, int]:
    """Return the integers with which `namespace op literal` may be true."""
    values = _literals(tree, pa.field(NAMESPACE, pa.int64()), single=True)
    if not values or None in values:
        return _ANY
    (value,) = values
    spans: dict[str, tuple[int, int]] = {
        "Eq": (value, value),
        "EqValidity": (value, value),
        "Lt": (HASH_MIN, value - 1),
        "LtEq": (HASH_MIN, value),
        "Gt": (value + 1, HASH_MAX),
        "GtEq": (value, HASH_MAX),
    }
    return spans.get(op, _ANY)
