"""Evictors: which rows of a window are left out before, or forgotten behind, its computation; Flink's, and a base.

`ps.evictor.count(10)` and so on make them; run by `operators.windows.window_engine`. What an evictor leaves out is
forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.config.settings import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.eventtime.windows import TimeWindow


class WindowElement:
    """A row of a window (`value`) and its event time in microseconds; where rows have none it means nothing."""

    __slots__ = ("number", "references", "timestamp", "value")

    def __init__(self, value: Any, timestamp: int, number: int = 0) -> None:
        """`number` tells the rows of a key apart and grows as they come."""
        self.value = value
        self.timestamp = timestamp
        self.number = number
        #: Windows that hold it.
        self.references = 0


class Evictor:
    """Base of evictors of one's own: both hooks return the elements that stay, in order."""

    #: Whether it looks at the times of elements: a stream without event time then refuses it.
    event_time = False

    def evict_before(self, elements: Sequence[WindowElement], window: TimeWindow) -> Iterable[WindowElement]:
        """Choose what the window's function sees."""
        del window
        return elements

    def evict_after(self, elements: Sequence[WindowElement], window: TimeWindow) -> Iterable[WindowElement]:
        """Choose what stays behind the computation."""
        del window
        return elements


class _OneSided(Evictor):
    """Chooses either before or behind the computation."""

    def __init__(self, *, after: bool) -> None:
        self._after = after

    def evict_before(self, elements: Sequence[WindowElement], window: TimeWindow) -> Iterable[WindowElement]:
        """Choose, unless that is done behind."""
        del window
        return elements if self._after else self._kept(elements)

    def evict_after(self, elements: Sequence[WindowElement], window: TimeWindow) -> Iterable[WindowElement]:
        """Choose, if that is done behind."""
        del window
        return self._kept(elements) if self._after else elements

    def _kept(self, elements: Sequence[WindowElement]) -> Iterable[WindowElement]:
        raise NotImplementedError


class CountEvictor(_OneSided):
    """Keeps the rows that came last."""

    def __init__(self, rows: int, *, after: bool) -> None:
        """`rows` stay."""
        super().__init__(after=after)
        self._rows = rows

    def _kept(self, elements: Sequence[WindowElement]) -> Iterable[WindowElement]:
        return elements[max(0, len(elements) - self._rows) :]


class TimeEvictor(_OneSided):
    """Keeps rows that are less than a time older than the newest."""

    event_time = True

    def __init__(self, keep: str | float, *, after: bool) -> None:
        """`keep` such as `"10s"`."""
        super().__init__(after=after)
        self._keep = parse_duration_ms(keep, "evictor") * 1000

    def _kept(self, elements: Sequence[WindowElement]) -> Iterable[WindowElement]:
        cut = max((element.timestamp for element in elements), default=0) - self._keep
        return [element for element in elements if element.timestamp > cut]


class DeltaEvictor(_OneSided):
    """Keeps rows whose value is nearer than a threshold to that of the row that came last."""

    def __init__(
        self, threshold: float, of: str, measure: Callable[[Any, Any], float] | None = None, *, after: bool
    ) -> None:
        """`of` names the column; `measure(value, last)` is how far, without it the difference, whatever its sign."""
        super().__init__(after=after)
        self._threshold, self._of = threshold, of
        self._measure = measure or _distance

    def _kept(self, elements: Sequence[WindowElement]) -> Iterable[WindowElement]:
        values = [e.value[self._of] if isinstance(e.value, dict) else getattr(e.value, self._of) for e in elements]
        return [e for e, v in zip(elements, values, strict=True) if self._measure(v, values[-1]) < self._threshold]


def _distance(value: Any, last: Any) -> float:
    return abs(float(last) - float(value))
