"""The watermark of a keyed operator, by hash range.

After a rescale the keys of a subtask come from subtasks with different watermarks. The operator resumes from the least
of them. Until it has caught up, windows that a former subtask had fired are not fired again for its keys, and rows that
were late for it stay late. Used by the keyed operators with event time, such as `operators.windows.window_aggregate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.keygroup import HashRange
from penstock.eventtime.watermarks import carried_over

if TYPE_CHECKING:
    from collections.abc import Iterable


class RangeWatermarks:
    """One watermark (`low`), and the ranges that are ahead of it."""

    def __init__(self, owned: HashRange, low: int, ahead: list[tuple[HashRange, int]]) -> None:
        """Make watermarks; `ahead`: disjoint ranges whose watermark is above `low`."""
        self._owned = owned
        self._low = low
        self._ahead = ahead

    @classmethod
    def restored(cls, owned: HashRange, items: Iterable[Any]) -> RangeWatermarks:
        """Restore from all former subtasks' `items()`, for the range owned now; the end of time is not restored."""
        pieces = []
        for item in items:
            common = HashRange(item["hash_low"], item["hash_high"]).intersect(owned)
            if common is not None:
                pieces.append((common, carried_over(int(item["watermark"]))))
        covered = sum(r.high - r.low + 1 for r, _ in pieces) == owned.high - owned.low + 1
        low = min((w for _, w in pieces), default=MIN_TIMESTAMP) if covered else MIN_TIMESTAMP
        return cls(owned, low, [(r, w) for r, w in pieces if w > low])

    @property
    def low(self) -> int:
        """The watermark that holds for every key."""
        return self._low

    @property
    def differ(self) -> bool:
        """Whether any range is ahead."""
        return bool(self._ahead)

    def ahead(self) -> list[tuple[HashRange, int]]:
        """Return the ranges that are ahead, with their watermarks."""
        return self._ahead

    def advance(self, watermark: int) -> None:
        """Advance to `watermark`, which the operator's input has reached."""
        self._low = max(self._low, watermark)
        self._ahead = [(r, w) for r, w in self._ahead if w > self._low]

    def items(self) -> tuple[dict[str, int], ...]:
        """Return the JSON-able form: disjoint ranges that cover the owned one."""
        items = []
        at = self._owned.low
        for owned, watermark in sorted(self._ahead):
            if owned.low > at:
                items.append(_item(at, owned.low - 1, self._low))
            items.append(_item(owned.low, owned.high, watermark))
            at = owned.high + 1
        if at <= self._owned.high:
            items.append(_item(at, self._owned.high, self._low))
        return tuple(items)


def _item(low: int, high: int, watermark: int) -> dict[str, int]:
    return {"hash_low": low, "hash_high": high, "watermark": watermark}
