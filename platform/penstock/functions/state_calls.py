"""The uses of states in the code of a process function, for errors: lines that change a state, values that are None.

Values are checked after a batch, without the frame that set them; `operators.process.state_binding` names these lines
in the error. They are found in the bytecode: a worker may not have the source.
"""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from penstock.functions.broadcast_state import BroadcastState
from penstock.functions.folding_states import AggregatingState, ReducingState
from penstock.functions.keyed_states import MapState
from penstock.functions.process_function import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessContext,
    RowContext,
    ValueState,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_WITH_STATES = (KeyedProcessFunction, KeyedCoProcessFunction, KeyedBroadcastProcessFunction)
#: Methods of states that take a value.
_CHANGING = frozenset(("update", "append", "extend", "set", "put", "add"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))


def places_of_changes(function: Any, state: str) -> list[str]:
    """Return `file:line in method` of each change of a state in the class of a function and its bases, in order."""
    places = [
        f"{code.co_filename}:{line} in {name}"
        for _, name, method in methods_of(type(function))
        for code in _codes(method)
        for line in _changing_lines(code, state)
    ]
    return list(dict.fromkeys(places))


def methods_of(kind: type) -> Iterator[tuple[type, str, FunctionType]]:
    """Yield the methods of a class and its bases, without their decorators: class, name, function."""
    for base in kind.__mro__:
        for name, member in vars(base).items():
            method = inspect.unwrap(member) if inspect.isroutine(member) else None
            if isinstance(method, FunctionType):
                yield base, name, method


def none_hint(error: BaseException) -> str:
    """Return a hint for Python's error about None where the code has read a state or a time; empty for any other."""
    if not isinstance(error, (TypeError, AttributeError)) or "NoneType" not in str(error):
        return ""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    if frames is None:
        return ""
    variables = frames.tb_frame.f_locals
    read = _read_into_none(frames.tb_frame.f_code, frames.tb_lineno, variables)
    for local in variables.values():
        if isinstance(local, _WITH_STATES):
            hint = next((h for name, state in vars(local).items() if name in read and (h := _of(name, state))), "")
            if hint:
                return hint
        if isinstance(local, (ProcessContext, RowContext)) and local.timestamp is None and "timestamp" in read:
            return "ctx.timestamp is None: the stream has no event time, give its source watermarks=..."
    return ""


def _read_into_none(code: CodeType, line: int, variables: dict[str, Any]) -> set[str]:
    """Return the attributes that a line reads, and those of the lines that set a variable which is None."""
    read: dict[int | None, set[str]] = {}
    lines = {line}
    for step in dis.get_instructions(code):
        at = step.positions.lineno if step.positions is not None else None
        if step.opname in _ATTRIBUTES:
            read.setdefault(at, set()).add(step.argval)
        elif step.opname == "STORE_FAST" and at is not None and variables.get(step.argval, step) is None:
            lines.add(at)
    return set().union(*(read.get(at, set()) for at in lines))


def _of(name: str, state: Any) -> str:
    """Return what to write in place of a read of a state that may be None; empty for anything else."""
    if isinstance(state, ValueState):
        return f"value() of a state is None before its first update: write self.{name}.value() or 0"
    if isinstance(state, (ReducingState, AggregatingState)):
        return f"get() of a state is None before its first add: write self.{name}.get() or 0"
    if isinstance(state, (MapState, BroadcastState)):
        return f"get(key) of a state is None for a key that it has not: write self.{name}.get(key, 0)"
    return ""


def _codes(method: FunctionType) -> Iterator[CodeType]:
    """Yield the code of a method and of the functions within it."""
    waiting = [method.__code__]
    for code in waiting:
        yield code
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _changing_lines(code: CodeType, state: str) -> Iterator[int]:
    """Yield the lines in which a method of a state is called that takes a value, or an entry of it is set."""
    steps = list(dis.get_instructions(code))
    read: set[int | None] = set()  # lines that read the state and have not changed it yet
    for before, step in zip([None, *steps], steps, strict=False):
        line = step.positions.lineno if step.positions is not None else None
        if step.opname in _ATTRIBUTES and step.argval == state:
            read.add(line)
            continue
        reads = before is not None and before.opname in _ATTRIBUTES and before.argval == state
        called = reads and step.opname in _ATTRIBUTES and step.argval in _CHANGING
        if line is not None and (called or (step.opname == "STORE_SUBSCR" and line in read)):
            yield line
