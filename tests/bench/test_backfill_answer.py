"""The check of the backfill's bench finds each wrong row, and takes no open session for a missing one."""

import polars as pl
import pytest
from tests.bench.backfill_answer import compare, last_watermark

from penstock_connectors.datagen.source import OrderPattern, orders

COLUMNS = ("user_id", "window_start", "window_end", "n")
WATERMARK = 10_000_000
#: A long open session, then two closed ones that began later: the last ends where the watermark is.
ROWS = [(1, 2_000_000, 10_000_002, 90), (2, 9_000_000, 9_400_000, 3), (3, 9_800_000, 10_000_001, 1)]


def compared(staged, every=ROWS):
    frames = (pl.DataFrame(rows, schema=COLUMNS, orient="row") for rows in (staged, every))
    return compare(*frames, COLUMNS, pl.col("window_end"), WATERMARK)


def test_an_open_session_may_be_longer_than_any_bound():
    assert compared(ROWS[1:]) == {"rows": 2, "open": 1}


@pytest.mark.parametrize(
    ("staged", "message"),
    [
        (ROWS[1:2], "1 complete rows are missing: {'user_id': 3"),
        (ROWS, "1 rows are not plain Spark's, or open: {'user_id': 1"),
        ([*ROWS[1:], ROWS[2]], "1 rows are not plain Spark's, or open: {'user_id': 3"),
        ([ROWS[1], (3, 9_800_000, 10_000_001, 2)], "1 rows are not plain Spark's, or open: {'user_id': 3"),
    ],
    ids=["closed and missing", "open", "twice", "another count"],
)
def test_a_wrong_answer_fails(staged, message):
    with pytest.raises(AssertionError, match=f"^{message}"):
        compared(staged)


def test_an_input_that_closes_no_window_is_no_check():
    with pytest.raises(AssertionError, match=r"^the input closes no window"):
        compared([], ROWS[:1])


def test_the_watermark_is_that_of_the_slowest_split():
    pattern = OrderPattern(splits=3, users=40, event_rate=100_000, disorder_ms=400)
    counts = [4_000, 2_000, 3_000]
    times = [
        max(orders(pattern, split, 0, count).column("ts").cast("int64").to_pylist())
        for split, count in enumerate(counts)
    ]
    assert min(times) == times[1]
    assert last_watermark(pattern, counts) == times[1] - 500_001
