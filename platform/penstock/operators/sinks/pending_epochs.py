"""What one sink subtask still owes the outside: committables, in order, from barrier to publication.

Pure bookkeeping, called by `penstock.operators.sinks.sink_operator`. Nothing is dropped because a checkpoint was
aborted: every later snapshot names all output not yet known published, and the permit of any later checkpoint releases
it.
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
    #: Encoders of the staged chunks; emptied once the files are written.
    chunks: tuple[Callable[[], bytes], ...]
    written: bool


class PendingOutput:
    """Committables of this subtask and run, oldest checkpoint first."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._bytes = 0
        #: Bytes of rows that are in memory alone.
        self.held_bytes = 0

    def __len__(self) -> int:
        """Number of epochs that are owed."""
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of all that is owed."""
        return self._bytes

    def stage(self, committable: Committable, chunks: tuple[Callable[[], bytes], ...]) -> None:
        """Add an epoch whose rows are still in memory and are to be written with the checkpoint."""
        self._add(_Entry(committable, chunks, written=False))
        self.held_bytes += committable.size_bytes

    def prepared(self, committables: Iterable[Committable]) -> None:
        """Add output that is durable already (an open, flushed transaction)."""
        for committable in committables:
            self._add(_Entry(committable, (), written=True))

    def written(self, committable: Committable) -> None:
        """The staged files exist; later snapshots name them. Unknown ids (published since) are ignored."""
        entry = self._entries.get(committable.id)
        if entry is not None:
            self.held_bytes -= 0 if entry.written else entry.committable.size_bytes
            self._bytes += committable.size_bytes - entry.committable.size_bytes
            entry.committable, entry.chunks, entry.written = committable, (), True

    def to_snapshot(self) -> tuple[tuple[Committable, ...], tuple[StagedOutput, ...]]:
        """Return what is durable, and what is to be written (again, if an earlier upload failed or still runs)."""
        durable = tuple(entry.committable for entry in self._entries.values() if entry.written)
        staged = tuple(
            StagedOutput(entry.committable, entry.chunks) for entry in self._entries.values() if not entry.written
        )
        return durable, staged

    def releasable(self, checkpoint_id: int) -> tuple[Committable, ...]:
        """Return what a permit for `checkpoint_id` lets out, in order, up to the first epoch not written yet."""
        ready = []
        for entry in self._entries.values():
            if entry.committable.checkpoint_id > checkpoint_id or not entry.written:
                break
            ready.append(entry.committable)
        return tuple(ready)

    def published(self, ids: Iterable[str]) -> None:
        """These are known to be published."""
        for committable_id in ids:
            entry = self._entries.pop(committable_id, None)
            if entry is not None:
                self._bytes -= entry.committable.size_bytes

    def _add(self, entry: _Entry) -> None:
        self._entries[entry.committable.id] = entry
        self._bytes += entry.committable.size_bytes
