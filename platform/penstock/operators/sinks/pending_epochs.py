"""The pending output of one sink subtask: committables, in order, from barrier to publication.

Pure bookkeeping, called by `penstock.operators.sinks.sink_operator`. An aborted checkpoint drops no output: every later
snapshot names all output not yet known to be published, and the permit of any later checkpoint releases it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.operators.operator import StagedOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.snapshot import Committable


@dataclass(slots=True)
class _Entry:
    committable: Committable
    #: Encoders of the staged chunks; empty once the files are written.
    chunks: tuple[Callable[[], bytes], ...]
    written: bool


class PendingOutput:
    """Committables of this subtask and run, oldest checkpoint first."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._bytes = 0
        #: Bytes of rows that are only in memory.
        self.held_bytes = 0

    def __len__(self) -> int:
        """Return the number of pending epochs."""
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of the pending output."""
        return self._bytes

    def stage(self, committable: Committable, chunks: tuple[Callable[[], bytes], ...]) -> None:
        """Add an epoch whose rows are still in memory and will be written with the checkpoint."""
        self._add(_Entry(committable, chunks, written=False))
        self.held_bytes += committable.size_bytes

    def prepared(self, committables: Iterable[Committable]) -> None:
        """Add output that is already durable (an open, flushed transaction)."""
        for committable in committables:
            self._add(_Entry(committable, (), written=True))

    def written(self, committable: Committable) -> None:
        """Replace an epoch by its staged files, for later snapshots. Unknown ids (published since) are ignored."""
        entry = self._entries.get(committable.id)
        if entry is not None:
            self.held_bytes -= 0 if entry.written else entry.committable.size_bytes
            self._bytes += committable.size_bytes - entry.committable.size_bytes
            entry.committable, entry.chunks, entry.written = committable, (), True

    def to_snapshot(self) -> tuple[tuple[Committable, ...], tuple[StagedOutput, ...]]:
        """Return the durable output, and the output to write (again, if an earlier upload failed or still runs)."""
        durable = tuple(entry.committable for entry in self._entries.values() if entry.written)
        staged = tuple(
            StagedOutput(entry.committable, entry.chunks) for entry in self._entries.values() if not entry.written
        )
        return durable, staged

    def releasable(self, checkpoint_id: int) -> tuple[Committable, ...]:
        """Return the output that a permit for `checkpoint_id` releases, in order, up to the first unwritten epoch."""
        ready = []
        for entry in self._entries.values():
            if entry.committable.checkpoint_id > checkpoint_id or not entry.written:
                break
            ready.append(entry.committable)
        return tuple(ready)

    def published(self, ids: Iterable[str]) -> None:
        """Remove output that is known to be published."""
        for committable_id in ids:
            entry = self._entries.pop(committable_id, None)
            if entry is not None:
                self._bytes -= entry.committable.size_bytes

    def _add(self, entry: _Entry) -> None:
        self._entries[entry.committable.id] = entry
        self._bytes += entry.committable.size_bytes
