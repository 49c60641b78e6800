"""A bounded log of what a decider saw and decided.

The source of `penstock story` and of error messages with a history.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision: wall milliseconds, a short kind, a sentence."""

    at_ms: int
    kind: str
    text: str


class EventLog:
    """The last `limit` entries, oldest first."""

    def __init__(self, limit: int = 500) -> None:
        """Keep at most `limit` entries."""
        self._entries: deque[Entry] = deque(maxlen=limit)

    def add(self, at_ms: int, kind: str, text: str) -> None:
        """Append an entry, dropping the oldest when full."""
        self._entries.append(Entry(at_ms, kind, text))

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries, oldest first."""
        return tuple(self._entries)

    def tail(self, count: int = 20) -> str:
        """Return the last `count` entries as text, for an error message."""
        return "\n".join(f"{e.at_ms} {e.kind}: {e.text}" for e in list(self._entries)[-count:])
