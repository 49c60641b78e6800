"""The windows with rows that a watermark closes, found from the panes that hold rows.

Called by the window operators and the window join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.eventtime.windows import TimeWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class WindowSizes(Protocol):
    """Windows with known bounds, in microseconds."""

    @property
    def size(self) -> int:
        """Their length; for cumulative windows that of the longest."""

    @property
    def slide(self) -> int:
        """Distance of window starts; unused for cumulative windows."""

    @property
    def offset(self) -> int:
        """The start of one of them."""

    @property
    def step(self) -> int:
        """For cumulative windows the distance of ends; else 0."""


def due_windows(config: WindowSizes, panes: Iterable[int], before: int, watermark: int) -> list[TimeWindow]:
    """Return the windows over these panes whose last microsecond is in (before, watermark], by their ends."""
    windows_of = _cumulative if config.step else _sliding
    due = {window for pane in panes for window in windows_of(config, pane, before, watermark)}
    return sorted(due, key=lambda window: (window.end, window.start))


def _sliding(config: WindowSizes, pane: int, before: int, watermark: int) -> Iterator[TimeWindow]:
    last = pane - (pane - config.offset) % config.slide
    first = last - (last - (pane - config.size) - 1) // config.slide * config.slide
    first = not_below(first, before - config.size + 2, config.slide)  # the first one that ends after `before`
    for start in range(first, min(last, watermark - config.size + 1) + 1, config.slide):
        yield TimeWindow(start, start + config.size)


def _cumulative(config: WindowSizes, pane: int, before: int, watermark: int) -> Iterator[TimeWindow]:
    start = pane - (pane - config.offset) % config.size
    first = not_below(pane + config.step, before + 2, config.step)
    for end in range(first, min(start + config.size, watermark + 1) + 1, config.step):
        yield TimeWindow(start, end)


def not_below(value: int, least: int, step: int) -> int:
    """Return the first of value, value + step... that is at least `least`."""
    return value if value >= least else value + -(-(least - value) // step) * step
