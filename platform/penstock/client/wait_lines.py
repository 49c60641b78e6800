"""Prints what a caller waits for: a line once the wait lasts, one for each change, an unchanged one every half minute.

Used by all waits of commands: for operations on a job (`operation_progress`), for answers of a JobManager
(`rest_client`), and for single calls that block a command (`cli.silence`).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.clock import Clock, SystemClock

#: Time after which an unchanged line is repeated.
_REPEAT_MS = 30_000.0


class WaitLines:
    """Decides which reasons of one wait are printed; the caller notes the reason again and again."""

    def __init__(self, say: Callable[[str], None], clock: Clock | None = None, *, quiet_ms: float) -> None:
        """Print with `say`, nothing in the first `quiet_ms`; the time counts from here."""
        self._say = say
        self._clock = clock or SystemClock()
        self._begun_ms = self._said_ms = self._clock.monotonic_ms()
        self._quiet_ms = quiet_ms
        #: The reason at the last look; empty if there is none.
        self.newest = ""

    def note(self, text: str) -> None:
        """Take the present reason, empty if there is none, and print it if it is due."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._begun_ms < self._quiet_ms:
            return
        if text != self.newest:
            if text:
                self._say(text)
            self._said_ms = now_ms
        elif text and now_ms - self._said_ms >= _REPEAT_MS:
            self._say(f"after {(now_ms - self._begun_ms) / 1000:.0f} s still {text}")
            self._said_ms = now_ms
        self.newest = text
