"""Computed keys: `.key_by(function)`, and the one key of all rows of `.window_all(...)`.

Such a key is a column that the rows carry to the next operator. Python functions there do not see it in their rows.
Only the results of aggregates contain it. Called by `streams`.
"""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec
import pyarrow as pa

from penstock.api.building.flow import ALL_ROWS_KEY
from penstock.api.building.operator_nodes import NewOperator
from penstock.api.functions.row_functions import input_type, is_row_type, picked_by, pickled
from penstock.core.errors import GraphError, argument_text
from penstock.core.schema import arrow_field_of, arrow_schema_of
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validation import KEY_TYPES, is_key_type
from penstock.operators.rows.columns import with_ts, without_ts

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.api.building.flow import Flow, InputStream

#: Most parts of a hot key's rows.
MOST_PARTS = 256
_WAY = "annotate what it returns, such as `-> int`, or give returns=int"


def selected_key(
    stream: InputStream, functions: tuple[Callable[[Any], Any], ...], returns: Any, name: str
) -> tuple[OperatorSpec, pa.Schema]:
    """Return the operator that computes each row's key by the one function, and the key's columns.

    Raises:
        GraphError: not one function, a type that is not known or cannot be a key, or a column of the key's name exists.
    """
    if len(functions) > 1:
        way = "let one function return a tuple: lambda row: (row.a, f(row))"
        raise GraphError("key_by: a function stands alone", hint=way)
    function = functions[0]
    where = f"key_by({getattr(function, '__name__', type(function).__name__)})"
    if not callable(function):
        msg = f"key_by: {function!r} is neither a column's name nor a function"
        raise GraphError(msg, hint="compute the key with .with_columns(key=...) and then .key_by('key')")
    if inspect.iscoroutinefunction(function):
        raise GraphError(f"{where}: it is a coroutine function", hint="look it up before with .map_async(f)")
    picked = _picked_columns(stream, function, name) if returns is None else None
    annotated, result = _annotations(function, where, needed=returns is None and picked is None)
    given = input_type(annotated, stream.flow.row_type, stream.flow.schema, where)
    keys, shape = picked or _key_columns(result if returns is None else returns, name, where)
    for field in keys:
        if field.name in stream.columns:
            msg = f"{where}: the rows have a column {field.name!r} already"
            way = "rename the field" if is_row_type(shape) else "give the key another name: .key_by(f, name='...')"
            raise GraphError(msg, hint=way)
        if field.name.startswith("__"):
            raise GraphError(f"{where}: names that begin with '__' are reserved", hint="choose another name")
        if not is_key_type(field.type):
            msg = f"{where}: {field.name} of type {field.type} cannot be a key"
            raise GraphError(msg, hint=f"keys can be {KEY_TYPES}, and tuples of these")
    spec = OperatorSpec(
        uid="", name=where, kind="key_selector", payload=pickled((function, given, shape), where), python=True
    )
    return spec, keys


def one_key() -> tuple[OperatorSpec, pa.Schema]:
    """Return the operator that assigns one key to all rows, and the key's column."""
    keys = pa.schema([pa.field(ALL_ROWS_KEY, pa.int64(), nullable=False)])
    return OperatorSpec(uid="", name="AllRows", kind="constant_key"), keys


def with_key(flow: Flow, spec: OperatorSpec, keys: pa.Schema) -> NewOperator:
    """Return the operator that adds the columns of a key to rows."""
    columns = pa.schema([*without_ts(flow.schema), *keys])
    return NewOperator(spec, with_ts(columns) if flow.has_event_time else columns, flow.row_type)


def require_key_columns(columns: tuple[Any, ...], stream: InputStream) -> tuple[str, ...]:
    """Return the names of a key's columns, checked.

    Raises:
        GraphError: there is none, or one is no name.
    """
    if not columns:
        msg = "key_by: no column is given"
        raise GraphError(msg, hint=f"there are: {', '.join(stream.columns)}")
    for column in columns:
        several = column if isinstance(column, (list, tuple)) else _listed(column, stream)
        if several:
            msg = f"key_by: {argument_text(column)} is not a column's name"
            raise GraphError(msg, hint=f"give each column by itself: .key_by({', '.join(map(repr, several))})")
        if not isinstance(column, str):
            msg = f"key_by: {argument_text(column)} is not a column's name"
            raise GraphError(msg, hint="compute the key with .with_columns(key=...) and then .key_by('key')")
    return columns


def spread_flow(flow: Flow, spread: Any) -> Flow:
    """Return the flow of rows by key with the argument `spread` of `key_by`.

    Raises:
        GraphError: it is not a number of parts.
    """
    if not isinstance(spread, int) or not 1 <= spread <= MOST_PARTS:
        msg = f"key_by: spread={spread!r} is not a number of parts"
        raise GraphError(msg, hint=f"use 1 to {MOST_PARTS}, such as four times the parallelism")
    return msgspec.structs.replace(flow, spread=spread)


def _listed(column: Any, stream: InputStream) -> list[str]:
    """Return the names in a text such as "user, country"; none if it is one name."""
    names = [name.strip() for name in column.split(",")] if isinstance(column, str) else []
    return names if len(names) > 1 and column not in stream.columns else []


def _annotations(function: Callable[..., Any], where: str, *, needed: bool) -> tuple[Any, Any]:
    """Return the annotations of the row and of the result."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(target, include_extras=True)
        parameters = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    except (NameError, TypeError, ValueError) as error:
        if not needed:
            return None, None
        raise GraphError(
            f"{where}: its annotations cannot be read: {error}", hint="give returns=int, or as it is"
        ) from error
    result = hints.get("return")
    if needed and (result is None or result is type(None) or result is Any):
        raise GraphError(f"{where}: the type of the key is not known", hint=_WAY)
    return hints.get(parameters[0]) if parameters else None, result


def _picked_columns(stream: InputStream, function: Callable[..., Any], name: str) -> tuple[pa.Schema, Any] | None:
    """Return `_key_columns` of a function that only selects columns; None for any other."""
    picked = picked_by(function)
    if picked is None or picked.shape == "row" or not set(picked.fields) <= set(stream.columns):
        return None
    names = [name] if picked.shape == "value" else [f"{name}_{i}" for i in range(len(picked.fields))]
    found = [stream.flow.schema.field(column) for column in picked.fields]
    keys = [pa.field(key, field.type, nullable=field.nullable) for key, field in zip(names, found, strict=True)]
    return pa.schema(keys), None if picked.shape == "value" else tuple


def _key_columns(hint: Any, name: str, where: str) -> tuple[pa.Schema, Any]:
    """Return the key's columns, and the form of a key: None (a value), `tuple`, or its row type."""
    if is_row_type(hint):
        return arrow_schema_of(hint), hint
    members = get_args(hint) if get_origin(hint) is tuple else ()
    if members and Ellipsis not in members:
        fields = [arrow_field_of(f"{name}_{i}", part, f"{where}: its member {i}") for i, part in enumerate(members)]
        return pa.schema(fields), tuple
    return pa.schema([arrow_field_of(name, hint, f"{where}: its key")]), None
