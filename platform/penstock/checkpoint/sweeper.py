"""The sweeper: finds files that no manifest names.

Attempts that died before their ack and aborted checkpoints leave such files. A pure decider. The candidates are listed
once at a start, before any attempt of the new leader runs. A file that is unnamed then cannot become named later:
attempts name only restored files and files they wrote under unique names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.checkpoint.manifest import Manifest
from penstock.checkpoint.retention import files_of

#: Folders below the job's folder that hold files named by manifests.
SWEPT_PREFIXES = ("data/", "pending/", "channels/")


class Sweeper:
    """Remembers the candidates and returns them once after the grace time."""

    def __init__(self, grace_ms: int) -> None:
        """Delete nothing younger than `grace_ms` (seen from the listing)."""
        self._grace_ms = grace_ms
        self._candidates: frozenset[str] = frozenset()
        self._due_ms: int | None = None

    def listed(self, files: Collection[str], named_by: Iterable[Manifest], now_ms: int) -> None:
        """Take a listing made before deployment; `named_by` are all manifests in the log, of every history."""
        named: set[str] = set().union(*(files_of(m) for m in named_by))
        self._candidates = frozenset(f for f in files if f.startswith(SWEPT_PREFIXES)) - named
        self._due_ms = now_ms + self._grace_ms if self._candidates else None

    def appended(self, named_by: Iterable[Manifest], now_ms: int) -> tuple[str, ...]:
        """Return the files that may be deleted; call it after the leader's own append succeeded."""
        if self._due_ms is None or now_ms < self._due_ms:
            return ()
        named: set[str] = set().union(*(files_of(m) for m in named_by))
        gone = tuple(sorted(self._candidates - named))
        self._candidates, self._due_ms = frozenset(), None
        return gone
