"""What the task and the operators know of keyed state: the store of one operator, and the frozen state of one barrier.

Implemented by `penstock.state.store`. Everything but `encode` and `CompactionJob.run` is called in the subtask's own
thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.log.encoded_segment import EncodedSegment
    from penstock.state.log.ttl import Ttl
    from penstock.state.panes.pane_table import PaneTable
    from penstock.state.panes.running_table import RunningTable
    from penstock.state.panes.session_cold import SessionRule
    from penstock.state.panes.session_table import SessionTable
    from penstock.state.tables.row_state import RowState


class FrozenState(Protocol):
    """One state as of one barrier.

    Pages are copied by the owner's thread, piece by piece; encoding happens in the background.
    """

    def copy_pages(self, limit: int) -> bool:
        """Copy up to `limit` frozen pages that were not yet copied by a write.

        True when none is left and `encode` may start.
        """

    def encode(self) -> tuple[EncodedSegment, ...]:
        """Return all segments up to this barrier that are not durable yet, earlier failed uploads too. Any thread."""

    def durable(self, files: Mapping[int, FileRef]) -> None:
        """The segments at these positions are written and verified."""

    def failed(self) -> None:
        """The upload was given up; the segments stay in the log and are offered again by the next frozen state."""

    def snapshot(self) -> KeyedStateSnapshot:
        """Return base and all segments up to the barrier. Only legal when all of them are durable."""

    @property
    def memory_bytes(self) -> int:
        """Bytes held for this frozen state, counted against the managed memory."""


class CompactionJob(Protocol):
    """Merges committed segments of one tier.

    `run` in the background, then `KeyedStateStore.compacted` in the owner's thread.
    """

    @property
    def state(self) -> str:
        """Name of the state whose log it is of."""

    @property
    def inputs(self) -> tuple[Segment, ...]:
        """The segments that are merged."""

    def run(self, read: Callable[[FileRef], bytes]) -> EncodedSegment:
        """Read, merge (last by order wins, tombstones applied), encode."""


class PrefetchJob(Protocol):
    """Rows fetched before anybody asks: `run` in the background, then `install` in the owner's thread."""

    def run(self) -> None:
        """Read the rows."""

    def install(self) -> None:
        """Put them in."""


class KeyedStateStore(Protocol):
    """All keyed state of one operator of one subtask."""

    def pane_table(self, name: str, spec: PaneTableSpec) -> PaneTable:
        """Declare (once, in `open`) a table of accumulators by pane; restored rows are in it when this returns."""

    def running_table(self, name: str, spec: PaneTableSpec, ttl: Ttl | None = None) -> RunningTable:
        """Declare (once, in `open`) a table of accumulators by key; restored rows are in it when this returns."""

    def session_table(self, name: str, spec: PaneTableSpec, rule: SessionRule) -> SessionTable:
        """Declare (once, in `open`) a table of sessions; restored rows are in it when this returns."""

    def row_state(self, key_schema: pa.Schema, *, leaves: bool = False) -> RowState:
        """Declare (once, in `open`) values, rows and timers by key; `leaves`: keys may leave memory."""

    def check_all_declared(self) -> None:
        """Check that nothing of the snapshot is left undeclared."""

    def freeze(self, checkpoint_id: int | None = None) -> tuple[FrozenState, ...]:
        """Freeze all declared states: bump the epoch, keep references, copy nothing yet."""

    def completed(self, checkpoint_id: int) -> None:
        """The checkpoint frozen under that id is complete: what it names may be compacted."""

    def compaction(self) -> CompactionJob | None:
        """Return work for the background when a tier is full and none is running."""

    def compacted(self, job: CompactionJob, file: FileRef | None) -> None:
        """The merged segment is durable (None: given up); it replaces its inputs in later snapshots."""

    def prefetch(self) -> PrefetchJob | None:
        """Return rows for the background to fetch, while there are such and local space allows."""

    @property
    def memory_bytes(self) -> int:
        """Managed bytes held: hot tables, frozen pages, open segments."""

    def close(self) -> None:
        """Free memory and local files."""
