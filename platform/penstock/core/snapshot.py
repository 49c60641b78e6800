"""What a subtask hands over at a checkpoint.

As values that travel in acks, lie in manifests and come back at a restore.

Written by the task, collected by the checkpoint coordinator, read by restore, the committers and the offline tools.
All hashes are signed 64 bit, all paths are relative to the job's folder `<root>/<job name>/` unless they hold `://`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.keygroup import HASH_MAX, HASH_MIN


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

    Belongs to its log from the freeze on, whatever becomes of a checkpoint.
    """

    file: FileRef
    #: Position in the log of (subtask, state); unique within the writer's log, higher is newer.
    position: int
    #: Attempt-unique writer of this segment: `<run>/<vertex>/<subtask>/<attempt>`.
    writer: str
    rows: int
    hash_min: int
    hash_max: int
    #: Lowest and highest namespace (pane start in us, timer time) held; a segment below a closing tombstone needs no
    #: read.
    namespace_min: int
    namespace_max: int
    #: Rows outside this range are not ours (set when a rescale hands the file to several subtasks).
    clip_low: int = HASH_MIN
    clip_high: int = HASH_MAX
    tier: int = 0
    #: The file's last bytes, with the footer and the checksums of its row groups, and their own; 0: read all of it.
    footer_length: int = 0
    footer_checksum: str = ""


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """Hides rows of (hash range, namespace range) that stand before `position` in order.

    Its scope is its writer's range.
    """

    position: int
    hash_low: int
    hash_high: int
    namespace_low: int
    namespace_high: int


class KeyedStateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One keyed state of one subtask: base and all segments up to the barrier, oldest first, with its tombstones."""

    uid: str
    state: str
    #: Arrow schema of the rows (IPC, base64), field ids in field metadata `id`.
    schema: str
    hash_low: int
    hash_high: int
    segments: tuple[Segment, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()


class OperatorStateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Non-keyed state of one subtask: JSON-able items; `mode` says how a rescale hands them out."""

    uid: str
    name: str
    #: `split` = source splits, redistributed by the job; `list` round robin; `union` all to everybody; `subtask` min-
    #: merged watermarks.
    mode: str
    items: tuple[Any, ...] = ()
    #: Of a user's own state the columns of its items (each a list of values), as text; else empty.
    schema: str = ""


class Committable(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one epoch of one sink subtask that is durable but not yet known to be published."""

    #: `<uid>/<run>/<subtask>/<checkpoint id>`, unique within the job.
    id: str
    uid: str
    run_id: str
    subtask: int
    checkpoint_id: int
    #: Transactional id and marker group of the run that created it; it is resolved against these whoever publishes it.
    transactional_id: str = ""
    marker_group: str = ""
    #: Staged rows (Arrow IPC files), in order; one file is one chunk, published in one transaction.
    files: tuple[FileRef, ...] = ()
    rows: int = 0
    size_bytes: int = 0
    created_ms: int = 0
    #: What the connector needs besides (open transaction's producer id and epoch, file names...).
    detail: dict[str, Any] = {}


class SubtaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All of one subtask's part of one checkpoint."""

    vertex_id: str
    subtask: int
    keyed: tuple[KeyedStateSnapshot, ...] = ()
    operator: tuple[OperatorStateSnapshot, ...] = ()
    committables: tuple[Committable, ...] = ()
    #: Whether the subtask had seen the end of all its input at the barrier.
    finished: bool = False


class CheckpointMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What a subtask measured of its part of a checkpoint; milliseconds and bytes."""

    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    state_bytes: int = 0
    new_bytes: int = 0
    #: Input taken between the first and the last barrier, and what lay meanwhile in the channels that waited.
    processed_bytes: int = 0
    buffered_bytes: int = 0
