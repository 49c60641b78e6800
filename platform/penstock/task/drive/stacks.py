"""Call stacks of subtasks, folded into counts; the only access to the process is reading frames.

`task.drive.sampler` takes the samples; `rest.diagnose.flame_graph` combines the answers to a flame graph. A frame is a
Python frame: time in compiled kernels and libraries is attributed to the calling line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from penstock.task.chain.failure import is_engine, is_ours

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
    for frame in _outwards(innermost):
        if frame.f_code in below:
            break
        frames.append(_named(frame.f_code, frame.f_lineno))
    return tuple(reversed(frames[:MOST_FRAMES]))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@lru_cache(maxsize=20_000)
def _named(code: CodeType, line: int) -> Frame:
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{line})", _whose(code.co_filename)


@lru_cache(maxsize=2_000)
def _whose(filename: str) -> str:
    if is_engine(filename):
        return ENGINE
    return LIBRARY if is_ours(filename) else USER


class Folded:
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


def document(seen: dict[int, Folded]) -> dict[str, Any]:
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
