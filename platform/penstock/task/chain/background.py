"""Calls out of a subtask's thread: background work, and its slow calls.

Implemented by `task.drive.threads` and by the simulator. The worker's metrics contain the calls that are slow at
present, those of the user's functions (`task.drive.slow_steps`) too.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core.clock import Clock
from penstock.core.slow_calls import ended_call_text, slow_call_text
from penstock.rpc.messages import SlowCall

#: A call for a subtask's thread.
Mail = Callable[[], None]
#: Called with a result or an error, from any thread.
Done = Callable[[Any, BaseException | None], object]


class Background(Protocol):
    """Runs blocking work off the subtasks' threads: a thread pool, or an event of the simulator."""

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work`, then call `done` with its result or error."""


#: A call that takes longer is slow.
SLOW_MS = 5_000


@dataclass(slots=True)
class _Call:
    job_id: str
    what: str
    begun_ms: float
    #: Place in the user's code; empty for an external call.
    at: str = ""
    logged: bool = False


class SlowCalls:
    """The running calls of one worker; used from any thread."""

    def __init__(self, clock: Clock, slow_ms: float = SLOW_MS) -> None:
        """Start without calls."""
        self._clock = clock
        self._slow_ms = slow_ms
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}

    def watched(self, job_id: str, what: str, work: Callable[[], Any]) -> Callable[[], Any]:
        """Return the same work, registered as `what` while it runs."""

        def run() -> Any:
            number = self.begin(job_id, what, self._clock.monotonic_ms())
            try:
                return work()
            finally:
                self.end(number)

        return run

    def begin(self, job_id: str, what: str, begun_ms: float, at: str = "") -> int:
        """Register a call that began at `begun_ms` (monotonic); return its number. `at`: place in the user's code."""
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = _Call(job_id, what, begun_ms, at)
        return number

    def move(self, number: int, at: str) -> None:
        """Set the present place of a call of the user's function."""
        self._calls[number].at = at

    def end(self, number: int) -> None:
        """Forget a call, and log its end if its begin was logged."""
        with self._lock:
            call = self._calls.pop(number)
        if call.logged:
            for_ms = self._clock.monotonic_ms() - call.begun_ms
            logging.getLogger(__name__).warning("%s", ended_call_text(call.what, for_ms, call.at))

    def slow(self) -> dict[str, tuple[SlowCall, ...]]:
        """Return the calls that are slow now, by job, and log each once."""
        now = self._clock.monotonic_ms()
        with self._lock:
            found = [(number, call) for number, call in self._calls.items() if now - call.begun_ms >= self._slow_ms]
        by_job: dict[str, tuple[SlowCall, ...]] = {}
        for number, call in found:
            if not call.logged:
                call.logged = True
                logging.getLogger(__name__).warning("%s", slow_call_text(call.what, now - call.begun_ms, call.at))
            entry = SlowCall(number=number, what=call.what, for_ms=round(now - call.begun_ms), at=call.at)
            by_job[call.job_id] = (*by_job.get(call.job_id, ()), entry)
        return by_job
