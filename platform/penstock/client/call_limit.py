"""Reports a function that does not return in a job of this thread, and ends the call after a timeout.

Used by `client.in_process` and `testing.harness`. The alarm of the process (SIGALRM) interrupts the thread, also in a
blocking call such as `time.sleep`. Python delivers it to the main thread alone.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, UsageError
from penstock.task.chain.background import SLOW_MS
from penstock.task.drive.slow_steps import name_of, place_of
from penstock.task.drive.subtask import Subtask

#: Interval of the alarms after the first one: a function may catch the first exception.
_AGAIN_MS = 1_000.0
_STEP = frozenset((Subtask.step.__code__,))


class _TimeUpError(BaseException):
    """Ends a call; no `Exception`, because functions catch these."""


class CallLimit:
    """The calls of one job in this thread."""

    def __init__(
        self, job: str, timeout_ms: float | None, subtasks: Callable[[], Iterable[Subtask]], slow_ms: float = SLOW_MS
    ) -> None:
        """Limit each call to `timeout_ms`; None: log alone, after `slow_ms`, the function in a call."""
        self._job, self._timeout_ms, self._subtasks, self._slow_ms = job, timeout_ms, subtasks, slow_ms
        self._clock = SystemClock()
        self._inside = self._logged = False
        self._begun_ms = 0.0
        #: The handler and the timer of the process before the call: those of another tool.
        self._before: Any = None
        self._other_ms, self._other_every_ms = 0.0, 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Limit what runs inside; a call inside another one belongs to it.

        Raises:
            PenstockError: the timeout passed. UsageError: there is a timeout, and this is not the main thread.
        """
        if self._inside or (self._timeout_ms is None and threading.current_thread() is not threading.main_thread()):
            yield
            return
        self._begin()
        try:
            yield
        except _TimeUpError as error:
            hint = "change the function so that it returns, or raise timeout="
            raise PenstockError(str(error), hint=hint) from None
        finally:
            self._end()

    def _begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("timeout= has no effect outside the main thread", hint="leave it out in other threads")
        self._inside, self._logged, self._begun_ms = True, False, self._clock.monotonic_ms()
        first_ms = self._slow_ms if self._timeout_ms is None else min(self._slow_ms, self._timeout_ms)
        left_s, every_s = signal.setitimer(signal.ITIMER_REAL, 0)  # no alarm of the other tool between two handlers
        self._before = signal.signal(signal.SIGALRM, self._alarm)
        self._other_ms, self._other_every_ms = left_s * 1000, every_s * 1000
        if self._other_ms:
            first_ms = min(first_ms, self._other_ms)
        _set_timer(max(first_ms, 1.0), _AGAIN_MS)

    def _end(self) -> None:
        self._inside = False
        _set_timer(0.0, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if self._before is None else self._before)
        if self._other_ms:
            _set_timer(max(self._other_ms - self._for_ms(), 1.0), self._other_every_ms)

    def _for_ms(self) -> float:
        return self._clock.monotonic_ms() - self._begun_ms

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        """Run in the interrupted thread, between two instructions of `frame`."""
        for_ms = self._for_ms()
        if self._other_ms and for_ms >= self._other_ms and callable(self._before):
            self._other_ms = 0.0
            self._before(number, frame)
        at = place_of(frame, _STEP)
        named = next((name_of(one) for one in self._subtasks() if one.running_operator is not None), "no operator")
        place = f"in {named}{f', at {at}' if at else ''}"
        if self._timeout_ms is not None and for_ms >= self._timeout_ms:
            raise _TimeUpError(f"job {self._job} did not end its work within {self._timeout_ms / 1000:g} s: {place}")
        if at and not self._logged and for_ms >= self._slow_ms:
            self._logged = True
            text = "job %s has worked for %.0f s so far, now %s"
            logging.getLogger("penstock").warning(text, self._job, for_ms / 1000, place)


def _set_timer(after_ms: float, every_ms: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, after_ms / 1000, every_ms / 1000)
