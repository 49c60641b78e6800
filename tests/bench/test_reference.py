"""The reference answer of the window benchmark is what counting row by row gives."""

import pytest

from penstock_lab.bench.measuring import reference


def by_hand(count, size, slide):
    """w1 row by row."""
    cells = {}
    for key, amount, time in zip(*(column.tolist() for column in reference.events(0, count)), strict=True):
        last = time // slide * slide
        for start in range(last - size + slide, last + 1, slide):
            n, total = cells.get((key, start + size), (0, 0))
            cells[key, start + size] = n + 1, total + amount
    cut = reference.last_sure_window(count, slide)
    result = [0, 0, 0, 0]
    for (key, end), (n, total) in cells.items():
        if end <= cut:
            check = ((key * 31 + (end - reference.T0_MS) // slide * 17 + n) * (total + 7)) % 1_000_000_007
            result = [a + b for a, b in zip(result, (1, n, total, check), strict=True)]
    return ":".join(map(str, result))


@pytest.mark.parametrize(("size", "slide"), [pytest.param(100, 100, marks=pytest.mark.nightly), (300, 100)])
def test_the_reference_is_what_counting_row_by_row_gives(size, slide):
    count = 560_000
    assert reference.last_sure_window(count, slide) > reference.T0_MS
    assert reference.windows(count, size, slide, users=reference.Users(piece=7001)) == by_hand(count, size, slide)
