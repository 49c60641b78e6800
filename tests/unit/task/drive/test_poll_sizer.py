"""A source in front of columns alone is asked for more rows while these are cheap."""

from types import SimpleNamespace

import pytest

from penstock.core.clock import ManualClock
from penstock.task.drive.source_polling import LEAST_ROWS, MOST_ROWS, TARGET_MS, PollSizer, is_columnar, poll


def test_more_rows_are_asked_for_while_they_stay_within_the_time():
    polls = PollSizer()
    polls.measured(LEAST_ROWS, TARGET_MS / 2)
    assert polls.rows == MOST_ROWS == 2 * LEAST_ROWS
    polls.measured(MOST_ROWS, 0.1)
    assert polls.rows == MOST_ROWS


def test_a_batch_that_takes_long_is_followed_by_a_smaller_one():
    polls = PollSizer()
    polls.measured(LEAST_ROWS, TARGET_MS / 2 + 0.1)
    assert polls.rows == LEAST_ROWS, "twice as many would take too long"
    polls.measured(LEAST_ROWS, 0.1)
    polls.measured(MOST_ROWS, 1.5 * TARGET_MS)
    assert polls.rows == MOST_ROWS, "once is no habit"
    polls.measured(MOST_ROWS, 2 * TARGET_MS + 0.1)
    assert polls.rows == LEAST_ROWS
    polls.measured(LEAST_ROWS, 1000)
    assert polls.rows == LEAST_ROWS


def test_a_poll_that_gave_less_than_asked_for_says_nothing():
    polls = PollSizer()
    polls.measured(LEAST_ROWS - 1, 0.1)
    assert polls.rows == LEAST_ROWS


@pytest.mark.parametrize(
    ("kinds", "alone"),
    [
        (["source", "sink"], True),
        (["source", "project", "project", "sink"], True),
        (["source", "project"], True),
        (["source", "map", "sink"], False),
        (["source", "assign_watermarks", "sink"], False),
        (["project", "sink"], False),
        (["source"], True),
        (["source", "project", "window_aggregate"], False),
    ],
)
def test_only_columns_behind_a_source(kinds, alone):
    assert is_columnar(kinds) is alone


def test_the_source_is_asked_for_them():
    clock = ManualClock()
    link = SimpleNamespace(source=SimpleNamespace(poll_rows=None), records_out=0)
    asked = []

    def emits(*, backpressured):
        assert not backpressured
        asked.append(link.source.poll_rows)
        link.records_out += link.source.poll_rows
        clock.advance(measured)
        return True

    chain, limit = SimpleNamespace(links=[link], poll=emits), PollSizer()
    measured = 1.0
    assert poll(chain, limit, clock)
    measured = 100.0
    assert poll(chain, limit, clock)
    assert poll(chain, limit, clock)
    assert asked == [LEAST_ROWS, MOST_ROWS, LEAST_ROWS]
