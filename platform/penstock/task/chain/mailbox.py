"""A subtask's mailbox: calls that other threads request in the subtask's thread, in order, bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from penstock.core.errors import PenstockError

#: Mails are triggers, completions and finished uploads: thousands of waiting ones mean that the subtask hangs.
CAPACITY = 10_000

#: A call for the subtask's thread.
Mail = Callable[[], None]


class MailboxFullError(PenstockError):
    """The subtask has not read its mailbox for a long time."""


class Mailbox:
    """Thread-safe; `wake` is called, without a lock held, after each post."""

    def __init__(self, wake: Callable[[], None], capacity: int = CAPACITY) -> None:
        """Start empty and open."""
        self._mails: deque[Mail] = deque()
        self._lock = threading.Lock()
        self._wake = wake
        self._capacity = capacity
        self._closed = False

    def post(self, mail: Mail) -> bool:
        """Append a mail; return False if the mailbox is closed and the mail was dropped.

        Raises:
            MailboxFullError: more than the capacity waits.
        """
        with self._lock:
            if self._closed:
                return False
            if len(self._mails) >= self._capacity:
                msg = f"{self._capacity} mails wait for one subtask"
                raise MailboxFullError(msg, hint="a user function or a client call has not returned")
            self._mails.append(mail)
        self._wake()
        return True

    def take(self) -> Mail | None:
        """Return the oldest mail, or None."""
        if not self._mails:
            return None
        with self._lock:
            return self._mails.popleft() if self._mails else None

    def close(self) -> None:
        """Drop the waiting mails and all later ones."""
        with self._lock:
            self._closed = True
            self._mails.clear()
