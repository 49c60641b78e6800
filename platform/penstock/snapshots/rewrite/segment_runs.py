"""Splits the log of a state into runs of segments that are rewritten independently of each other.

A large segment is a separate run; adjacent small segments form one run. The rows that a run contributes depend only
on its segments and on the tombstones that hide some of them. So a run that was rewritten for one checkpoint is valid
for each later one that still has it, which `SegmentRun.name` tells. Called by `snapshots.rewrite.prepared`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import polars as pl
import pyarrow as pa

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import read_file
from penstock.core.keygroup import ALL_HASHES, HashRange
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment
from penstock.graph.restore_plan import clip_keyed
from penstock.snapshots.rewrite.key_expressions import KeyColumn, keys_of
from penstock.snapshots.rewrite.rekey import is_timers, ordered, pieces_of, rekeyed, schema_of
from penstock.snapshots.rewrite.split_points import SnapshotLimits, loads_of, measured_loads, ranges_by_size
from penstock.state.log.segment_columns import key_names
from penstock.state.log.segment_file import SegmentFile
from penstock.state.log.segment_log import hides_some
from penstock.state.log.segments import merge_segments
from penstock.task.checkpoint.savepoint_copy import SavepointWriter


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The new key of one operator's states."""

    uid: str
    #: At least one column.
    key: tuple[KeyColumn, ...]

    @property
    def where(self) -> str:
        """Return the beginning of error messages."""
        return f"rekey: {self.uid}"


class SegmentRun(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Adjacent segments of one log in a hash range."""

    #: The segments, clipped to the range, and the tombstones that hide rows of them.
    held: KeyedStateSnapshot
    #: No older segment is in the log, so deletions have nothing to hide.
    oldest: bool
    #: Columns of the new key; empty: the key stays.
    key: tuple[KeyColumn, ...] = ()

    @property
    def name(self) -> str:
        """Return 32 hex digits; two runs of one name are rewritten to the same rows."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:32]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the files that it reads, approximately."""
        return int(loads_of((self.held,)).within(HashRange(self.held.hash_low, self.held.hash_high)))

    def write(self, source: ObjectStore, target: ObjectStore) -> KeyedStateSnapshot:
        """Write the rows, sorted by hash; a repetition writes the same files. Under a new key they have any hash.

        Raises:
            SnapshotDamagedError: a file is missing or damaged.
            UsageError: an expression of the key fails.
            StorageError: the target cannot be written.
        """
        writer = SavepointWriter(source, target, f"{self.name}-")
        if not self.key:
            return writer.rows(self._empty(self.held.schema), self._rows(source))
        where = f"rekey: {self.held.uid}"
        old = schema_from_text(self.held.schema)
        rows = pa.concat_tables([old.empty_table(), *self._rows(source)]).combine_chunks()
        keys = keys_of(pl.DataFrame(pl.from_arrow(rows.select(key_names(old)))), self.key, where)
        new = schema_of(old, keys.schema, where)
        moved = ordered(rekeyed(rows, keys, new), timers=is_timers(self.held.state))
        state = msgspec.structs.replace(
            self._empty(schema_to_text(new)), hash_low=ALL_HASHES.low, hash_high=ALL_HASHES.high
        )
        return writer.rows(state, pieces_of(moved))

    def _empty(self, schema: str) -> KeyedStateSnapshot:
        return msgspec.structs.replace(self.held, schema=schema, segments=(), tombstones=())

    def _rows(self, source: ObjectStore) -> Iterator[pa.Table]:
        held = self.held
        return merge_segments(
            [SegmentFile(segment, lambda ref: read_file(source, ref)) for segment in held.segments],
            held.tombstones,
            schema_from_text(held.schema),
            within=HashRange(held.hash_low, held.hash_high),
            keep_deleted=not self.oldest,
        )


def runs_of(
    part: KeyedStateSnapshot,
    read: Callable[[FileRef], bytes],
    limits: SnapshotLimits,
    key: tuple[KeyColumn, ...] = (),
) -> list[SegmentRun]:
    """Return the runs of one subtask's log, oldest first, each of at most `limits.run_file_bytes` of files.

    Raises:
        SnapshotDamagedError: a file is missing or damaged; only files above that limit are read.
    """
    within = HashRange(part.hash_low, part.hash_high)
    found: list[SegmentRun] = []
    for number, group in enumerate(_grouped(part.segments, limits)):
        state = msgspec.structs.replace(part, segments=tuple(group))
        loads = loads_of((state,))
        if loads.within(within) > limits.run_file_bytes:
            loads = measured_loads((state,), read)
        for hashes in ranges_by_size(loads, within, limits.run_file_bytes):
            clipped = clip_keyed(state, hashes)
            if clipped is None or not clipped.segments:
                continue
            stones = tuple(t for t in clipped.tombstones if any(hides_some(t, s) for s in clipped.segments))
            held = msgspec.structs.replace(clipped, tombstones=stones)
            found.append(SegmentRun(held=held, oldest=number == 0, key=key))
    return found


def is_large(segment: Segment, limits: SnapshotLimits) -> bool:
    """Return whether a segment is a separate run; later checkpoints are likely to have it too."""
    return segment.file.inline is None and segment.file.length >= limits.large_file_bytes


def _grouped(segments: Sequence[Segment], limits: SnapshotLimits) -> Iterator[list[Segment]]:
    """Split a log into runs; segments of a run are adjacent, as rows of one must not pass another's."""
    group: list[Segment] = []
    for segment in sorted(segments, key=lambda s: (s.position, s.writer, s.clip_low)):
        if group and (is_large(segment, limits) or is_large(group[-1], limits)):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group
