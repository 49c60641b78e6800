"""The demo's check: recomputes every window from the input and compares it with the output.

Deliberately shares no code with the engine (only Python and numpy), so that a bug in the engine's windows is not
repeated here. Called by `penstock demo` and by the process-level tests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

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
