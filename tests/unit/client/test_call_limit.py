"""The timeout of a call in this thread, and the line about a call that lasts."""

import signal
import threading

import pytest

from penstock.client.call_limit import CallLimit
from penstock.core.errors import PenstockError, UsageError


def worked(until):
    while not until():
        pass


class Other:
    """Another tool's timer of the process, such as that of pytest-timeout."""

    def __init__(self):
        self.called = 0

    def __call__(self, number, frame):
        self.called += 1


@pytest.fixture
def other():
    tool = Other()
    before = signal.signal(signal.SIGALRM, tool)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    yield tool
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def test_a_timer_of_another_tool_fires_during_a_call_and_keeps_its_handler(other):
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    with CallLimit("totals", 20_000.0, tuple).watched():
        worked(lambda: other.called)
    assert signal.getsignal(signal.SIGALRM) is other
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_timer_of_another_tool_runs_on_after_a_call(other):
    signal.setitimer(signal.ITIMER_REAL, 50)
    with CallLimit("totals", 20_000.0, tuple).watched():
        pass
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
    assert signal.getsignal(signal.SIGALRM) is other


def test_a_call_inside_a_call_has_the_time_of_the_outer_one():
    limit = CallLimit("totals", 10.0, tuple)

    def endless():
        with limit.watched():
            with limit.watched():
                pass
            worked(lambda: False)

    with pytest.raises(PenstockError, match=r"^job totals did not end its work within 0\.01 s: in no operator, at "):
        endless()


def test_a_timeout_outside_the_main_thread_is_refused_and_its_absence_is_not():
    found = []

    def run():
        with CallLimit("totals", None, tuple).watched():
            found.append("ran")
        try:
            with CallLimit("totals", 10.0, tuple).watched():
                found.append("ran")
        except UsageError as error:
            found.append(error.message)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["ran", "timeout= has no effect outside the main thread"]
