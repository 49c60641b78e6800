"""Slow calls to external systems: publications, uploads, recovery.

`TaskRuntime` sends the calls that are slow at present with the worker's metrics; `jobmanager.master.slow_work` reports
each once.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.clock import Clock
from penstock.rpc.messages import SlowCall

#: A call that takes longer is slow.
SLOW_MS = 5_000


@dataclass(slots=True)
class _Call:
    job_id: str
    what: str
    begun_ms: float
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
            call = _Call(job_id, what, self._clock.monotonic_ms())
            with self._lock:
                number = next(self._numbers)
                self._calls[number] = call
            try:
                return work()
            finally:
                with self._lock:
                    del self._calls[number]
                if call.logged:
                    seconds = (self._clock.monotonic_ms() - call.begun_ms) / 1000
                    logging.getLogger(__name__).warning("slow call ended after %.1f s: %s", seconds, what)

        return run

    def slow(self) -> dict[str, tuple[SlowCall, ...]]:
        """Return the calls that are slow now, by job, and log each once."""
        now = self._clock.monotonic_ms()
        with self._lock:
            found = [(number, call) for number, call in self._calls.items() if now - call.begun_ms >= self._slow_ms]
        told: dict[str, tuple[SlowCall, ...]] = {}
        for number, call in found:
            if not call.logged:
                call.logged = True
                logging.getLogger(__name__).warning(
                    "slow call, %.1f s so far: %s", (now - call.begun_ms) / 1000, call.what
                )
            entry = SlowCall(number=number, what=call.what, for_ms=round(now - call.begun_ms))
            told[call.job_id] = (*told.get(call.job_id, ()), entry)
        return told
