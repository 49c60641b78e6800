"""Which executor `env.execute` uses: the one a command has put in place, else the default of this installation.

`penstock` itself says what the default is (`set_default_executor`), so that the API knows no client; `penstock run`,
`penstock demo` and tests put their own in place for a while (`use_executor`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.core.errors import UsageError
from penstock.graph.executor import JobExecutor, JobResult


@dataclass(slots=True)
class InPlace:
    """An executor, the settings it overrides, and what has run on it."""

    executor: JobExecutor
    overrides: dict[str, str]
    results: list[JobResult] = field(default_factory=list)


class _Registry:
    """The default and the stack of executors put in place."""

    def __init__(self) -> None:
        self.default: Callable[[], JobExecutor] | None = None
        self.stack: list[InPlace] = []


_registry = _Registry()


def set_default_executor(factory: Callable[[], JobExecutor]) -> None:
    """Say what makes the executor of a job that is started as a plain Python program."""
    _registry.default = factory


@contextlib.contextmanager
def use_executor(executor: JobExecutor, overrides: dict[str, str] | None = None) -> Iterator[list[JobResult]]:
    """Run jobs on `executor` inside the `with` block, with settings overridden; gives the list of their results."""
    in_place = InPlace(executor, dict(overrides or {}))
    _registry.stack.append(in_place)
    try:
        yield in_place.results
    finally:
        _registry.stack.remove(in_place)


def current_executor() -> InPlace:
    """Return the executor to run on.

    Raises:
        UsageError: there is none.
    """
    if _registry.stack:
        return _registry.stack[-1]
    if _registry.default is None:
        msg = "no executor is known"
        raise UsageError(
            msg, hint="use penstock as `import penstock as ps` and ps.Environment, or `penstock run job.py`"
        )
    return InPlace(_registry.default(), {})


def current_overrides() -> dict[str, str]:
    """Return the settings that the command line overrides."""
    return dict(_registry.stack[-1].overrides) if _registry.stack else {}
