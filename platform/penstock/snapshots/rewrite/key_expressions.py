"""The columns of new keys, computed in SQL from those of the old ones; pure.

`snapshots.rewrite.rekey` parses them, once; it and the tasks of `snapshots.on_spark.spark_rekey` compute keys by them.
An expression may look at all keys (`MAX(user_id)`), which are then to be here together, or at one key at a time, which
is what the tasks of Spark can compute, each for the keys that it has.
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

#: Functions of Polars' expressions that give for each row what its own arguments say; others may look at all rows.
_BY_ROW = {
    "Abs", "Ceil", "Coalesce", "FillNull", "Floor", "ListExpr", "MaxHorizontal", "MinHorizontal", "Negate", "Round",
    "StringExpr", "TemporalExpr",
}  # fmt: skip
#: Of families that have both kinds those that do.
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


class KeyColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the new key, parsed once: `NOW()` is the moment of that for every key, in whatever task it is."""

    name: str
    #: As it was given.
    text: str
    #: As Polars serializes it.
    expression: bytes

    def expr(self) -> pl.Expr:
        """Return the expression over the old key columns, under the new name."""
        return pl.Expr.deserialize(io.BytesIO(self.expression)).alias(self.name)


def parsed(key: Sequence[str], old: Sequence[str], where: str) -> tuple[KeyColumn, ...]:
    """Return the columns of the new key over `old` ones.

    `key` is as `snapshots.rewrite.rekey.rekey` takes it, `where` begins what is said of a mistake in it.

    Raises:
        UsageError: none is given, a name is missing or there twice, or an expression is no SQL.
    """
    columns: dict[str, KeyColumn] = {}
    for part in key:
        name, _, expression = (text.strip() for text in part.partition("="))
        if name in columns or not name:
            raise UsageError(
                f"{where}: the key names {name!r} twice or not at all", hint="give name or name=expression"
            )
        with _explained(part, old, where):
            # a column as it is may have a name that SQL does not take
            expr = pl.col(name) if not expression and name in old else pl.sql_expr(expression or name)
            columns[name] = KeyColumn(name=name, text=part, expression=expr.meta.serialize())
    if not columns:
        raise UsageError(f"{where}: no key is given", hint="give --key for each column of the new key")
    return tuple(columns.values())


def keys_of(old: pl.DataFrame, key: Sequence[KeyColumn], where: str) -> pa.Table:
    """Return the columns of the new keys, one for each of the old ones; a single value is that of all of them.

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
            raise UsageError(f"{where}: {part.text!r} gives {kind}, which is no key", hint="cast it")
    return pa.table(columns)


def require_by_key(key: Sequence[KeyColumn], where: str) -> None:
    """Refuse an expression that looks at more than one key, or may do so.

    Raises:
        UsageError: there is one; the expressions are such that `keys_of` has taken.
    """
    for part in key:
        tree = json.loads(part.expr().meta.serialize(format="json"))
        if not _is_by_row(tree):
            msg = f"{where}: key column {part.text!r} may look at more than one key, and on Spark no task has them all"
            raise UsageError(msg, hint="compute it from one key, or take --engine local")


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
    """Return a column of Polars with the type that rows have."""
    if pt.is_large_string(array.type) or pt.is_string_view(array.type):
        return array.cast(pa.string())
    if pt.is_large_binary(array.type) or pt.is_binary_view(array.type):
        return array.cast(pa.binary())
    return array
