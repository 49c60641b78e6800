"""The pytest plugin: the fixture `job_harness`, warnings of a test that lasts long, and errors at the test's line.

pytest captures what a test prints until its end. A test whose function does not return has no end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.testing.harness import JobHarness


#: Warnings of a shorter test are shown if it fails.
QUIET_MS = 4_000.0


class OnTerminal(logging.Handler):
    """Writes the warnings of `penstock` to the terminal of pytest, once a test lasts long."""

    def __init__(self, item: pytest.Item, quiet_ms: float = QUIET_MS) -> None:
        """Write nothing for `quiet_ms`; `item` is the test that runs."""
        super().__init__(logging.WARNING)
        self._item, self._quiet_ms, self._clock = item, quiet_ms, SystemClock()
        self._begun_ms = self._clock.monotonic_ms()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record if it is for users, and the test lasts long."""
        if record.name != "penstock" or self._clock.monotonic_ms() - self._begun_ms <= self._quiet_ms:
            return
        plugins = self._item.config.pluginmanager
        terminal, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
        if terminal is None or capture is None:
            return
        with capture.global_and_fixture_disabled():
            terminal.write_line(f"\n{self._item.name}: {record.getMessage()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Show warnings while the test runs; end the traceback of an error of the harness at the test's line."""
    logger, handler = logging.getLogger("penstock"), OnTerminal(item)
    logger.addHandler(handler)
    try:
        return (yield)
    except PenstockError as error:
        if not os.environ.get("PENSTOCK_TRACEBACK"):
            from penstock.testing.user_traceback import end_at_test

            end_at_test(error)
        raise
    finally:
        logger.removeHandler(handler)


@pytest.fixture
def job_harness() -> Iterator[Callable[..., JobHarness]]:
    """Return a function that makes a `JobHarness`, with its arguments; all are closed at the end of the test."""
    from penstock.testing.harness import JobHarness

    made: list[JobHarness] = []

    def make(job: Any, **options: Any) -> JobHarness:
        made.append(JobHarness(job, **options))
        return made[-1]

    yield make
    for harness in made:
        harness.close()
