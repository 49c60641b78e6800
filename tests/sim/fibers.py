"""Blocking calls that can be left in the middle: the engine's store and broker calls run in fibers, one at a time.

A fiber is a greenlet: it has its stack and runs only while the caller of `resume` waits. There is no concurrency, only
order. Where a call would touch the outside (a PUT, a step of a transaction, a sleep) it may `pause`; whatever happens
then happens between. A fiber whose process was killed is unwound by `Killed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """The process this call ran in is dead."""


_current: Fiber | None = None


class Fiber:
    """One call of one process."""

    def __init__(self, owner: str, work: Callable[[], Any]) -> None:
        self.owner = owner
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.killed = False
        #: How long it wants to stay where it has paused, and why.
        self.delay_ms = 0.0
        self.why = ""
        self._work = work
        self._stack: greenlet | None = None

    def resume(self) -> None:
        """Run it until it pauses or ends."""
        global _current  # noqa: PLW0603 - one call runs at a time, and this is which
        if self.finished:
            return
        if self._stack is None:
            self._stack = greenlet(self.run_to_end)
        self._stack.parent = getcurrent()  # where it goes when it pauses or ends
        outer, _current = _current, self
        self._stack.switch()
        _current = outer

    def kill(self) -> None:
        """Unwind it; a fiber that never ran just does not."""
        self.killed = True
        if self._stack is None:
            self.finished = True
        while not self.finished and _current is not self:
            self.resume()

    def run_to_end(self) -> None:
        try:
            self.result = self._work()
        except Killed:
            self.killed = True
        except Exception as error:
            self.error = error
        self.finished = True

    def leave(self, delay_ms: float, why: str) -> None:
        self.delay_ms, self.why = delay_ms, why
        stack = self._stack
        assert stack is not None
        assert stack.parent is not None
        stack.parent.switch()
        self.check()

    def check(self) -> None:
        if self.killed:
            raise Killed


def current() -> Fiber | None:
    """The fiber that runs now; None outside of one."""
    return _current


def pause(delay_ms: float, why: str) -> None:
    """Let `delay_ms` of virtual time pass before the call goes on."""
    fiber = _current
    if fiber is None:
        raise AssertionError(f"nothing may block outside of background work ({why})")
    fiber.leave(delay_ms, why)
