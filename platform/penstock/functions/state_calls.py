"""The lines of a process function that change a state.

Values are checked after a batch, without the frame that set them; `operators.process.state_binding` names these lines
in the error. They are found in the bytecode: a worker may not have the source.
"""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Methods of states that take a value.
_CHANGING = frozenset(("update", "append", "extend", "set", "put", "add"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))


def places_of_changes(function: Any, state: str) -> list[str]:
    """Return `file:line in method` of each change of a state in the class of a function and its bases, in order."""
    places = [
        f"{code.co_filename}:{line} in {name}"
        for base in type(function).__mro__
        for name, method in vars(base).items()
        for code in _codes(method)
        for line in _changing_lines(code, state)
    ]
    return list(dict.fromkeys(places))


def _codes(method: Any) -> Iterator[CodeType]:
    """Yield the code of a method and of the functions within it."""
    unwrapped = inspect.unwrap(method) if callable(method) else method
    waiting: list[Any] = [unwrapped.__code__] if isinstance(unwrapped, FunctionType) else []
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
