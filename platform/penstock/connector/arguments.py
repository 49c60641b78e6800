"""Refuses misspelt arguments of connectors whose further arguments are `**options`.

Python looks for a missing argument first, and so would not name `topics` where `topic` is meant.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from penstock.core.errors import UsageError, did_you_mean

P = ParamSpec("P")
T = TypeVar("T")


def known_arguments(options: Iterable[str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate an `__init__` with `**options` of these names: any other argument raises `UsageError`."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        named = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        known = [*named[1:], *options]  # without `self`
        owner = function.__qualname__.partition(".")[0]

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            unknown = [name for name in kwargs if name not in known]
            if unknown:
                raise UsageError(f"{owner} has no argument {unknown[0]!r}", hint=did_you_mean(unknown[0], known))
            return function(*args, **kwargs)

        return checked

    return decorated
