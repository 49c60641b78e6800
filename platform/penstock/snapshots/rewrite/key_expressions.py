"""SQL expressions that compute the columns of new keys from the old ones; pure.

`snapshots.rewrite.rekey` parses them, once; it and the tasks of `snapshots.on_spark.spark_rewrite` compute keys by
them. An expression may read all keys (`MAX(user_id)`), which then have to be in one process, or one key at a time,
which Spark's tasks can compute.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import UsageError
from penstock.kernels.keys.key_types import is_key_type

#: Polars functions whose result for a row depends on that row alone; others may read all rows.
_BY_ROW = {
    "Abs", "Ceil", "Coalesce", "FillNull", "Floor", "ListExpr", "MaxHorizontal", "MinHorizontal", "Negate", "Round",
    "StringExpr", "TemporalExpr",
}  # fmt: skip
#: The same, from families that contain both kinds.
_OF_FAMILY = {
    "Boolean": {
        "IsNull",
        "IsNotNull",
        "Not",
        "IsIn",
        "IsBetween",
        "IsNan",
        "IsNotNan",
        "AnyHorizontal",
        "AllHorizontal",
    },
    "Sql": {"Binary", "IsIn", "Round"},
}
_NOT_BY_ROW = {"ConcatVertical"}
_INTEGERS = {"Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"}


class KeyColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the new key, parsed once: `NOW()` is the moment of parsing for every key, in every task."""

    name: str
    #: The text as given.
    text: str
    #: The expression as Polars serializes it.
    expression: bytes

    def expr(self) -> pl.Expr:
        """Return the expression over the old key columns, under the new name."""
        return pl.Expr.deserialize(io.BytesIO(self.expression)).alias(self.name)


def parsed(key: Sequence[str], old: Sequence[str], where: str) -> tuple[KeyColumn, ...]:
    """Return the columns of the new key over `old` ones.

    `key` is as `snapshots.rewrite.rekey.rekey` takes it; `where` begins error messages.

    Raises:
        UsageError: none is given, a name is missing or repeated, or an expression is not SQL.
    """
    columns: dict[str, KeyColumn] = {}
    for part in key:
        name, _, expression = (text.strip() for text in part.partition("="))
        if name in columns or not name:
            raise UsageError(
                f"{where}: the key names {name!r} twice, or gives an empty name", hint="give name or name=expression"
            )
        with _explained(part, old, where):
            # an unchanged column may have a name that is not valid in SQL
            expr = pl.col(name) if not expression and name in old else pl.sql_expr(expression or name)
            columns[name] = KeyColumn(name=name, text=part, expression=expr.meta.serialize())
    if not columns:
        raise UsageError(f"{where}: no key is given", hint="give --key for each column of the new key")
    return tuple(columns.values())


def keys_of(old: pl.DataFrame, key: Sequence[KeyColumn], where: str) -> pa.Table:
    """Return the columns of the new keys, one row per old key; a single value is repeated.

    Raises:
        UsageError: an expression is wrong or gives no key.
    """
    columns: dict[str, pa.ChunkedArray] = {}
    for part in key:
        with _explained(part.text, old.columns, where):
            found = old.with_columns(part.expr())[part.name]
        columns[part.name] = pa.chunked_array([_plain(found.to_arrow())])
        kind = columns[part.name].type
        if not is_key_type(kind):
            raise UsageError(f"{where}: {part.text!r} gives {kind}, which cannot be a key", hint="cast it")
    return pa.table(columns)


def require_by_key(key: Sequence[KeyColumn], where: str) -> None:
    """Refuse an expression that reads more than one key, or may do so.

    Raises:
        UsageError: there is one; `keys_of` must have accepted the expressions before.
    """
    for part in key:
        if not is_by_row(part.expr()):
            msg = f"{where}: key column {part.text!r} may read more than one key, but on Spark no task has all keys"
            raise UsageError(msg, hint="compute it from one key, or use --engine local")


def is_by_row(expression: pl.Expr) -> bool:
    """Return whether the result for a row surely depends on that row alone."""
    return _is_by_row(json.loads(expression.meta.serialize(format="json")))


def keeps_apart(key: Sequence[KeyColumn], old: pa.Schema) -> bool:
    """Return whether two old keys surely have two new ones: each old column is kept, or an integer one is cast."""
    kept = {_kept_column(json.loads(part.expr().meta.serialize(format="json")), old) for part in key}
    return kept >= set(old.names)


def _kept_column(tree: Any, old: pa.Schema) -> str:
    """Return the old column that an expression only renames, or casts without loss; else an empty name."""
    match tree:
        case {"Column": str(name)}:
            return name
        case {"Alias": [inner, _]}:
            return _kept_column(inner, old)
        case {"Cast": {"expr": {"Column": str(name)}, "dtype": {"Literal": "String"}}}:
            return name if pt.is_integer(old.field(name).type) else ""
        case {"Cast": {"expr": {"Column": str(name)}, "dtype": {"Literal": str(kind)}, "options": "Strict"}}:
            # a strict cast fails rather than change a value
            return name if kind in _INTEGERS and pt.is_integer(old.field(name).type) else ""
    return ""


@contextlib.contextmanager
def _explained(part: str, old: Sequence[str], where: str) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, TypeError) as error:
        text = f"{where}: key column {part!r}: {str(error).splitlines()[0]}"
        raise UsageError(text, hint=f"the old key has: {', '.join(old)}") from error


def _is_by_row(tree: Any) -> bool:
    match tree:
        case {"Column": _} | {"Literal": _}:
            return True
        case {"Alias": [inner, _]} | {"Cast": {"expr": inner}}:
            return _is_by_row(inner)
        case {"BinaryExpr": {"left": left, "right": right}}:
            return _is_by_row(left) and _is_by_row(right)
        case {"Ternary": {"predicate": predicate, "truthy": truthy, "falsy": falsy}}:
            return all(map(_is_by_row, (predicate, truthy, falsy)))
        case {"Function": {"input": inputs, "function": function}}:
            return _is_function_by_row(function) and all(map(_is_by_row, inputs))
    return False


def _is_function_by_row(function: Any) -> bool:
    if isinstance(function, str):
        return function in _BY_ROW
    ((family, what),) = function.items()
    name = what if isinstance(what, str) else next(iter(what)) if isinstance(what, dict) else ""
    if family in _OF_FAMILY:
        return name in _OF_FAMILY[family]
    return family in _BY_ROW and name not in _NOT_BY_ROW


def _plain(array: pa.Array) -> pa.Array:
    """Return a column of Polars with the plain type of rows."""
    if pt.is_large_string(array.type) or pt.is_string_view(array.type):
        return array.cast(pa.string())
    if pt.is_large_binary(array.type) or pt.is_binary_view(array.type):
        return array.cast(pa.binary())
    return array
