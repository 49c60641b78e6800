"""Hints for misspelt names: the nearest name and all valid ones. Called where a user's name is looked up."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from typing import Any

_METHOD = """['"](?:builtin_function_or_)?method['"]"""
#: Python's error about an operation on a method; an argument that is named `method` does not match.
_ON_A_METHOD = re.compile(rf"\b(?:operand|between|not|type)\b.*{_METHOD}|{_METHOD} object")
#: Python's error about an unknown argument of a function or class.
_UNKNOWN_ARGUMENT = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")
_OURS = ("penstock", "penstock_connectors", "penstock_airflow")


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name: the nearest one if there is any, and all valid ones."""
    import difflib  # imported only when a name is wrong

    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    listed = f"there are: {', '.join(names)}" if names else "there are none"
    return f"did you mean {close[0]!r}? {listed}" if close else listed


def misuse(error: BaseException) -> str:
    """Return a hint for a Python error: an unknown name or argument of penstock, or a method without its call."""
    if isinstance(error, AttributeError) and type(error.obj).__module__.startswith("penstock."):
        owner: Any = error.obj
        # users do not look for `count` and `index` of a named tuple, such as a row made by penstock
        hidden: set[str] = set(dir(tuple)) - set(owner._fields) if isinstance(error.obj, tuple) else set()
        return near(str(error.name), [n for n in dir(owner) if not n.startswith("_") and n not in hidden])
    if isinstance(error, TypeError) and _ON_A_METHOD.search(str(error)):
        return "a method is used without its call: put () after its name, as in self.state.value()"
    if isinstance(error, TypeError) and (found := _UNKNOWN_ARGUMENT.match(str(error))):
        parameters = _parameters(found[1])
        return near(found[2], parameters) if parameters else ""
    return ""


def _parameters(name: str) -> list[str]:
    """Return the parameters of a function or class of penstock by its qualified name; empty for any other."""
    first, *rest = name.removesuffix(".__init__").split(".")
    for module in [m for n, m in list(sys.modules.items()) if n.partition(".")[0] in _OURS]:
        found = vars(module).get(first)
        for part in rest:
            found = vars(found).get(part) if isinstance(found, type) else None
        if callable(found):
            return [p for p in inspect.signature(found).parameters if p != "self" and not p.startswith("_")]
    return []
