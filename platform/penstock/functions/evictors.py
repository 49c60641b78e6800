"""Evictors: which rows a window drops before or after it is computed; those of Flink, and a base class for custom ones.

Made by `ps.evictor.count(10)` and the like; run by `operators.windows.window_engine`. Dropped rows are deleted from the
window's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.config.settings import parse_duration_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.eventtime.windows import TimeWindow


class WindowElement:
    """A row of a window (`value`) and its event time in microseconds, which is meaningless without event time."""

    __slots__ = ("number", "references", "timestamp", "value")

    def __init__(self, value: Any, timestamp: int, number: int = 0) -> None:
        """Make an element; `number` identifies the rows of a key and increases in order of arrival."""
        self.value = value
        self.timestamp = timestamp
        self.number = number
        #: Number of windows that contain it.
        self.references = 0


class Evictor:
    """Base class of custom evictors: both hooks return the elements to keep, in order."""

    #: Whether the evictor uses the times of elements; it is then rejected for a stream without event time.
    event_time = False

    def evict_before(self, elements: Sequence[WindowElement], window: TimeWindow) -> Iterable[WindowElement]:
        """Return the elements that the window's function receives."""
        del window
        return elements

    def evict_after(self, elements: Sequence[WindowElement], window: TimeWindow) -> Iterable[WindowElement]:
        """Return the elements to keep after the computation."""
        del window
        return elements


class _OneSided(Evictor):
    """Evicts either before or after the computation."""

    def __init__(self, *, after: bool) -> None:
        self._after = after

    def evict_before(self, elements: Sequence[WindowElement], window: TimeWindow) -> Iterable[WindowElement]:
        """Evict, unless this evictor acts after the computation."""
        del window
        return elements if self._after else self._kept(elements)

    def evict_after(self, elements: Sequence[WindowElement], window: TimeWindow) -> Iterable[WindowElement]:
        """Evict, if this evictor acts after the computation."""
        del window
        return self._kept(elements) if self._after else elements

    def _kept(self, elements: Sequence[WindowElement]) -> Iterable[WindowElement]:
        raise NotImplementedError


class CountEvictor(_OneSided):
    """Keeps the rows that arrived last."""

    def __init__(self, rows: int, *, after: bool) -> None:
        """Keep the last `rows` rows."""
        super().__init__(after=after)
        self._rows = rows

    def _kept(self, elements: Sequence[WindowElement]) -> Iterable[WindowElement]:
        return elements[max(0, len(elements) - self._rows) :]


class TimeEvictor(_OneSided):
    """Keeps rows that are less than a given time older than the newest one."""

    event_time = True

    def __init__(self, keep: str | float, *, after: bool) -> None:
        """Make an evictor; `keep` is a duration such as `"10s"`."""
        super().__init__(after=after)
        self._keep = parse_duration_us(keep, "evictor")

    def _kept(self, elements: Sequence[WindowElement]) -> Iterable[WindowElement]:
        oldest = max((element.timestamp for element in elements), default=0) - self._keep
        return [element for element in elements if element.timestamp > oldest]


class DeltaEvictor(_OneSided):
    """Keeps rows whose value differs by less than a threshold from that of the row that arrived last."""

    def __init__(
        self, threshold: float, of: str, measure: Callable[[Any, Any], float] | None = None, *, after: bool
    ) -> None:
        """Make an evictor.

        `of` names the column. `measure(value, last)` returns the distance of two values; by default it is the absolute
        difference.
        """
        super().__init__(after=after)
        self._threshold, self._of = threshold, of
        self._measure = measure or _distance

    def _kept(self, elements: Sequence[WindowElement]) -> Iterable[WindowElement]:
        values = [e.value[self._of] if isinstance(e.value, dict) else getattr(e.value, self._of) for e in elements]
        return [e for e, v in zip(elements, values, strict=True) if self._measure(v, values[-1]) < self._threshold]


def _distance(value: Any, last: Any) -> float:
    return abs(float(last) - float(value))
