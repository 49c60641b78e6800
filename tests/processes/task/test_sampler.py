"""Samples of run loops that really run: where the time goes, whose frames, on a processor or not; and what it costs."""

import gc
import queue
import threading
import weakref
from types import SimpleNamespace

import pytest
from tests.support.waiting import wait_until

from penstock.core.clock import SystemClock
from penstock.rpc.messages import SampleStacks
from penstock.task.drive import stack_sampler as module
from penstock.task.drive.stack_sampler import OTHER, StackSampler
from penstock.task.drive.state_queries import NOT_RUNNING
from penstock.task.drive.subtask import StepResult
from penstock.task.drive.threads import RunLoop

SECONDS = 60


class Stepping:
    """A subtask of which the loop and the sampler see what they look at; `work` is one step of it."""

    def __init__(self, index, work, vertex="v"):
        execution = SimpleNamespace(vertex_id=vertex, subtask=index)
        self.deployment = SimpleNamespace(job_id="job", execution=execution)
        self.work, self.has_ended, self.ended = work, False, threading.Event()

    def step(self):
        if self.ended.is_set():
            self.has_ended = True
            return StepResult.DONE
        return self.work()

    def next_deadline_ms(self):
        return SystemClock().monotonic_ms() + 50


def computes():
    sum(number * number for number in range(20_000))
    return StepResult.BUSY


def waits():
    threading.Event().wait(0.1)
    return StepResult.BUSY


def idles():
    return StepResult.IDLE


class Worker:
    """Some loops with a sampler; answers come into a queue."""

    def __init__(self):
        self.loops, self.subtasks, self.answers = [], [], queue.Queue()
        self.sampler = StackSampler(lambda: self.loops, SystemClock(), self.answers.put)

    def seat(self, *subtasks):
        loop = RunLoop("ps-t", SystemClock())
        self.loops.append(loop)
        for subtask in subtasks:
            self.subtasks.append(subtask)
            loop.run(subtask)
        while len(loop.subtasks) < len(subtasks):
            SystemClock().sleep_ms(1)

    def ask(self, vertex="v", duration_ms=600.0, request="1"):
        self.sampler.ask(
            SampleStacks(job_id="job", request_id=request, vertex_id=vertex, duration_ms=duration_ms, interval_ms=10.0)
        )

    def seen(self, **options):
        """Return the answer's samples: (subtask, stack of names, on, off), and the answer itself."""
        self.ask(**options)
        answer = self.answers.get(timeout=SECONDS)
        assert not answer.error
        found = answer.answer
        return [
            (int(subtask), [found["frames"][i] for i in stack], on, off)
            for subtask, stacks in found["subtasks"].items()
            for stack, on, off in stacks
        ], found


@pytest.fixture
def worker():
    made = Worker()
    yield made
    for subtask in made.subtasks:
        subtask.ended.set()
    for loop in made.loops:
        loop.wake()
        loop.thread.join(SECONDS)


def total(samples, name, place):
    return sum(sample[place] for sample in samples if any(name in frame for frame, _ in sample[1]))


def test_a_function_that_computes_is_seen_on_a_processor_and_is_the_users(worker):
    worker.seat(Stepping(0, computes))
    samples, answer = worker.seen()
    counted = sum(on + off for _, _, on, off in samples)
    assert 0 < counted <= answer["samples"]
    assert total(samples, "computes", 2) > 0.6 * counted
    (whose,) = {whose for _, stack, _, _ in samples for name, whose in stack if name.startswith("computes ")}
    assert whose == "user"
    inside = [stack for _, stack, _, _ in samples if any(name.startswith("computes ") for name, _ in stack)]
    assert all(stack[0][0].startswith("Stepping.step ") for stack in inside), "cut at the subtask"
    assert 0 < answer["cpu-ms"] < answer["wall-ms"]


def test_a_function_that_waits_is_seen_off_the_processor(worker):
    worker.seat(Stepping(0, waits))
    samples, _ = worker.seen()
    on, off = total(samples, "waits", 2), total(samples, "waits", 3)
    assert off > on, "on a loaded machine it is ready, and not running yet, for a while after each wait"


def test_a_subtask_without_work_waits_in_its_loop(worker):
    worker.seat(Stepping(0, idles))
    samples, _ = worker.seen()
    assert total(samples, "RunLoop._wait", 3) > 0.8 * sum(on + off for _, _, on, off in samples)


def test_of_two_in_one_thread_one_is_told_to_wait_for_the_other(worker):
    worker.seat(Stepping(0, computes), Stepping(1, idles, vertex="w"))
    samples, _ = worker.seen(vertex="w")
    assert {subtask for subtask, *_ in samples} == {1}
    assert total(samples, OTHER, 3) > 0.6 * sum(on + off for _, _, on, off in samples)
    assert not total(samples, "computes", 2), "what the other one does is not this one's"


def test_the_sampler_is_gone_when_nobody_asks(worker):
    worker.seat(Stepping(0, idles))
    worker.seen(duration_ms=30.0)
    for _ in range(SECONDS * 100):
        if not any(thread.name == "ps-sampler" for thread in threading.enumerate()):
            return
        SystemClock().sleep_ms(10)
    raise AssertionError("its thread goes on")


def test_what_does_not_run_and_what_is_too_much_is_refused(worker):
    worker.ask(vertex="other")
    assert worker.answers.get(timeout=SECONDS).error == NOT_RUNNING
    worker.seat(Stepping(0, idles))
    for number in range(module.MOST_OPEN + 1):
        worker.ask(duration_ms=300.0, request=str(number))
    refused = worker.answers.get(timeout=SECONDS)
    assert "16 flame graphs are being made" in refused.error
    assert refused.request_id == "16"
    assert {worker.answers.get(timeout=SECONDS).error for _ in range(module.MOST_OPEN)} == {""}


def test_a_fault_of_the_sampler_is_its_answer(worker, monkeypatch):
    def broken(*_):
        raise RuntimeError("no frames today")

    monkeypatch.setattr(module, "stack_of", broken)
    worker.seat(Stepping(0, idles))
    worker.ask()
    assert "no frames today" in worker.answers.get(timeout=SECONDS).error


def test_a_fault_of_the_sampler_keeps_no_memory_of_a_step(worker, monkeypatch):
    begun, answered, known = threading.Event(), threading.Event(), []

    def broken(*_):
        raise RuntimeError("no frames today")

    def holds():
        held = Stepping(1, idles)
        known.append(weakref.ref(held))
        begun.set()
        assert answered.wait(SECONDS)
        return held.work()

    monkeypatch.setattr(module, "stack_of", broken)
    gc.disable()  # a worker may collect no cycle for minutes
    try:
        worker.seat(subtask := Stepping(0, holds))
        assert begun.wait(SECONDS)
        worker.ask()
        assert worker.answers.get(timeout=SECONDS).error
        subtask.ended.set()
        answered.set()
        wait_until(lambda: known[0]() is None, "the step's objects freed", seconds=SECONDS)
    finally:
        gc.enable()
