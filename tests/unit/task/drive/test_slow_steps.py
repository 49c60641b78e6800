"""Steps that are long in the user's code: when they are slow calls, where they are, and when they have ended."""

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.core.clock import ManualClock
from penstock.rpc.messages import SlowCall
from penstock.task.chain.background import SLOW_MS, SlowCalls
from penstock.task.drive import stack_sampler
from penstock.task.drive.slow_steps import SlowSteps
from penstock.task.drive.stack_sampler import user_frame
from penstock.task.drive.threads import RunLoop


def of_a_thread(function):
    """Return the result of a function that a thread runs: a frame with no frame of this module outside."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def lookup():
    return sys._getframe()


#: The frame of a function in a file of penstock.
ENGINE_FRAME = of_a_thread(eval(compile("lambda: __import__('sys')._getframe()", stack_sampler.__file__, "eval")))  # noqa: S307


class Worker:
    """One loop with a subtask whose thread is at a given frame."""

    def __init__(self):
        self.clock = ManualClock()
        self.calls = SlowCalls(self.clock)
        self.frame = of_a_thread(lookup)
        execution = SimpleNamespace(subtask=1)
        deployment = SimpleNamespace(job_id="job", vertex_name="map-3 -> out", execution=execution)
        self.subtask = SimpleNamespace(deployment=deployment, running_operator=SimpleNamespace(uid="map-3"))
        self.loop = RunLoop("t", self.clock)
        self.loop.thread = threading.current_thread()
        self.steps = SlowSteps(lambda: [self.loop], self.clock, self.calls, frames=self.frames)

    def frames(self):
        return {threading.get_ident(): self.frame}

    def begin(self):
        self.loop.step_begun_ms = self.clock.monotonic_ms()
        self.loop.current_subtask = self.subtask

    def slow(self):
        self.steps.look()
        return self.calls.slow().get("job", ())


@pytest.fixture
def worker():
    return Worker()


def test_a_step_in_the_users_code_is_slow_from_five_seconds_to_its_end(worker, caplog):
    worker.begin()
    worker.clock.advance(SLOW_MS - 1)
    assert worker.slow() == ()
    worker.clock.advance(1)
    at = f"test_slow_steps.py:{worker.frame.f_lineno} in lookup"
    assert worker.slow() == (SlowCall(number=1, what="operator 'map-3' (1)", for_ms=SLOW_MS, at=at),)
    worker.clock.advance(18_000)
    (call,) = worker.slow()
    assert (call.number, call.for_ms) == (1, 23_000)
    worker.loop.current_subtask = None
    worker.clock.advance(1_000)
    assert worker.slow() == ()
    assert [record.getMessage() for record in caplog.records] == [
        f"operator 'map-3' (1) has been in one call for 5 s, at {at}",
        f"slow call ended after 24 s: operator 'map-3' (1), at {at}",
    ]


def test_the_next_long_step_is_another_call(worker):
    worker.begin()
    worker.clock.advance(SLOW_MS)
    assert worker.slow()[0].number == 1
    worker.begin()
    assert worker.slow() == ()
    worker.clock.advance(SLOW_MS)
    assert [(call.number, call.for_ms) for call in worker.slow()] == [(2, SLOW_MS)]


def test_a_long_step_without_the_users_code_is_no_slow_call(worker):
    worker.frame = ENGINE_FRAME
    worker.begin()
    worker.clock.advance(60_000)
    assert worker.slow() == ()


def test_a_slow_call_keeps_its_last_place_and_moves_with_the_user_code(worker):
    worker.begin()
    worker.clock.advance(SLOW_MS)
    (first,) = worker.slow()
    worker.frame = ENGINE_FRAME
    assert worker.slow()[0].at == first.at
    worker.frame = of_a_thread(lambda: sys._getframe())
    (moved,) = worker.slow()
    assert moved.number == first.number
    assert moved.at.endswith(" in <lambda>")


def test_between_two_operators_the_chain_is_named(worker):
    worker.subtask.running_operator = None
    worker.begin()
    worker.clock.advance(SLOW_MS)
    assert worker.slow()[0].what == "chain 'map-3 -> out' (1)"


def test_a_step_that_ends_during_the_look_is_not_taken_for_the_next_one(worker):
    worker.begin()
    worker.clock.advance(SLOW_MS)
    taken = worker.frames

    def next_step():
        worker.begin()
        return taken()

    worker.steps._frames = next_step
    assert worker.slow() == ()


@pytest.fixture
def no_collection():
    """Free only what has no reference: a worker may collect no cycle for minutes."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_look_at_a_long_step_keeps_no_memory_of_the_step(worker):
    begun, looked, known = threading.Event(), threading.Event(), []

    def step():
        array = np.zeros(1000)
        known.append(weakref.ref(array))
        begun.set()
        assert looked.wait(60)
        return array.sum()

    steps = SlowSteps(lambda: [worker.loop], worker.clock, worker.calls)
    worker.loop.thread = threading.Thread(target=step)
    worker.loop.thread.start()
    assert begun.wait(60)
    worker.begin()
    worker.clock.advance(SLOW_MS)
    steps.look()
    assert [call.what for call in worker.calls.slow()["job"]] == ["operator 'map-3' (1)"]
    looked.set()
    worker.loop.thread.join(60)
    assert known[0]() is None


def test_the_users_frame_is_the_innermost_one_in_a_file():
    def calls():
        return eval("__import__('sys')._getframe()")  # noqa: S307 - code without a file

    frame = calls()
    assert frame.f_code.co_filename == "<string>"
    found = user_frame(frame, ())
    assert found is not None
    assert found.f_code is calls.__code__
    assert user_frame(frame, (frame.f_back.f_code,)) is frame
    assert user_frame(None, ()) is None
