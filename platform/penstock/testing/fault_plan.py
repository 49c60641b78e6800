"""Faults between the steps of a test: `faults()` draws them with hypothesis, `drawn` from a seed.

A `JobHarness` takes a sequence of faults and lets one happen at each `push`, `watermark` and `end`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from penstock.core.rand import Rand

#: `checkpoint` and `rescale` happen before the step. A `crash` follows the first subtask steps of the step, a
#: `crash-in-checkpoint` those of a checkpoint after it.
FaultKind = Literal["none", "checkpoint", "crash", "crash-in-checkpoint", "rescale"]
_KINDS: tuple[FaultKind, ...] = ("none", "checkpoint", "crash", "crash-in-checkpoint", "rescale")
#: In a simulation most steps have no fault, so that state grows between faults.
_CHANCES: dict[FaultKind, float] = {"checkpoint": 0.2, "crash": 0.15, "crash-in-checkpoint": 0.05, "rescale": 0.05}
_MOST_STEPS, _MOST_SUBTASKS = 40, 4


class Fault(NamedTuple):
    """A fault at one step of a test."""

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


def drawn(rand: Rand) -> Iterator[Fault]:
    """Yield faults without end."""
    while True:
        chance = rand.fraction()
        kind: FaultKind = "none"
        for name, share in _CHANCES.items():
            if chance < share:
                kind = name
                break
            chance -= share
        steps, width = int(rand.fraction() * _MOST_STEPS), 1 + int(rand.fraction() * _MOST_SUBTASKS)
        yield Fault(kind, steps, width)
