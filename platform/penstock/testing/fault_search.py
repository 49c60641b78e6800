"""`simulate`: a test's scenario over and over, with faults drawn from seeds; every sink must get the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core.errors import JobFailedError
from penstock.core.rand import SeededRand
from penstock.testing.harness import JobHarness

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.api.environment import Environment
    from penstock.api.streams import DataStream


def simulate(
    job: str | Path | Environment | DataStream,
    scenario: Callable[[JobHarness], object],
    *,
    seeds: int | range = 100,
    **options: Any,
) -> None:
    """Run a scenario without faults, then once for each seed with faults: every sink must get the same rows.

    A seed decides the faults, the turns of the subtasks and the parallelism. The order of rows does not count.
    `options` are those of `JobHarness`.

    Raises:
        AssertionError: the rows differ, or the job fails with faults only; names the seed, the sink and the rows.
    """
    __tracebackhide__ = True
    with JobHarness(job, **options) as harness:
        scenario(harness)
        expected = {sink: _counted(harness, sink) for sink in harness.sinks}
    for seed in range(1, seeds + 1) if isinstance(seeds, int) else seeds:
        with JobHarness(job, **options, faults=SeededRand(seed)) as harness:
            try:
                scenario(harness)
            except JobFailedError as error:
                raise _failed(seed, error) from None  # the frames are the engine's; the user's are in the note
            for sink, rows in expected.items():
                found = _counted(harness, sink)
                if found != rows:
                    raise AssertionError(_difference(seed, sink, rows, found))


def _failed(seed: int, error: JobFailedError) -> AssertionError:
    failed = AssertionError(f"seed {seed}: with faults the job fails: {error}\n{_again(seed)}")
    for note in vars(error).get("__notes__", ()):
        failed.add_note(note)
    return failed


def _counted(harness: JobHarness, sink: str) -> Counter[str]:
    return Counter(map(repr, harness.rows(sink)))


def _difference(seed: int, sink: str, expected: Counter[str], found: Counter[str]) -> str:
    lines = [f"seed {seed}: sink {sink!r} has other rows than without faults"]
    lines += [f"  missing: {row}" for row in list((expected - found).elements())[:5]]
    lines += [f"  too many: {row}" for row in list((found - expected).elements())[:5]]
    return "\n".join([*lines, _again(seed)])


def _again(seed: int) -> str:
    return f"repeat it with simulate(..., seeds=range({seed}, {seed + 1}))"
