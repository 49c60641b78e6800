"""`ps.evictor`: which rows of a window are dropped; for custom evictors derive from `ps.Evictor`.

Each one acts before the window is computed, or with `after=True` after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.functions import evictors

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.functions.evictors import Evictor


def count(rows: int, *, after: bool = False) -> Evictor:
    """Keep the `rows` rows that arrived last."""
    return evictors.CountEvictor(rows, after=after)


def time(keep: str | float, *, after: bool = False) -> Evictor:
    """Keep the rows that are less than `keep` older than the newest one by event time, which the stream must have."""
    return evictors.TimeEvictor(keep, after=after)


def delta(
    threshold: float, of: str, measure: Callable[[Any, Any], float] | None = None, *, after: bool = False
) -> Evictor:
    """Keep the rows whose value in a column differs by less than a threshold from that of the row that arrived last.

    `measure(value, last)` returns the distance of two values; by default it is the absolute difference.
    """
    return evictors.DeltaEvictor(threshold, of, measure, after=after)
