"""Window arithmetic against its definition."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import GraphError
from penstock.eventtime.windows import (
    TimeWindow,
    is_late,
    pane_size,
    sliding_windows,
    tumbling_window,
    validate_window,
)

times = st.integers(-(10**15), 10**15)
sizes = st.integers(1, 10**9)


def test_windows_before_1970_floor():
    assert tumbling_window(-1, 10) == TimeWindow(-10, 0)
    assert tumbling_window(0, 10) == TimeWindow(0, 10)
    assert tumbling_window(3, 10, offset=4) == TimeWindow(-6, 4)


@given(times, sizes, st.integers(-(10**6), 10**6))
def test_a_tumbling_window_holds_its_timestamp_and_is_aligned(timestamp, size, offset):
    window = tumbling_window(timestamp, size, offset)
    assert window.start <= timestamp < window.end
    assert window.end - window.start == size
    assert (window.start - offset) % size == 0


@given(times, st.integers(1, 1000), st.integers(1, 1000), st.integers(-50, 50))
def test_sliding_windows_are_all_aligned_windows_that_hold_the_timestamp(timestamp, size, slide, offset):
    found = [window.start for window in sliding_windows(timestamp, size, slide, offset)]
    expected = [start for start in range(timestamp - size + 1, timestamp + 1) if (start - offset) % slide == 0]
    assert found == expected


@given(sizes, sizes)
def test_panes_divide_both(size, slide):
    assert pane_size(size, slide) == math.gcd(size, slide)


def test_a_row_is_late_once_the_watermark_has_reached_the_last_instant():
    window = TimeWindow(0, 10)
    assert not is_late(window, 8)
    assert is_late(window, 9)
    assert not is_late(window, 9, allowed_lateness=1)


def test_senseless_windows_are_refused():
    validate_window(10, None, offset=-9)
    for size, slide, offset in ((0, None, 0), (10, 0, 0), (10, None, 10), (10, 5, 5)):
        with pytest.raises(GraphError):
            validate_window(size, slide, offset)
