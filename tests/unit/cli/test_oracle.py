"""The demo's judge must see every kind of fault, or its verdict is worth nothing."""

import numpy as np
import pytest

from penstock.cli.demo.demo_scenario import OutputRow, compare, expected_windows

_SIZE_US = 10_000_000
_USERS = np.array([1, 1, 2, 1], np.int64)
_AMOUNTS = np.array([5, 6, 7, 8], np.int64)
_TIMES = np.array([0, 9_999_999, 3, 10_000_000], np.int64)
_RIGHT: list[OutputRow] = [(1, 0, 2, 11), (2, 0, 1, 7), (1, 10_000_000, 1, 8)]


def test_windows_are_those_counted_by_hand() -> None:
    expected = expected_windows(_USERS, _AMOUNTS, _TIMES, _SIZE_US)
    assert expected == {(1, 0): (2, 11), (2, 0): (1, 7), (1, 10_000_000): (1, 8)}


def test_event_times_before_the_epoch_fall_into_the_window_below() -> None:
    expected = expected_windows(np.array([1]), np.array([1]), np.array([-1]), _SIZE_US)
    assert expected == {(1, -_SIZE_US): (1, 1)}


@pytest.mark.parametrize(
    ("output", "figures"),
    [
        (_RIGHT, (0, 0, 0)),
        (_RIGHT[:2], (1, 0, 0)),
        ([*_RIGHT, _RIGHT[0]], (0, 1, 0)),
        ([*_RIGHT[:2], (1, 10_000_000, 1, 9)], (0, 0, 1)),
        ([*_RIGHT, (9, 0, 1, 1)], (0, 0, 1)),
    ],
    ids=["exact", "missing", "duplicated", "wrong", "invented"],
)
def test_every_fault_is_seen(output: list[OutputRow], figures: tuple[int, int, int]) -> None:
    verdict = compare(expected_windows(_USERS, _AMOUNTS, _TIMES, _SIZE_US), output)
    assert (verdict.missing, verdict.duplicated, verdict.wrong) == figures
    assert verdict.exact == (figures == (0, 0, 0))
