"""Faults between the steps of a test: `faults()` draws them with hypothesis, `simulate` from seeds.

A `JobHarness` takes a sequence of faults and lets one happen at each `push`, `watermark` and `end`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock.core.errors import UsageError
from penstock.core.rand import Rand, SeededRand

if TYPE_CHECKING:
    from pathlib import Path

    from hypothesis.strategies import SearchStrategy

    from penstock.api.environment import Environment
    from penstock.api.streams import DataStream
    from penstock.testing.harness import JobHarness

#: `checkpoint` and `rescale` happen before the step. A `crash` follows the first subtask steps of the step, a
#: `crash-in-checkpoint` those of a checkpoint after it.
FaultKind = Literal["none", "checkpoint", "crash", "crash-in-checkpoint", "rescale"]
_KINDS: tuple[FaultKind, ...] = ("none", "checkpoint", "crash", "crash-in-checkpoint", "rescale")
#: In a simulation most steps have no fault, so that state grows between faults.
_CHANCES: dict[FaultKind, float] = {"checkpoint": 0.2, "crash": 0.15, "crash-in-checkpoint": 0.05, "rescale": 0.05}
_MOST_STEPS, _MOST_SUBTASKS = 40, 4


class Fault(NamedTuple):
    """What happens at one step of a test."""

    kind: FaultKind = "none"
    #: Subtask steps before a crash.
    steps: int = 0
    #: Subtasks an operator after a `rescale`.
    parallelism: int = 1


def faults(*, max_parallelism: int = _MOST_SUBTASKS) -> SearchStrategy[list[Fault]]:
    """Return a hypothesis strategy: the `faults=` of a `JobHarness`.

    Raises:
        UsageError: hypothesis is not installed.
    """
    try:
        from hypothesis import strategies as st
    except ImportError as error:
        raise UsageError("penstock.testing.faults needs hypothesis", hint="pip install hypothesis") from error
    steps, parallelism = st.integers(0, _MOST_STEPS), st.integers(1, max_parallelism)
    return st.lists(st.builds(Fault, st.sampled_from(_KINDS), steps, parallelism), max_size=20)


def drawn(rand: Rand, max_parallelism: int) -> Iterator[Fault]:
    """Yield faults without end."""
    while True:
        chance = rand.fraction()
        kind: FaultKind = "none"
        for name, share in _CHANCES.items():
            if chance < share:
                kind = name
                break
            chance -= share
        steps, width = int(rand.fraction() * _MOST_STEPS), 1 + int(rand.fraction() * max_parallelism)
        yield Fault(kind, steps, width)


def simulate(
    job: str | Path | Environment | DataStream,
    scenario: Callable[[JobHarness], object],
    *,
    seeds: int | range = 100,
    max_parallelism: int = _MOST_SUBTASKS,
    **options: Any,
) -> None:
    """Run a scenario without faults, then once for each seed with faults: every sink must get the same rows.

    A seed decides the faults, the turns of the subtasks and the parallelism. The order of rows does not count.
    `options` are those of `JobHarness`.

    Raises:
        AssertionError: the rows differ; names the seed, the sink and the rows.
    """
    from penstock.testing.harness import JobHarness

    with JobHarness(job, **options) as harness:
        scenario(harness)
        expected = {sink: _counted(harness, sink) for sink in harness.sinks}
    for seed in range(1, seeds + 1) if isinstance(seeds, int) else seeds:
        rand = SeededRand(seed)
        with JobHarness(job, **options, faults=drawn(rand, max_parallelism), rand=rand) as harness:
            scenario(harness)
            for sink, rows in expected.items():
                found = _counted(harness, sink)
                if found != rows:
                    raise AssertionError(_difference(seed, sink, rows, found))


def _counted(harness: JobHarness, sink: str) -> Counter[str]:
    return Counter(map(repr, harness.rows(sink)))


def _difference(seed: int, sink: str, expected: Counter[str], found: Counter[str]) -> str:
    lines = [f"seed {seed}: sink {sink!r} has other rows than without faults"]
    lines += [f"  missing: {row}" for row in list((expected - found).elements())[:5]]
    lines += [f"  too many: {row}" for row in list((found - expected).elements())[:5]]
    return "\n".join([*lines, f"repeat it with simulate(..., seeds=range({seed}, {seed + 1}))"])
