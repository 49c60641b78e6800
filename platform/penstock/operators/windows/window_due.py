"""Which windows with rows a watermark closes, found from the panes that hold rows.

Asked by the window operators and the window join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.eventtime.windows import TimeWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class WindowSizes(Protocol):
    """Windows whose bounds are known beforehand, in microseconds."""

    @property
    def size(self) -> int:
        """Their length; of cumulative ones the longest one's."""

    @property
    def slide(self) -> int:
        """From one window's start to the next one's; not looked at for cumulative windows."""

    @property
    def offset(self) -> int:
        """Where one of them begins."""

    @property
    def step(self) -> int:
        """Of cumulative windows, from one end to the next; else 0."""


def due_windows(config: WindowSizes, panes: Iterable[int], before: int, watermark: int) -> list[TimeWindow]:
    """Return the windows over these panes whose last microsecond lies in (before, watermark], by their ends."""
    windows_of = _cumulative if config.step else _sliding
    due = {window for pane in panes for window in windows_of(config, pane, before, watermark)}
    return sorted(due, key=lambda window: (window.end, window.start))


def _sliding(config: WindowSizes, pane: int, before: int, watermark: int) -> Iterator[TimeWindow]:
    last = pane - (pane - config.offset) % config.slide
    first = last - (last - (pane - config.size) - 1) // config.slide * config.slide
    first = not_below(first, before - config.size + 2, config.slide)  # one that ends after `before`
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
