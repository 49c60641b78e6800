"""The scenario of `penstock demo`: the sizes of its job, its input and output, and the check of the result.

The check recomputes every window with Python and numpy only. It shares no code with the engine, so that it cannot
repeat a bug of the engine's windows. Implemented by `demo_files` and `demo_kafka`; the check is also used by the
process-level tests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.api.environment import Environment

#: (user_id, window start in us) -> (count, sum of amounts)
Windows = dict[tuple[int, int], tuple[int, int]]
#: (user_id, window start in us, count, sum of amounts)
OutputRow = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The number of expected windows, and the differences of the output."""

    windows: int
    missing: int
    duplicated: int
    wrong: int

    @property
    def exact(self) -> bool:
        """Whether every window exists exactly once with the right values, and no other."""
        return self.missing == self.duplicated == self.wrong == 0


def expected_windows(
    users: np.ndarray[Any, Any], amounts: np.ndarray[Any, Any], times_us: np.ndarray[Any, Any], size_us: int
) -> Windows:
    """Return count and sum of each (user, tumbling window) of the input."""
    starts = np.floor_divide(times_us, size_us) * size_us
    order = np.lexsort((starts, users))
    users, starts, amounts = users[order], starts[order], amounts[order]
    if not len(users):
        return {}
    edges = np.flatnonzero(np.r_[True, (users[1:] != users[:-1]) | (starts[1:] != starts[:-1])])
    counts = np.diff(np.r_[edges, len(users)])
    sums = np.add.reduceat(amounts, edges)
    keys = zip(users[edges].tolist(), starts[edges].tolist(), strict=True)
    return {key: (int(count), int(total)) for key, count, total in zip(keys, counts, sums, strict=True)}


def compare(expected: Windows, output: Iterable[OutputRow]) -> Verdict:
    """Compare the output: a window's second row is a duplicate, an unexpected or unequal row is wrong."""
    seen: Counter[tuple[int, int]] = Counter()
    wrong = 0
    for user, start, count, total in output:
        seen[user, start] += 1
        if seen[user, start] == 1 and expected.get((user, start)) != (count, total):
            wrong += 1
    missing = sum(1 for key in expected if key not in seen)
    duplicated = sum(times - 1 for times in seen.values())
    return Verdict(len(expected), missing, duplicated, wrong)


WINDOW_SECONDS = 10
DISORDER_SECONDS = 5
PARALLELISM = 2
KILLS = 2


class Scenario(Protocol):
    """Where the demo's input comes from and its output goes."""

    #: Number of orders.
    events: int
    environment: dict[str, str]

    def prepare(self) -> None:
        """Make servers, topics, folders ready."""

    def build(self) -> Environment:
        """Return the environment with the job in it."""

    def begin(self) -> None:
        """The job runs: begin to produce, where that is needed."""

    def killed(self, kills: int) -> None:
        """So many workers have been killed: a producer continues with the next part of the input."""

    def expected(self) -> Windows:
        """Compute the windows from the input, sharing no code with the engine."""

    def output(self) -> Iterable[OutputRow]:
        """Read the output as any reader would."""

    def close(self) -> None:
        """End everything that was started."""
