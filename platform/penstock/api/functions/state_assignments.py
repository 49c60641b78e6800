"""Assignments to the states of a process function, such as `self.count = 1`: they would replace the state unnoticed.

Called by `api.functions.process_functions`, which refuses them while the job is built: they are found in the source
of the class, so that running jobs do no work for it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.errors import GraphError
from penstock.functions.state_calls import methods_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FunctionType

#: Kind of a state in the config of an operator (none: a value) -> the call that changes it.
_CHANGES = {
    "list": "set(values)",
    "operator_list": "set(values)",
    "union": "set(values)",
    "map": "put(key, value)",
    "broadcast": "put(key, value)",
    "reducing": "add(value)",
    "aggregating": "add(value)",
}


def refuse_assignments(function: Any, kinds: Mapping[str, str], where: str) -> None:
    """Check that no method of a function's class assigns to a state or deletes it.

    `kinds`: name of each state -> its kind, empty for a value. Methods without source, as in a REPL, are not checked.

    Raises:
        GraphError: one does; it names the class, the attribute and the line.
    """
    for base, _, method in methods_of(type(function)):
        if base.__module__.startswith("penstock."):
            continue
        for name, line, deletes in _assignments(method):
            if name not in kinds:
                continue
            place = f"{Path(method.__code__.co_filename).name}:{line} in {method.__name__}"
            does, shown = ("deletes", f"del self.{name}") if deletes else ("assigns to", f"self.{name} = ...")
            change = "clear()" if deletes else _CHANGES.get(kinds[name], "update(value)")
            msg = f"{where}: {base.__name__} {does} its state: {shown} at {place}"
            raise GraphError(msg, hint=f"the state stays the same object: write self.{name}.{change}")


def _assignments(method: FunctionType) -> Iterator[tuple[str, int, bool]]:
    """Yield name and line of each attribute of its object that a method sets or deletes, and whether it deletes it."""
    if not method.__code__.co_argcount:
        return
    own = method.__code__.co_varnames[0]
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, SyntaxError):  # written in a REPL, or a lambda within a longer expression
        return
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store | ast.Del)
            and isinstance(node.value, ast.Name)
            and node.value.id == own
        ):
            line = method.__code__.co_firstlineno + node.lineno - 1
            yield node.attr, line, isinstance(node.ctx, ast.Del)
