"""Lambdas that only select fields: `lambda r: r.k`, `lambda r: (r.a, r.b)` and `lambda r: r` need no annotation.

A lambda cannot be annotated. One that only selects fields has the types of these fields. It is recognised by its
bytecode and is not called. Used by `api.functions.key_selector` and `api.functions.row_functions`.
"""

from __future__ import annotations

import dis
import inspect
from types import FunctionType
from typing import Any, Literal

import msgspec

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
    match step.opname:
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
