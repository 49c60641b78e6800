"""`ps.evictor`: which rows of a window are left out and forgotten; for one's own derive from `ps.Evictor`.

Each chooses before the window is computed, or with `after=True` behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.functions import evictors

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.functions.evictors import Evictor


def count(rows: int, *, after: bool = False) -> Evictor:
    """Keep so many rows, those that came last."""
    return evictors.CountEvictor(rows, after=after)


def time(keep: str | float, *, after: bool = False) -> Evictor:
    """Keep the rows that are less than a time older than the newest, by event time: the stream must have it."""
    return evictors.TimeEvictor(keep, after=after)


def delta(
    threshold: float, of: str, measure: Callable[[Any, Any], float] | None = None, *, after: bool = False
) -> Evictor:
    """Keep the rows whose value in a column is nearer than a threshold to that of the row that came last.

    `measure(value, last)` says how far; without it, it is the difference, whatever its sign.
    """
    return evictors.DeltaEvictor(threshold, of, measure, after=after)
