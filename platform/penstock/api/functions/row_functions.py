"""Python functions of `.map`, `.flat_map`, `.filter` and `.map_batches`: types read from annotations, code pickled.

A lambda that only selects fields needs no annotation: it is recognised by its bytecode.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import dis
import inspect
import io
import sys
import typing
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import cloudpickle  # type: ignore[import-untyped] # ships no types
import msgspec

from penstock.api.building.operator_nodes import NewOperator
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import GraphError, argument_text
from penstock.core.schema import arrow_schema_of
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validation import require_columns, require_unique
from penstock.operators.rows.columns import with_ts, without_ts

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.building.flow import Flow
    from penstock.functions.async_retry import AsyncRetryStrategy

_NO_EFFECT = {"RESUME", "NOP", "CACHE", "PRECALL"}
_SPECIAL = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


class Picked(msgspec.Struct, frozen=True):
    """The result of a function: the row, the value of one field, or a tuple of the values of some."""

    shape: Literal["row", "value", "tuple"]
    fields: tuple[str, ...] = ()


def picked_by(function: Any) -> Picked | None:
    """Return the fields that a function of one row selects.

    None if it does anything else, is no plain function, or has a return annotation.
    """
    if not isinstance(function, FunctionType) or "return" in function.__annotations__:
        return None
    code = function.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & _SPECIAL:
        return None
    stack: list[Any] = []
    for step in dis.get_instructions(code):
        if step.opname == "RETURN_VALUE":
            return _picked(stack)
        if step.opname not in _NO_EFFECT and not _take(step, code.co_varnames[0], stack):
            return None
    return None


class _Row:
    """The parameter, on the stack."""


class _Field(msgspec.Struct, frozen=True):
    """A field's value, on the stack."""

    name: str


class _Constant(msgspec.Struct, frozen=True):
    """A string, on the stack: the name of a field in `row["k"]`."""

    text: str


_ROW = _Row()


def _take(step: dis.Instruction, parameter: str, stack: list[Any]) -> bool:
    """Follow one instruction; return False for one that does more than select."""
    match _name_of(step):
        case "LOAD_FAST" if step.argval == parameter:
            stack.append(_ROW)
        case "LOAD_CONST" if isinstance(step.argval, str):
            stack.append(_Constant(step.argval))
        case "LOAD_ATTR" if stack and stack[-1] is _ROW:
            stack[-1] = _Field(step.argval)
        case "BINARY_SUBSCR" if len(stack) > 1 and stack[-2] is _ROW and isinstance(stack[-1], _Constant):
            stack[-2:] = [_Field(stack[-1].text)]
        case "BUILD_TUPLE" if step.argval and step.argval <= len(stack):
            stack[-step.argval :] = [tuple(stack[-step.argval :])]
        case _:
            return False
    return True


def _name_of(step: dis.Instruction) -> str:
    """Return the name that the instruction had before Python 3.14, which borrows locals and subscripts by operator."""
    return "BINARY_SUBSCR" if step.argrepr == "[]" else step.opname.removesuffix("_BORROW")


def _picked(stack: list[Any]) -> Picked | None:
    if len(stack) != 1:
        return None
    match stack[0]:
        case _Row():
            return Picked("row")
        case _Field(name):
            return Picked("value", (name,))
        case tuple() as parts if all(isinstance(part, _Field) for part in parts):
            return Picked("tuple", tuple(part.name for part in parts))
    return None


FunctionKind = Literal["map", "flat_map", "filter_rows", "map_batches", "map_async"]
_MANY = (
    collections.abc.Iterable,
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.Sequence,
    list,
    tuple,
)


class AsyncCalls(msgspec.Struct, frozen=True):
    """Options for the calls of `map_async`."""

    capacity: int
    timeout: str | float
    ordered: bool
    retry: AsyncRetryStrategy | None


class _Types(msgspec.Struct, frozen=True):
    """The types in the annotations of a function; None: not annotated."""

    parameter: Any
    result: Any


