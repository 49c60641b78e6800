"""Blocking calls that can be left in the middle: the engine's store and broker calls run in fibers, one at a time.

A fiber is a thread that only ever runs while the scheduler's thread waits for it, so there is no concurrency, only
order. Where a call would touch the outside (a PUT, a step of a transaction, a sleep) it may `pause`; whatever happens
then happens between. A fiber whose process was killed is unwound by `Killed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """The process this call ran in is dead."""


_idle: list[_Runner] = []
_current: Fiber | None = None


class _Runner:
    """A thread kept for the next fiber."""

    def __init__(self) -> None:
        self.go = threading.Lock()
        self.go.acquire()
        self.fiber: Fiber | None = None
        threading.Thread(target=self._loop, name="fiber", daemon=True).start()

    def _loop(self) -> None:
        while True:
            self.go.acquire()
            fiber, self.fiber = self.fiber, None
            assert fiber is not None
            fiber.run_to_end()
            back, fiber = fiber.back, None
            _idle.append(self)
            back.release()


class Fiber:
    """One call of one process."""

    def __init__(self, owner: str, work: Callable[[], Any]) -> None:
        self.owner = owner
        self.back = threading.Lock()
        self.back.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.killed = False
        #: How long it wants to stay where it has paused, and why.
        self.delay_ms = 0.0
        self.why = ""
        self._work = work
        self._runner: _Runner | None = None

    def resume(self) -> None:
        """Run it until it pauses or ends."""
        global _current  # noqa: PLW0603 - one call runs at a time, and this is which
        if self.finished:
            return
        if self._runner is None:
            self._runner = _idle.pop() if _idle else _Runner()
            self._runner.fiber = self
        outer, _current = _current, self
        self._runner.go.release()
        self.back.acquire()
        _current = outer

    def kill(self) -> None:
        """Unwind it; a fiber that never ran just does not."""
        self.killed = True
        if self._runner is None:
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
        runner = self._runner
        assert runner is not None
        self.back.release()
        runner.go.acquire()
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
