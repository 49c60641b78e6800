"""Prints what a command waits for while one call blocks it, such as a request to an object store."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

from penstock.checkpoint.stores import place_of, require_answer
from penstock.client.wait_lines import WaitLines
from penstock.core.clock import Clock

_QUIET_S, _LOOK_S = 5.0, 1.0


@contextlib.contextmanager
def said_while_waiting(text: str, clock: Clock | None = None) -> Iterator[None]:
    """Print `text` on standard error if the body takes more than 5 s; for the main thread."""

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    lines = WaitLines(say, clock, quiet_ms=1000 * _QUIET_S)
    earlier = signal.signal(signal.SIGALRM, lambda *_: lines.note(text))
    timer = signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, earlier)


@contextlib.contextmanager
def reading(uri: str, clock: Clock | None = None) -> Iterator[None]:
    """Apply `said_while_waiting` to an object store whose server answers; a local folder needs no message.

    Raises:
        StorageError: the server of an object store does not answer.
    """
    if not uri.startswith("s3://"):
        yield
        return
    with said_while_waiting(f"waiting for {place_of(uri)}; check that the server answers", clock):
        require_answer(uri)
        yield
