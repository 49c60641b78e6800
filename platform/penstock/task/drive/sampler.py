"""Samples the call stacks of a worker's subtasks on request, in a thread that ends with the last request.

Made by `taskmanager.worker`, called by its control loop. A sample is taken between two instructions of other threads'
Python code: its cost is the time for which this thread holds the interpreter lock, which the answer includes.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from penstock.rpc.messages import SubtaskAnswer
from penstock.task.chain.failure import describe
from penstock.task.drive.stacks import ENGINE, OTHER, Folded, document, stack_of
from penstock.task.drive.state_queries import NOT_RUNNING
from penstock.task.drive.threads import RunLoop

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.rpc.worker_commands import SampleStacks
    from penstock.task.drive.subtask import Subtask

#: Requests served at a time; further ones are rejected.
MOST_OPEN = 16
#: Maximum duration and minimum interval of a request.
LONGEST_MS, SHORTEST_INTERVAL_MS = 8_000.0, 5.0
#: Share of the time since the last sample that a thread ran or waited for a processor, to be counted as on-CPU.
_ON_CPU = 0.5
_BELOW = frozenset((RunLoop._step.__code__, RunLoop._loop.__code__))  # noqa: SLF001 - frames inside are the subtask's
_OTHER = ((OTHER, ENGINE),)


@dataclass(slots=True)
class _Open:
    question: SampleStacks
    loops: tuple[RunLoop, ...]
    until_ms: float
    begun_ms: float
    seen: dict[int, Folded] = field(default_factory=dict)
    samples: int = 0
    cpu_ms: float = 0.0


@dataclass(slots=True)
class _Used:
    """Processor time of a thread at a moment."""

    cpu_ms: float
    at_ms: float
    on_cpu: bool = False


class StackSampler:
    """All open requests in this worker."""

    def __init__(
        self, loops: Callable[[], Iterable[RunLoop]], clock: Clock, send: Callable[[SubtaskAnswer], None]
    ) -> None:
        """Start without a thread; the caller of `ask` calls `loops`, the sampler's thread calls `send`."""
        self._loops, self._clock, self._send = loops, clock, send
        self._lock = threading.Lock()
        self._open: list[_Open] = []
        self._running = False
        #: By thread id of the kernel.
        self._used: dict[int, _Used] = {}

    def ask(self, question: SampleStacks) -> None:
        """Start sampling the subtasks of a vertex, or answer at once with the reason for a rejection."""
        loops = tuple(loop for loop in self._loops() if any(_is_of(s, question) for s in loop.seated))
        now = self._clock.monotonic_ms()
        with self._lock:
            full = len(self._open) >= MOST_OPEN
            if loops and not full:
                until_ms = now + min(question.duration_ms, LONGEST_MS)
                self._open.append(_Open(question, loops, until_ms, now))
            start = bool(self._open) and not self._running
            self._running = self._running or start
        if start:
            threading.Thread(target=self._run, name="ps-sampler", daemon=True).start()
        if full or not loops:
            self._refuse(question, f"{MOST_OPEN} flame graphs are being made in this worker" if full else NOT_RUNNING)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._open:
                    self._running = False
                    self._used.clear()
                    return
                serving = tuple(self._open)
            try:
                self._clock.sleep_ms(max(SHORTEST_INTERVAL_MS, min(o.question.interval_ms for o in serving)))
                self._look(serving)
            except Exception as error:  # noqa: BLE001 - an error of the sampler must not end the worker
                for asked in serving:
                    self._refuse(asked.question, describe(error)[0])
                with self._lock:
                    self._open = [asked for asked in self._open if asked not in serving]

    def _look(self, serving: tuple[_Open, ...]) -> None:
        begun, now = self._clock.cpu_ms(), self._clock.monotonic_ms()
        loops = {id(loop): loop for asked in serving for loop in asked.loops}
        for loop in loops.values():
            self._measure(loop, now)
        frames = sys._current_frames()  # noqa: SLF001 - the only access to another thread's stack
        for asked in serving:
            for loop in asked.loops:
                self._sample(asked, loop, frames)
            asked.samples += 1
        del frames  # frames keep the subtasks' objects alive
        spent = self._clock.cpu_ms() - begun
        for asked in serving:
            asked.cpu_ms += spent
            if now >= asked.until_ms:
                self._answer(asked, now)

    def _measure(self, loop: RunLoop, now: float) -> None:
        tid = loop.thread.native_id if loop.thread is not None else None
        if tid is None or (used := runnable_ms(tid)) is None:
            return
        before = self._used.get(tid)
        elapsed = now - before.at_ms if before is not None else 0.0
        on_cpu = before is not None and elapsed > 0 and used - before.cpu_ms >= _ON_CPU * elapsed
        self._used[tid] = _Used(used, now, on_cpu)

    def _sample(self, asked: _Open, loop: RunLoop, frames: dict[int, FrameType]) -> None:
        thread, at_work = loop.thread, loop.at_work
        if thread is None or thread.ident not in frames:
            return
        stack = stack_of(frames[thread.ident], _BELOW)
        used = self._used.get(thread.native_id or 0)
        for subtask in loop.seated:
            if not _is_of(subtask, asked.question):
                continue
            folded = asked.seen.setdefault(subtask.deployment.execution.subtask, Folded())
            if at_work is None or at_work is subtask:
                folded.add(stack, on_cpu=used is not None and used.on_cpu)
            else:
                folded.add(_OTHER, on_cpu=False)

    def _answer(self, asked: _Open, now: float) -> None:
        with self._lock:
            self._open.remove(asked)
        found = {
            **document(asked.seen),
            "samples": asked.samples,
            "wall-ms": now - asked.begun_ms,
            "cpu-ms": asked.cpu_ms,
        }
        question = asked.question
        self._send(SubtaskAnswer(job_id=question.job_id, request_id=question.request_id, answer=found))

    def _refuse(self, question: SampleStacks, problem: str) -> None:
        self._send(SubtaskAnswer(job_id=question.job_id, request_id=question.request_id, error=problem))


def runnable_ms(tid: int) -> float | None:
    """Return how long a thread of this process ran or waited for a processor; None: it has ended.

    Waiting for the interpreter's lock, a lock or a socket is neither.
    """
    with contextlib.suppress(OSError, ValueError):
        ran, waited = Path(f"/proc/self/task/{tid}/schedstat").read_text(encoding="ascii").split()[:2]
        return (int(ran) + int(waited)) / 1e6
    return None


def _is_of(subtask: Subtask, question: SampleStacks) -> bool:
    deployment = subtask.deployment
    return bool(deployment.job_id == question.job_id and deployment.execution.vertex_id == question.vertex_id)
