"""The executor of `env.execute`: the one that a command has set, else the default of this installation.

`penstock` sets the defaults (`set_default_executor`, `set_preview_executor`), so that the API does not depend on a
client; `penstock run`, `penstock demo` and tests set another one temporarily (`use_executor`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.core.errors import UsageError
from penstock.graph.executor import JobExecutor, JobResult


@dataclass(slots=True)
class ActiveExecutor:
    """An executor, the settings it overrides, and the results of jobs run on it."""

    executor: JobExecutor
    overrides: dict[str, str]
    results: list[JobResult] = field(default_factory=list)


class _Registry:
    """The default executor and the stack of temporary ones."""

    def __init__(self) -> None:
        self.default: Callable[[], JobExecutor] | None = None
        self.preview: Callable[[], JobExecutor] | None = None
        self.stack: list[ActiveExecutor] = []


_registry = _Registry()


def set_default_executor(factory: Callable[[], JobExecutor]) -> None:
    """Set the factory of the executor for jobs that are started as plain Python programs."""
    _registry.default = factory


def set_preview_executor(factory: Callable[[], JobExecutor]) -> None:
    """Set the factory of the executor for a few rows of a stream (`stream.show()`)."""
    _registry.preview = factory


def preview_executor() -> JobExecutor:
    """Return the executor for a few rows of a stream.

    Raises:
        UsageError: there is none.
    """
    if _registry.preview is None:
        msg = "no executor is known"
        raise UsageError(msg, hint="use penstock as `import penstock as ps` and ps.Environment")
    return _registry.preview()


@contextlib.contextmanager
def use_executor(executor: JobExecutor, overrides: dict[str, str] | None = None) -> Iterator[list[JobResult]]:
    """Run jobs on `executor` inside the `with` block, with settings overridden; yield the list of their results."""
    active = ActiveExecutor(executor, dict(overrides or {}))
    _registry.stack.append(active)
    try:
        yield active.results
    finally:
        _registry.stack.remove(active)


def current_executor() -> ActiveExecutor:
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
    return ActiveExecutor(_registry.default(), {})


def current_overrides() -> dict[str, str]:
    """Return the settings that the command line overrides."""
    return dict(_registry.stack[-1].overrides) if _registry.stack else {}
