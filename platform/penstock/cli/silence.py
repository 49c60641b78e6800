"""Prints what a command waits for while one call blocks it, such as a request to an object store."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

from penstock.checkpoint.stores import place_of
from penstock.core.clock import Clock, SystemClock

_FIRST_S = 5.0
_EVERY_S = 30.0


@contextlib.contextmanager
def said_while_waiting(text: str, clock: Clock | None = None) -> Iterator[None]:
    """Print `text` on standard error if the body takes more than 5 s, and then every 30 s; for the main thread."""
    clock = clock or SystemClock()
    begun_ms = clock.monotonic_ms()

    def say(*_: object) -> None:
        sys.stderr.write(f"after {(clock.monotonic_ms() - begun_ms) / 1000:.0f} s still {text}\n")
        sys.stderr.flush()

    earlier = signal.signal(signal.SIGALRM, say)
    timer = signal.setitimer(signal.ITIMER_REAL, _FIRST_S, _EVERY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, earlier)


def reading(uri: str) -> contextlib.AbstractContextManager[None]:
    """Return `said_while_waiting` for an object store; a local folder needs no message."""
    if not uri.startswith("s3://"):
        return contextlib.nullcontext()
    return said_while_waiting(f"waiting for {place_of(uri)}; check that the server answers")
