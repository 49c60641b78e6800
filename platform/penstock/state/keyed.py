"""Interfaces of keyed state for the task and the operators.

The request that opens it, the store, frozen states and background jobs.

Implemented by `penstock.state.store`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.remote.remote_log import Gather, one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pyarrow as pa

    from penstock.config.settings import JobSettings
    from penstock.core.keygroup import HashRange
    from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.log.segments import EncodedSegment
    from penstock.state.log.ttl import Ttl
    from penstock.state.memory.budget import MemoryBudget
    from penstock.state.panes.pane_table import PaneTable
    from penstock.state.panes.running_table import RunningTable
    from penstock.state.panes.session_table import SessionRule, SessionTable
    from penstock.state.tables.row_state import RowState


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedStateRequest:
    """The data that the task passes to open an operator's state."""

    uid: str
    #: Snapshots of this operator, clipped to `hash_range` by the job.
    snapshots: tuple[KeyedStateSnapshot, ...]
    hash_range: HashRange
    settings: JobSettings
    #: Reads a file of a snapshot or a part of it, verified if the reference has a checksum.
    read: Callable[[FileRef], bytes]
    #: The folder of this subtask attempt for spilled and cold rows; created when needed.
    directory: Path
    #: `<run>/<vertex>/<subtask>/<attempt>`.
    writer: str
    budget: MemoryBudget
    #: Runs several reads in parallel.
    gather: Gather = one_by_one
    #: Size limits of tables, logs and files.
    limits: StateLimits = PRODUCTION


class FrozenState(Protocol):
    """One state at one barrier.

    Pages are copied by the owner's thread in steps; encoding runs in the background.
    """

    def copy_pages(self, limit: int) -> bool:
        """Copy up to `limit` frozen pages that no write has copied yet.

        True when none is left and `encode` may start.
        """

    def encode(self) -> tuple[EncodedSegment, ...]:
        """Return all segments up to this barrier that are not durable, also of failed uploads. Any thread."""

    def durable(self, files: Mapping[int, FileRef]) -> None:
        """Record that the segments at these positions are written and verified."""

    def failed(self) -> None:
        """Handle an abandoned upload: the segments stay in the log, and the next frozen state offers them again."""

    def snapshot(self) -> KeyedStateSnapshot:
        """Return all segments up to the barrier. Only legal when all of them are durable."""

    @property
    def memory_bytes(self) -> int:
        """The bytes held for this frozen state, counted in the managed memory."""


class CompactionJob(Protocol):
    """A merge of committed segments of one tier.

    Call `run` in the background, then `KeyedStateStore.compacted` in the owner's thread.
    """

    @property
    def state(self) -> str:
        """The name of the state."""

    @property
    def inputs(self) -> tuple[Segment, ...]:
        """The segments that are merged."""

    def run(self, read: Callable[[FileRef], bytes]) -> EncodedSegment:
        """Read, merge (the last row wins, tombstones are applied) and encode."""


class PrefetchJob(Protocol):
    """A prefetch of remote rows: `run` in the background, then `install` in the owner's thread."""

    def run(self) -> None:
        """Read the rows."""

    def install(self) -> None:
        """Store the fetched rows."""


class KeyedStateStore(Protocol):
    """All keyed state of one operator of one subtask."""

    def pane_table(self, name: str, spec: PaneTableSpec) -> PaneTable:
        """Declare (once, in `open`) a table of accumulators by pane; it is restored when this returns."""

    def running_table(self, name: str, spec: PaneTableSpec, ttl: Ttl | None = None) -> RunningTable:
        """Declare (once, in `open`) a table of accumulators by key; it is restored when this returns."""

    def session_table(self, name: str, spec: PaneTableSpec, rule: SessionRule) -> SessionTable:
        """Declare (once, in `open`) a table of sessions; it is restored when this returns."""

    def row_state(self, key_schema: pa.Schema, *, evictable: bool = False) -> RowState:
        """Declare (once, in `open`) values, rows and timers by key; `evictable`: keys may be evicted."""

    def check_all_declared(self) -> None:
        """Check that every state of the snapshot was declared."""

    def freeze(self, checkpoint_id: int | None = None) -> tuple[FrozenState, ...]:
        """Freeze all declared states: advance the epoch, keep references, copy no data yet."""

    def completed(self, checkpoint_id: int) -> None:
        """Record that the checkpoint frozen under that id is complete: its segments may be compacted."""

    def compaction(self) -> CompactionJob | None:
        """Return a compaction for the background when a tier is full and none is running."""

    def compacted(self, job: CompactionJob, file: FileRef | None) -> None:
        """Replace the inputs by the merged segment, which is durable (None: abandoned), in later snapshots."""

    def prefetch(self) -> PrefetchJob | None:
        """Return the next prefetch for the background, if one is left and local space allows it."""

    @property
    def memory_bytes(self) -> int:
        """The managed bytes held: hot tables, frozen pages, open segments."""

    def close(self) -> None:
        """Free memory and local files."""
