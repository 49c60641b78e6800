"""The pytest plugin: the fixture `job_harness`, which closes its jobs at the end of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing.harness import JobHarness


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