def compile_function(
    kind: FunctionKind,
    function: Callable[..., Any],
    returns: Any,
    *,
    schema: pa.Schema,
    row_type: Any,
    carried: Callable[..., Any] | None = None,
) -> NewOperator:
    """Return the operator of a Python function on rows of `schema` (whose own row type is `row_type`, if any).

    `carried`: the function that workers call in its place.

    Raises:
        GraphError: the output type is not known or has no Arrow type, or the function cannot be pickled.
    """
    name = getattr(function, "__name__", type(function).__name__)
    where = f"{'filter' if kind == 'filter_rows' else kind}({name})"
    if not callable(function):
        msg = f"{where}: {function!r} is not a function"
        expression = ", or an expression, for example pl.col('amount') > 5" if kind == "filter_rows" else ""
        raise GraphError(msg, hint=f"pass a function of one row{expression}")
    if kind == "map_async" and not _is_async(function):
        msg = f"{where}: it is not a coroutine function"
        raise GraphError(msg, hint="write it with `async def`, or use .map(f) for a plain one")
    if kind == "map" and returns is None and (picked := picked_by(function)) is not None and picked.shape == "row":
        returns = row_type if row_type is not None else without_ts(schema)
    types = _annotations(function, where, needed=kind != "filter_rows" and returns is None)
    # a batch function receives a frame, for any type of rows
    given = None if kind == "map_batches" else input_type(types.parameter, row_type, schema, where)
    if kind == "filter_rows":
        _require_condition(function, types.result, schema, where)
        output, output_type = schema, row_type
    else:
        output_type = returns if returns is not None else result_type(kind, types.result, where)
        output = output_schema(output_type, schema, where)
    kept_type = output_type if is_row_type(output_type) else None
    spec = OperatorSpec(
        uid="", name=where, kind=kind, payload=pickled((carried or function, given, kept_type), where), python=True
    )
    return NewOperator(spec, output, kept_type)


def async_function(function: Callable[..., Any], returns: Any, calls: AsyncCalls, flow: Flow) -> NewOperator:
    """Return the operator of a coroutine function on the rows of a stream.

    Raises:
        GraphError: as `compile_function`; or a number that makes no sense.
    """
    from penstock.functions.async_retry import Retrying

    timeout_ms = parse_duration_ms(calls.timeout, "time-out of map_async")
    if calls.capacity < 1 or timeout_ms <= 0:
        msg = f"map_async: capacity and timeout must be positive, not {calls.capacity} and {calls.timeout!r}"
        raise GraphError(msg, hint="write for example .map_async(f, capacity=100, timeout='5s')")
    carried = None if calls.retry is None else Retrying(function, calls.retry)
    made = compile_function("map_async", function, returns, schema=flow.schema, row_type=flow.row_type, carried=carried)
    config = {"capacity": calls.capacity, "timeout_ms": timeout_ms, "ordered": calls.ordered}
    spec = msgspec.structs.replace(made.spec, config=config, stateful=True)
    return NewOperator(spec, made.schema, made.row_type)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _require_condition(function: Callable[..., Any], annotated: Any, schema: pa.Schema, where: str) -> None:
    """Check that a filter's function returns True or False, where its annotation or its code tells what it returns.

    Raises:
        GraphError: it returns something else.
    """
    import numpy as np
    import pyarrow as pa

    picked = picked_by(function)
    if isinstance(annotated, type) and annotated not in {bool, np.bool_, object}:
        returned = f"{annotated.__name__}, by its annotation"
    elif picked is None:
        return
    elif picked.shape == "value" and picked.fields[0] in schema.names:
        data_type = schema.field(picked.fields[0]).type
        if data_type == pa.bool_():
            return
        returned = f"the field {picked.fields[0]!r}, which is {data_type}, not bool"
    elif picked.shape == "value":
        return  # a property or method of the row's class
    else:
        returned = "its row" if picked.shape == "row" else "a tuple"
    raise GraphError(f"{where}: the function returns {returned}", hint="return True or False")


def is_row_type(value: Any) -> bool:
    """Return whether `value` is a row class: a `ps.Schema`, dataclass, TypedDict or NamedTuple."""
    if not isinstance(value, type):
        return False
    named_tuple = issubclass(value, tuple) and hasattr(value, "_fields")
    return (
        hasattr(value, "model_fields") or dataclasses.is_dataclass(value) or typing.is_typeddict(value) or named_tuple
    )


def _annotations(function: Callable[..., Any], where: str, *, needed: bool) -> _Types:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(target)
        parameters = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    except (NameError, TypeError, ValueError) as error:
        if not needed:
            return _Types(None, None)
        msg = f"{where}: its annotations cannot be read: {error}"
        raise GraphError(msg, hint="give the row type as returns=...") from error
    first = hints.get(parameters[0].name) if parameters else None
    return _Types(first, hints.get("return"))


