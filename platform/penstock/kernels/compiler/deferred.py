"""Names of numba that are resolved when a kernel is compiled: importing numba takes most of a second.

Used by `kernels.compiler.compile`, which gives kernel modules `types`, `njit` and `intrinsic`. A kernel from a bundle
never resolves its signature. For one that is compiled, these placeholders are replaced first (`revealed`).
"""

# ruff: noqa: SLF001 - the functions of this module are the class's own

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Deferred:
    """An expression over numba's names, evaluated once, by `resolve`."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Any]) -> None:
        """Take `make`, which returns the real object."""
        self._make = make
        self._made: Any = None

    def __getattr__(self, name: str) -> Deferred:
        """Defer the attribute too."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Deferred(lambda: getattr(resolve(self), name))

    def __call__(self, *arguments: Any, **named: Any) -> Deferred:
        """Defer the call too."""
        return Deferred(
            lambda: resolve(self)(*resolve(arguments), **{name: resolve(value) for name, value in named.items()})
        )

    def __getitem__(self, key: Any) -> Deferred:
        """Defer the subscription too."""
        return Deferred(lambda: resolve(self)[key])


def _made(deferred: Deferred) -> Any:
    # Functions outside of the class, because a method would hide a name of numba.
    if deferred._made is None:
        made = deferred._make()
        if deferred._made is None:  # otherwise it was resolved again while it was made
            deferred._made = made
    return deferred._made


def resolve(value: Any) -> Any:
    """Return the value of a deferred expression, also within tuples; other values as they are."""
    if isinstance(value, Deferred):
        return _made(value)
    if isinstance(value, tuple):
        return tuple(resolve(part) for part in value)
    return value
