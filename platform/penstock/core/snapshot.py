"""The snapshot of a subtask at a checkpoint, as values.

They travel in acks, are stored in manifests and return at a restore. Written by the task, collected by the checkpoint
coordinator, read by restore, the committers and the offline tools. All hashes are signed 64 bit. Paths are relative to
the job's folder `<root>/<job name>/` unless they contain `://`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.core.structs import prepare


class FileRef(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an object: `length` bytes from `offset`; or the bytes themselves when they are small (`inline`)."""

    path: str = ""
    offset: int = 0
    length: int = 0
    #: xxh3 or crc32 of the part, as `algorithm:hex`.
    checksum: str = ""
    inline: bytes | None = None


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of state rows, sorted by `__key_hash`.

    It belongs to its log from the freeze on, even if the checkpoint is aborted.
    """

    file: FileRef
    #: Position in the log of (subtask, state); unique within the writer's log, higher is newer.
    position: int
    #: Writer of this segment, unique per attempt: `<run>/<vertex>/<subtask>/<attempt>`.
    writer: str
    rows: int
    hash_min: int
    hash_max: int
    #: Lowest and highest namespace (pane start in us, timer time); a segment below a closing tombstone need not be
    #: read.
    namespace_min: int
    namespace_max: int
    #: Rows outside this range are ignored; set when a rescale gives the file to several subtasks.
    clip_low: int = HASH_MIN
    clip_high: int = HASH_MAX
    tier: int = 0
    #: Length of the file's tail: the footer, the checksums of its row groups, and their checksum; 0: read the whole
    #: file.
    footer_length: int = 0
    footer_checksum: str = ""


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """Hides rows of (hash range, namespace range) before `position`; its scope is its writer's range."""

    position: int
    hash_low: int
    hash_high: int
    namespace_low: int
    namespace_high: int


class KeyedStateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One keyed state of one subtask: all segments up to the barrier, oldest first, with its tombstones."""

    uid: str
    state: str
    #: Arrow schema of the rows (IPC, base64), field ids in field metadata `id`.
    schema: str
    hash_low: int
    hash_high: int
    segments: tuple[Segment, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()


class OperatorStateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Non-keyed state of one subtask: JSON-able items; `mode` says how a rescale distributes them."""

    uid: str
    name: str
    #: `split`: source splits, assigned by the job; `list`: round robin; `union`: all items to every subtask; `subtask`:
    #: watermarks, merged by minimum.
    mode: str
    items: tuple[Any, ...] = ()
    #: Columns of a user's own state (each item is a list of values), as text; else empty.
    schema: str = ""


class Committable(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one epoch of one sink subtask: durable, but not known to be published."""

    #: `<uid>/<run>/<subtask>/<checkpoint id>`, unique within the job.
    id: str
    uid: str
    run_id: str
    subtask: int
    checkpoint_id: int
    #: Transactional id and marker group of the run that created it; any committer resolves it against these.
    transactional_id: str = ""
    marker_group: str = ""
    #: Staged rows (Arrow IPC files), in order; one file is one chunk, published in one transaction.
    files: tuple[FileRef, ...] = ()
    rows: int = 0
    size_bytes: int = 0
    created_ms: int = 0
    #: Further data of the connector: producer id and epoch of an open transaction, file names...
    detail: dict[str, Any] = {}


def pending_text(output: Iterable[Committable]) -> str:
    """Return pending output as text: the rows of each sink."""
    rows: dict[str, int] = {}
    for committable in output:
        rows[committable.uid] = rows.get(committable.uid, 0) + committable.rows
    return ", ".join(f"{count:,} rows of sink {uid}" for uid, count in sorted(rows.items())) or "none"


class InFlightRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of an edge that barriers have overtaken, as an Arrow IPC stream: processed first at a restore."""

    #: Id of the edge (`graph.in_flight.edge_id`).
    edge: str
    #: The subtask that would have received them; on a keyed edge, with its hashes.
    receiver: int
    hash_low: int = HASH_MIN
    hash_high: int = HASH_MAX
    #: They were queued at their sender, after those that were queued at their receiver.
    at_sender: bool = False
    #: They are partial aggregates.
    combined: bool = False
    file: FileRef = FileRef()


class SubtaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask's part of one checkpoint."""

    vertex_id: str
    subtask: int
    keyed: tuple[KeyedStateSnapshot, ...] = ()
    operator: tuple[OperatorStateSnapshot, ...] = ()
    committables: tuple[Committable, ...] = ()
    #: In the order of the rows.
    in_flight: tuple[InFlightRows, ...] = ()
    #: Whether the subtask had seen the end of all its input at the barrier.
    finished: bool = False


prepare(KeyedStateSnapshot, OperatorStateSnapshot, Committable, SubtaskSnapshot)


class CheckpointMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a subtask about its part of a checkpoint; milliseconds and bytes."""

    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    state_bytes: int = 0
    new_bytes: int = 0
    #: Input processed between the first and the last barrier, and input that waited in blocked channels meanwhile.
    processed_bytes: int = 0
    buffered_bytes: int = 0
    #: Bytes of rows that the barriers have overtaken here, and whether they could.
    persisted_bytes: int = 0
    unaligned: bool = False
    #: The counters whose totals continue after a restart, at the barrier: rows in and out, late rows, bad records.
    counts: dict[str, int] = {}
