"""Run loops and background threads."""

import threading

import pytest

from penstock.core.clock import SystemClock
from penstock.task.drive.subtask import StepResult
from penstock.task.drive.threads import RunLoop, ThreadBackground

SECONDS = 60


class Stepper:
    """A subtask of which only the loop's view exists."""

    def __init__(self, script, deadline_ms=None):
        self.script = list(script)
        self.clock = SystemClock()
        self.deadline_ms = deadline_ms
        self.threads = set()
        self.steps = 0
        self.done = threading.Event()
        self.idle = threading.Event()
        self.has_ended = False

    def step(self):
        self.steps += 1
        self.threads.add(threading.get_ident())
        result = self.script.pop(0) if self.script else StepResult.IDLE
        if result is StepResult.DONE:
            self.has_ended = True
            self.done.set()
        if result is StepResult.IDLE:
            self.idle.set()
        return result

    def next_deadline_ms(self):
        return self.clock.monotonic_ms() + (1e9 if self.deadline_ms is None else self.deadline_ms)


def test_two_subtasks_of_one_loop_are_stepped_in_turn_by_one_thread():
    loop = RunLoop("t", SystemClock())
    one, two = (Stepper([StepResult.BUSY] * 5 + [StepResult.DONE]) for _ in range(2))
    loop.run(one)
    loop.run(two)
    assert one.done.wait(SECONDS)
    assert two.done.wait(SECONDS)
    assert len(one.threads | two.threads) <= 2  # the loop may have ended between the two
    assert one.steps == two.steps == 6


def test_an_idle_loop_sleeps_until_it_is_woken():
    loop = RunLoop("t", SystemClock())
    stepper = Stepper([StepResult.BUSY, StepResult.IDLE])
    loop.run(stepper)
    assert stepper.idle.wait(SECONDS)
    stepper.script.append(StepResult.DONE)
    loop.wake()
    assert stepper.done.wait(SECONDS)
    assert stepper.steps <= 5


def test_a_deadline_wakes_the_loop():
    loop = RunLoop("t", SystemClock())
    stepper = Stepper([StepResult.IDLE, StepResult.IDLE, StepResult.DONE], deadline_ms=5)
    loop.run(stepper)
    assert stepper.done.wait(SECONDS)


def test_background_work_hands_back_results_and_errors():
    background = ThreadBackground("t", 2)
    came, all_came = [], threading.Event()

    def done(result, error):
        came.append(result if error is None else type(error))
        if len(came) == 4:
            all_came.set()

    for divisor in (1, 2, 0, 4):
        background.submit(lambda divisor=divisor: 4 // divisor, done)
    assert all_came.wait(SECONDS)
    assert sorted(came, key=str) == sorted([4, 2, ZeroDivisionError, 1], key=str)


@pytest.mark.parametrize("threads", [1, 3])
def test_background_threads_are_bounded(threads):
    background = ThreadBackground("t", threads)
    barrier, release, seen = threading.Semaphore(0), threading.Event(), set()

    def work():
        seen.add(threading.get_ident())
        barrier.release()
        release.wait(SECONDS)

    finished = threading.Semaphore(0)
    for _ in range(6):
        background.submit(work, lambda _result, _error: finished.release())
    for _ in range(threads):
        assert barrier.acquire(timeout=SECONDS)
    assert len(seen) == threads
    release.set()
    for _ in range(6):
        assert finished.acquire(timeout=SECONDS)
    assert len(seen) == threads


def test_background_work_does_not_wait_behind_work_that_blocks_while_a_thread_is_allowed(monkeypatch):
    """Also when it comes just as the only thread has taken the other piece and has not said so yet."""
    background = ThreadBackground("test", 2)
    get, taken, go_on, second_ran = background._queue.get, threading.Event(), threading.Event(), threading.Event()

    def slow_get():
        item = get()
        taken.set()
        go_on.wait(SECONDS)
        return item

    monkeypatch.setattr(background._queue, "get", slow_get)
    found = []
    ended = threading.Event()
    background.submit(lambda: second_ran.wait(SECONDS), lambda result, _: (found.append(result), ended.set()))
    assert taken.wait(SECONDS)
    background.submit(second_ran.set, lambda *_: None)
    go_on.set()
    assert ended.wait(SECONDS)
    assert found == [True]
