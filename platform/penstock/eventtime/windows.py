"""The windows that a timestamp belongs to, as plain integer functions (microseconds).

Used by graph validation, by the naive model that tests compare operators with, and by code that needs one window's
bounds. The compiled operators have a vectorised form of the same arithmetic; property tests compare both.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.errors import GraphError


class TimeWindow(NamedTuple):
    """A half-open interval of event time, [start, end)."""

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """Return the largest timestamp inside; the window fires when the watermark has reached it."""
        return self.end - 1


def tumbling_start(timestamp: int, size: int, offset: int = 0) -> int:
    """Return the start of the tumbling window that holds `timestamp`; floors, also before 1970."""
    return timestamp - (timestamp - offset) % size


def tumbling_window(timestamp: int, size: int, offset: int = 0) -> TimeWindow:
    """Return the one tumbling window that holds `timestamp`."""
    start = tumbling_start(timestamp, size, offset)
    return TimeWindow(start, start + size)


def sliding_windows(timestamp: int, size: int, slide: int, offset: int = 0) -> tuple[TimeWindow, ...]:
    """Return all sliding windows that hold `timestamp`, earliest first.

    Returns none if it falls into a gap (slide > size).
    """
    last = tumbling_start(timestamp, slide, offset)
    first = last - (size - 1) // slide * slide
    return tuple(TimeWindow(s, s + size) for s in range(first, last + 1, slide) if s <= timestamp < s + size)


def cumulative_windows(timestamp: int, step: int, size: int, offset: int = 0) -> tuple[TimeWindow, ...]:
    """Return all cumulative windows that hold `timestamp`, the shortest first.

    A group of windows begins every `size`. Its windows end every `step` from there, until the last one is `size` long.
    """
    start = tumbling_start(timestamp, size, offset)
    first = start + ((timestamp - start) // step + 1) * step
    return tuple(TimeWindow(start, end) for end in range(first, start + size + 1, step))


def pane_size(size: int, slide: int) -> int:
    """Return the length of the panes that sliding windows share: the greatest common divisor."""
    while slide:
        size, slide = slide, size % slide
    return size


def is_late(window: TimeWindow, watermark: int, allowed_lateness: int = 0) -> bool:
    """Return whether a row of `window` that arrives now is late: the window's state is already removed."""
    return window.max_timestamp + allowed_lateness <= watermark


def validate_window(size: int, slide: int | None, offset: int = 0) -> None:
    """Check the numbers of a tumbling (`slide` None) or sliding window, in microseconds.

    Raises:
        GraphError: not positive, or an offset outside one step.
    """
    step = size if slide is None else slide
    if size <= 0 or step <= 0:
        msg = f"a window needs a positive size and slide, not {size} and {step} us"
        raise GraphError(msg, hint="write for example ps.Tumbling('10s') or ps.Sliding('1m', '10s')")
    if abs(offset) >= step:
        msg = f"a window's offset ({offset} us) must be smaller than its step ({step} us)"
        raise GraphError(msg, hint="use the remainder: offset modulo size (tumbling, cumulative) or slide (sliding)")


def validate_cumulative(step: int, size: int, offset: int = 0) -> None:
    """Check the numbers of a cumulative window, in microseconds.

    Raises:
        GraphError: not positive, a size that is not a multiple of the step, or an offset outside the size.
    """
    validate_window(size, None, offset)
    if step <= 0 or size % step:
        msg = f"cumulative windows up to {size} us cannot end every {step} us"
        raise GraphError(msg, hint="the largest size is a multiple of the step: ps.Cumulative('1h', '1d')")
