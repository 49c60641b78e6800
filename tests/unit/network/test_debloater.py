"""The window of a gate follows what its subtask processes in the target time."""

import pytest

from penstock.core.clock import ManualClock
from penstock.network.debloater import Debloater

FULL = 2 << 20


class Task:
    """A subtask that processes `rate` bytes a millisecond, a batch of `batch_ms` at a time."""

    def __init__(self, channels=1, target_ms=2_000):
        self.clock = ManualClock()
        self.debloater = Debloater(target_ms, channels, FULL, self.clock)
        self.bytes_in = 0
        self.windows = []

    def poll(self, *, idle):
        window = self.debloater.polled(self.bytes_in, idle=idle)
        if window is not None:
            self.windows.append(window)

    def work(self, rate, batch_ms=50, batches=100):
        for _ in range(batches):
            self.poll(idle=False)
            self.bytes_in += int(rate * batch_ms)
            self.clock.advance(batch_ms)
        self.poll(idle=True)
        return self.debloater.window


def test_a_subtask_has_a_small_window_before_it_is_measured():
    assert Task().debloater.window == 4 << 10


@pytest.mark.parametrize(
    ("rate", "channels", "window"), [(10, 1, 10_000), (10, 4, 2_500), (0, 1, 1024), (10**6, 1, FULL)]
)
def test_the_window_holds_the_rows_of_the_target_time_within_its_bounds(rate, channels, window):
    assert Task(channels).work(rate) == pytest.approx(window, rel=0.01)


def test_one_batch_that_takes_long_counts_for_its_whole_time():
    task = Task()
    task.work(rate=1_000)
    assert task.work(rate=2, batch_ms=10_000, batches=2) == 2_000


def test_time_without_rows_does_not_count():
    task = Task()
    for _ in range(200):
        task.work(rate=20, batch_ms=1, batches=2)
        task.clock.advance(500)
    assert task.debloater.window == 20_000


def test_small_changes_are_not_announced():
    task = Task()
    task.work(rate=100)
    task.windows.clear()
    task.work(rate=115)
    assert task.windows == []
    task.work(rate=300)
    assert task.windows[-1] == pytest.approx(300_000, rel=0.25)
