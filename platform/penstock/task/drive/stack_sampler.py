"""Samples the call stacks of a worker's subtasks on request, and folds them into counts.

Made by `taskmanager.worker`; `rest.diagnose.flame_graph` combines the answers to a flame graph. The thread ends
with the last request.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from penstock.rpc.messages import SubtaskAnswer
from penstock.task.chain.failure import describe, is_engine, is_library_code
from penstock.task.drive.state_queries import NOT_RUNNING
from penstock.task.drive.threads import RunLoop

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.rpc.messages import SampleStacks
    from penstock.task.drive.subtask import Subtask

#: Maximum number of reported frames of a stack, the innermost ones.
MOST_FRAMES = 100
#: Reported for a subtask whose thread steps another one.
OTHER = "(another subtask steps in this thread)"
#: The owner of a frame.
USER, LIBRARY, ENGINE = "user", "library", "engine"

#: (name, owner) of one frame; outermost first in a stack.
Frame = tuple[str, str]


def stack_of(innermost: FrameType | None, below: Collection[CodeType]) -> tuple[Frame, ...]:
    """Return the frames inside the innermost one of any code in `below`, outermost first; all if there is none."""
    frames: list[Frame] = []
    for frame in _outer_frames(innermost):
        if frame.f_code in below:
            break
        frames.append(_named(frame.f_code, frame.f_lineno))
    return tuple(reversed(frames[:MOST_FRAMES]))


def user_frame(innermost: FrameType | None, below: Collection[CodeType]) -> FrameType | None:
    """Return the innermost frame of the user's code inside any code in `below`; None if there is none.

    A frame in a file comes before one of code without a file, which a library may have generated.
    """
    generated = None
    for frame in _outer_frames(innermost):
        if frame.f_code in below:
            break
        if _owner_of(frame.f_code.co_filename) == USER:
            if not frame.f_code.co_filename.startswith("<"):
                return frame
            generated = generated or frame
    return generated


def _outer_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@lru_cache(maxsize=20_000)
def _named(code: CodeType, line: int) -> Frame:
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{line})", _owner_of(code.co_filename)


@lru_cache(maxsize=2_000)
def _owner_of(filename: str) -> str:
    if is_engine(filename):
        return ENGINE
    return LIBRARY if is_library_code(filename) else USER


class FoldedStacks:
    """Stacks of one subtask with their counts, on a processor and off it."""

    def __init__(self) -> None:
        """Start without samples."""
        self._counts: dict[tuple[Frame, ...], list[int]] = {}

    def add(self, stack: tuple[Frame, ...], *, on_cpu: bool) -> None:
        """Count a sample of a stack."""
        self._counts.setdefault(stack, [0, 0])[0 if on_cpu else 1] += 1

    def items(self) -> Iterable[tuple[tuple[Frame, ...], list[int]]]:
        """Return the stacks with their two counts."""
        return self._counts.items()


def encode_stacks(seen: dict[int, FoldedStacks]) -> dict[str, Any]:
    """Return the answer to a SampleStacks: `frames` = [name, owner], `subtasks` = number -> [[frames], on, off]."""
    numbers: dict[Frame, int] = {}
    subtasks = {
        str(subtask): [
            [[numbers.setdefault(frame, len(numbers)) for frame in stack], on_cpu, off_cpu]
            for stack, (on_cpu, off_cpu) in folded.items()
        ]
        for subtask, folded in sorted(seen.items())
    }
    return {"frames": [list(frame) for frame in numbers], "subtasks": subtasks}


#: Requests served at a time; further ones are rejected.
MOST_OPEN = 16
#: Maximum duration and minimum interval of a request.
LONGEST_MS, SHORTEST_INTERVAL_MS = 8_000.0, 5.0
#: Share of the time since the last sample that a thread ran or waited for a processor, to be counted as on-CPU.
_ON_CPU = 0.5
#: The code outside a subtask's step; frames inside are the subtask's.
BASE_FRAMES = frozenset((RunLoop._step.__code__, RunLoop._loop.__code__))  # noqa: SLF001 - they have no public name
_OTHER = ((OTHER, ENGINE),)


@dataclass(slots=True)
class _Request:
    query: SampleStacks
    loops: tuple[RunLoop, ...]
    until_ms: float
    begun_ms: float
    seen: dict[int, FoldedStacks] = field(default_factory=dict)
    samples: int = 0
    cpu_ms: float = 0.0


@dataclass(slots=True)
class _CpuUse:
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
        self._requests: list[_Request] = []
        self._running = False
        #: By thread id of the kernel.
        self._used: dict[int, _CpuUse] = {}

    def ask(self, query: SampleStacks) -> None:
        """Start sampling the subtasks of a vertex, or answer at once with the reason for a rejection."""
        loops = tuple(loop for loop in self._loops() if any(_is_of(s, query) for s in loop.subtasks))
        now = self._clock.monotonic_ms()
        with self._lock:
            full = len(self._requests) >= MOST_OPEN
            if loops and not full:
                until_ms = now + min(query.duration_ms, LONGEST_MS)
                self._requests.append(_Request(query, loops, until_ms, now))
            start = bool(self._requests) and not self._running
            self._running = self._running or start
        if start:
            threading.Thread(target=self._run, name="ps-sampler", daemon=True).start()
        if full or not loops:
            self._refuse(query, f"{MOST_OPEN} flame graphs are being made in this worker" if full else NOT_RUNNING)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._requests:
                    self._running = False
                    self._used.clear()
                    return
                requests = tuple(self._requests)
            try:
                self._clock.sleep_ms(max(SHORTEST_INTERVAL_MS, min(o.query.interval_ms for o in requests)))
                self._take_sample(requests)
            except Exception as error:  # noqa: BLE001 - an error of the sampler must not end the worker
                for request in requests:
                    self._refuse(request.query, describe(error)[0])
                with self._lock:
                    self._requests = [request for request in self._requests if request not in requests]

    def _take_sample(self, requests: tuple[_Request, ...]) -> None:
        begun, now = self._clock.cpu_ms(), self._clock.monotonic_ms()
        loops = {id(loop): loop for request in requests for loop in request.loops}
        for loop in loops.values():
            self._measure(loop, now)
        # not in a variable: as in `SlowSteps.look`, this frame is one of them, and would keep the objects of all alive
        self._sample_all(requests, sys._current_frames())  # noqa: SLF001 - the only access to another thread's stack
        spent = self._clock.cpu_ms() - begun
        for request in requests:
            request.cpu_ms += spent
            if now >= request.until_ms:
                self._answer(request, now)

    def _sample_all(self, requests: tuple[_Request, ...], frames: Mapping[int, FrameType]) -> None:
        for request in requests:
            for loop in request.loops:
                self._sample(request, loop, frames)
            request.samples += 1

    def _measure(self, loop: RunLoop, now: float) -> None:
        tid = loop.thread.native_id if loop.thread is not None else None
        if tid is None or (used := runnable_ms(tid)) is None:
            return
        before = self._used.get(tid)
        elapsed = now - before.at_ms if before is not None else 0.0
        on_cpu = before is not None and elapsed > 0 and used - before.cpu_ms >= _ON_CPU * elapsed
        self._used[tid] = _CpuUse(used, now, on_cpu)

    def _sample(self, request: _Request, loop: RunLoop, frames: Mapping[int, FrameType]) -> None:
        thread, current_subtask = loop.thread, loop.current_subtask
        innermost = None if thread is None or thread.ident is None else frames.get(thread.ident)
        if thread is None or innermost is None:
            return
        stack = stack_of(innermost, BASE_FRAMES)
        used = self._used.get(thread.native_id or 0)
        for subtask in loop.subtasks:
            if not _is_of(subtask, request.query):
                continue
            folded = request.seen.setdefault(subtask.deployment.execution.subtask, FoldedStacks())
            if current_subtask is None or current_subtask is subtask:
                folded.add(stack, on_cpu=used is not None and used.on_cpu)
            else:
                folded.add(_OTHER, on_cpu=False)

    def _answer(self, request: _Request, now: float) -> None:
        with self._lock:
            self._requests.remove(request)
        found = {
            **encode_stacks(request.seen),
            "samples": request.samples,
            "wall-ms": now - request.begun_ms,
            "cpu-ms": request.cpu_ms,
        }
        query = request.query
        self._send(SubtaskAnswer(job_id=query.job_id, request_id=query.request_id, answer=found))

    def _refuse(self, query: SampleStacks, problem: str) -> None:
        self._send(SubtaskAnswer(job_id=query.job_id, request_id=query.request_id, error=problem))


def runnable_ms(tid: int) -> float | None:
    """Return how long a thread of this process ran or waited for a processor; None: it has ended.

    Waiting for the interpreter's lock, a lock or a socket is neither.
    """
    with contextlib.suppress(OSError, ValueError):
        ran, waited = Path(f"/proc/self/task/{tid}/schedstat").read_text(encoding="ascii").split()[:2]
        return (int(ran) + int(waited)) / 1e6
    return None


def _is_of(subtask: Subtask, query: SampleStacks) -> bool:
    deployment = subtask.deployment
    return bool(deployment.job_id == query.job_id and deployment.execution.vertex_id == query.vertex_id)
