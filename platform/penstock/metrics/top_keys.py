"""The heaviest items of a stream in bounded memory: the Misra-Gries summary, over weighted counts.

The weight of an item is too low by at most `error`, and an item heavier than that is never missing. Old weight can be
faded, so that the summary covers the last minutes. Kept by `penstock.task.chain.hot_keys` for every keyed operator.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class TopKeys(Generic[T]):
    """At most twice `capacity` items with their weights; when there are more, the heaviest `capacity` are kept."""

    def __init__(self, capacity: int) -> None:
        """Start without counts."""
        self._capacity = capacity
        self._counts: dict[T, float] = {}
        #: Weight of all items, and the largest error of one weight.
        self.total = self.error = 0.0

    def add(self, counts: Mapping[T, float]) -> None:
        """Count items, all with their weights at once."""
        known = self._counts
        for item, weight in counts.items():
            known[item] = known.get(item, 0.0) + weight
            self.total += weight
        if len(known) > 2 * self._capacity:  # sorts now and then, not for every new item
            threshold = sorted(known.values(), reverse=True)[self._capacity]
            self._counts = {item: weight - threshold for item, weight in known.items() if weight > threshold}
            self.error += threshold

    def decay(self, factor: float) -> None:
        """Multiply all counts so far by `factor`."""
        self._counts = {item: weight * factor for item, weight in self._counts.items()}
        self.total *= factor
        self.error *= factor

    @property
    def heaviest(self) -> float:
        """The weight of the heaviest item, at least; 0 without items."""
        return max(self._counts.values(), default=0.0)

    def top(self, most: int) -> list[tuple[T, float]]:
        """Return the heaviest items with the least they can weigh, the heaviest first."""
        return sorted(self._counts.items(), key=lambda item: -item[1])[:most]