def input_type(annotated: Any, row_type: Any, schema: pa.Schema, where: str) -> Any:
    """Return the row type that the function receives: annotated, else the stream's, else None (a named tuple)."""
    if annotated is row_type or not is_row_type(annotated):
        return row_type
    wanted, there = arrow_schema_of(annotated).names, without_ts(schema).names
    require_columns(wanted, there, f"{where}: {annotated.__name__}")
    if not _takes_any_columns(annotated) and wanted != there:
        msg = f"{where}: {annotated.__name__} has {', '.join(wanted)}, and the rows have {', '.join(there)}"
        raise GraphError(msg, hint=f"bring them to it with .select({', '.join(map(repr, wanted))}), or use a ps.Schema")
    return annotated


def _takes_any_columns(row_type: Any) -> bool:
    """Return whether rows may have more columns than the type; dataclasses and named tuples need exactly theirs."""
    return hasattr(row_type, "model_fields") or typing.is_typeddict(row_type)


def _is_frame(annotated: Any) -> bool:
    """Return whether a batch function takes a Polars frame or an Arrow batch."""
    return isinstance(annotated, type) and annotated.__module__.partition(".")[0] in {"polars", "pyarrow"}


def result_type(kind: FunctionKind, annotated: Any, where: str) -> Any:
    """Return the row type in a function's return annotation."""
    if annotated is None or annotated is type(None) or _is_frame(annotated):
        msg = f"{where}: its output type is not known"
        hint = "annotate what it returns with a row type" if kind != "map_batches" else "a frame has no columns yet"
        raise GraphError(msg, hint=f"{hint}, or give returns=Row (a ps.Schema, dataclass... or pa.Schema)")
    if kind == "flat_map":
        origin, args = get_origin(annotated), get_args(annotated)
        if origin not in _MANY or not args:
            msg = f"{where}: it must return several rows, and its annotation says {argument_text(annotated)}"
            raise GraphError(msg, hint="annotate it as Iterator[Row], Iterable[Row] or list[Row]")
        return args[0]
    return annotated


def output_schema(output_type: Any, schema: pa.Schema, where: str) -> pa.Schema:
    """Return the schema of a row type, with event time if `schema` has it."""
    import pyarrow as pa

    if isinstance(output_type, pa.Schema):
        rows = output_type
    else:
        try:
            rows = arrow_schema_of(output_type)
        except GraphError as error:
            msg = f"{where}: {error.message}"
            raise GraphError(msg, hint=error.hint) from error
    require_unique(rows.names, where)
    reserved = [name for name in rows.names if name.startswith("__")]
    if reserved:
        msg = f"{where}: column names that begin with '__' are reserved, such as {reserved[0]!r}"
        raise GraphError(msg, hint="choose another name; event time follows its row by itself")
    return with_ts(rows) if len(schema.names) != len(without_ts(schema).names) else rows


def pickled(value: Any, where: str) -> bytes:
    """Return the pickled form of a function for workers.

    Raises:
        GraphError: it holds what another process cannot have, such as a lock or an open file.
    """
    buffer = io.BytesIO()
    try:
        _FunctionPickler(buffer).dump(value)
    except _OpenFileError as error:
        msg = f"{where}: the function cannot be sent to workers: it holds the open file {error.args[0]!r}"
        hint = "open it inside the function, or in the open method of a process function"
        raise GraphError(msg, hint=hint) from None
    except Exception as error:
        msg = f"{where}: the function cannot be sent to workers: {error}"
        raise GraphError(msg, hint="it must not hold open files, locks or clients; make those inside it") from error
    return buffer.getvalue()


class _OpenFileError(Exception):
    """An object for a worker holds an open file; the argument is its name."""


def _refuse_file(file: Any) -> Any:
    if file in (sys.stdout, sys.stderr):
        return getattr, (sys, "stdout" if file is sys.stdout else "stderr")
    raise _OpenFileError(str(file.name))


class _FunctionPickler(cloudpickle.Pickler):  # type: ignore[misc] # ships no types
    """Refuses open files: cloudpickle would send their text, and its position, as it is now."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
        dict.fromkeys((io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom), _refuse_file)
    )
