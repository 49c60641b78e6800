"""Finds subtasks whose present step has been in the user's code for long: a function that hangs or computes.

`taskmanager.worker` looks before each report; what is found are slow calls (`task.chain.background`). A long step
without a frame of the user's code, such as one of a kernel, is none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from penstock.task.chain.background import SLOW_MS, SlowCalls
from penstock.task.drive.stack_sampler import BASE_FRAMES, user_frame
from penstock.task.drive.threads import RunLoop

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.task.drive.subtask import Subtask


@dataclass(slots=True)
class _LongStep:
    begun_ms: float
    #: Of the slow call.
    number: int


class SlowSteps:
    """The long steps of a worker's loops; used by one thread, which is none of them."""

    def __init__(
        self,
        loops: Callable[[], Iterable[RunLoop]],
        clock: Clock,
        calls: SlowCalls,
        slow_ms: float = SLOW_MS,
        frames: Callable[[], Mapping[int, FrameType]] = sys._current_frames,  # noqa: SLF001 - the only access to another thread's stack
    ) -> None:
        """Start without long steps; `frames` returns the innermost frame of each thread."""
        self._loops, self._clock, self._calls = loops, clock, calls
        self._slow_ms, self._frames = slow_ms, frames
        self._known: dict[RunLoop, _LongStep] = {}

    def look(self) -> None:
        """Register each step that is long now and in the user's code, and forget those that have ended."""
        now = self._clock.monotonic_ms()
        long: dict[RunLoop, Subtask] = {}
        for loop in self._loops():
            subtask = loop.current_subtask
            if subtask is not None and now - loop.step_begun_ms >= self._slow_ms:
                long[loop] = subtask
        for loop, step in list(self._known.items()):
            if loop not in long or loop.step_begun_ms != step.begun_ms:
                del self._known[loop]
                self._calls.end(step.number)
        if long:
            # Not in a variable: `_frames` returns this frame too, and only the garbage collector would free such a
            # cycle, with the frames of all threads and the arrays of state that they refer to.
            self._register_all(long, self._frames())

    def _register_all(self, long: Mapping[RunLoop, Subtask], frames: Mapping[int, FrameType]) -> None:
        for loop, subtask in long.items():
            self._register(loop, subtask, frames)

    def _register(self, loop: RunLoop, subtask: Subtask, frames: Mapping[int, FrameType]) -> None:
        begun_ms, thread = loop.step_begun_ms, loop.thread
        at = place_of(frames.get(thread.ident or 0), BASE_FRAMES) if thread is not None else ""
        if loop.current_subtask is not subtask or self._clock.monotonic_ms() - begun_ms < self._slow_ms:
            return  # the step has ended meanwhile
        known = self._known.get(loop)
        if known is not None and at:
            self._calls.move(known.number, at)
        elif at:
            number = self._calls.begin(subtask.deployment.job_id, name_of(subtask), begun_ms, at)
            self._known[loop] = _LongStep(begun_ms, number)


def place_of(innermost: FrameType | None, below: Collection[CodeType]) -> str:
    """Return file, line and function of the user's innermost frame inside any code in `below`; empty without one."""
    frame = user_frame(innermost, below)
    if frame is None:
        return ""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def name_of(subtask: Subtask) -> str:
    """Return the running operator of a subtask, or its chain between two calls of operators."""
    deployment, operator = subtask.deployment, subtask.running_operator
    name = f"chain {deployment.vertex_name!r}" if operator is None else f"operator {operator.uid!r}"
    return f"{name} ({deployment.execution.subtask})"
