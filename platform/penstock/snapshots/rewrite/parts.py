"""One state of a savepoint, written by many tasks at once, each with some of the rows in any order.

`plan_write` (the driver) -> `write_part` (each task, perhaps several times) -> `finish` or `give_up` (the driver). A
task sorts its rows on its own disk and writes a file for each subtask's hash range. No task can detect that another one
has a row of the same key: `finish` searches the ranges where files of two tasks overlap. Called by
`snapshots.on_spark.spark_writing`; nothing here depends on Spark.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest import Manifest
from penstock.checkpoint.stores import read_file
from penstock.core.keygroup import HashRange, hash_range_of
from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.snapshot_limits import DEFAULT_LIMITS, SnapshotLimits
from penstock.snapshots.rewrite.given_rows import StateRows
from penstock.snapshots.rewrite.split_points import even_ranges, loads_of, ranges_by_size, shared_ranges
from penstock.snapshots.rewrite.target import Target
from penstock.snapshots.rewrite.writing import bootstrap_manifest
from penstock.state.log.segment_columns import KEY_HASH
from penstock.state.log.segment_file import SegmentFile, rows_within
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

if TYPE_CHECKING:
    from penstock.core.snapshot import Segment
    from penstock.graph.job_graph import JobGraph

_TOGETHER = "repartition the frame by the key, so that all elements of a list are in one task"
_ONCE = "keep one row a key"


@dataclass(frozen=True)
class WritePlan:
    """The plan of a write; a value that travels to the tasks."""

    rows: StateRows
    target: Target
    vertex_id: str
    #: Hash range of each subtask.
    hashes: tuple[HashRange, ...]
    #: Manifest of the snapshot that all other content is copied from; empty: all other content begins empty.
    source: str
    #: Manifest without the state, if there is no such snapshot.
    base: Manifest | None = None
    limits: SnapshotLimits = DEFAULT_LIMITS

    def empty(self, hashes: HashRange) -> KeyedStateSnapshot:
        """Return a subtask's part of the state without rows."""
        return KeyedStateSnapshot(
            uid=self.rows.operator.uid,
            state=self.rows.state,
            schema=self.rows.text,
            hash_low=hashes.low,
            hash_high=hashes.high,
        )


def plan_write(
    graph: JobGraph, rows: StateRows, target: Target, source: str, limits: SnapshotLimits = DEFAULT_LIMITS
) -> WritePlan:
    """Return the partition of the state: that of the snapshot `source` (its URI), else that of the job.

    Raises:
        NotFoundError: there is no such snapshot.
        SnapshotDamagedError: its manifest cannot be read.
    """
    uid = rows.operator.uid
    vertex = next(v for v in graph.vertices if any(o.uid == uid for o in v.operators))
    if not source:
        base = bootstrap_manifest(graph, target.uri)
        hashes = _hashes(vertex.parallelism, base.key_groups)
        return WritePlan(rows, target, vertex.id, hashes, "", base, limits)
    snapshot = open_snapshot(source)
    manifest = snapshot.manifest
    own = sum(part.vertex_id == vertex.id for part in manifest.subtasks) or vertex.parallelism
    parallelism, vertex_id = manifest.operators.get(uid, (own, vertex.id))
    hashes = _hashes(parallelism, manifest.key_groups)
    return WritePlan(rows, target, vertex_id, hashes, snapshot.uri, limits=limits)


def write_part(plan: WritePlan, batches: Iterable[pa.RecordBatch], task: str) -> tuple[KeyedStateSnapshot, ...]:
    """Write some of the rows; return the part of each subtask.

    `task` is a name that no other attempt has.

    Raises:
        UsageError: see `StateRows`; or two of the rows have one key.
        StorageError: the target cannot be written, or the write has ended.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-write-") as folder:
        runs = _Runs(plan, Path(folder))
        for table in _gathered(batches, plan.limits.run_bytes):
            runs.add(plan.rows.typed(table))
        writer = plan.target.writer(task)
        written = tuple(writer.rows(plan.empty(hashes), runs.within(hashes)) for hashes in plan.hashes)
    plan.target.require_open(written)
    return written


def finish(plan: WritePlan, parts: Sequence[tuple[KeyedStateSnapshot, ...]]) -> None:
    """Make the savepoint from the files of one attempt of each task.

    Raises:
        UsageError: rows of two tasks have one key.
        SnapshotDamagedError: a file of the source snapshot is missing or damaged.
        StorageError: the target cannot be written.
        SavepointInUseError: see `Target.publish`.
    """
    states = tuple(_joined(plan.empty(own), [p[i] for p in parts]) for i, own in enumerate(plan.hashes))
    for state in states:
        _require_apart(plan, state)
    if plan.base is not None:
        manifest = _with_state(plan, plan.base, states, plan.target.writer("rest"))
    else:
        snapshot = open_snapshot(plan.source)
        writer = plan.target.writer("rest", snapshot.store)
        manifest = _with_state(plan, snapshot.manifest, states, writer)
        manifest = msgspec.structs.replace(manifest, origin=manifest.origin or snapshot.store.uri)
    plan.target.publish(manifest)


def give_up(plan: WritePlan) -> None:
    """Remove the written files, unless the savepoint exists."""
    plan.target.sweep()


class _Runs:
    """Rows of one task: sorted runs on disk and the last one in memory, read by hash range."""

    def __init__(self, plan: WritePlan, folder: Path) -> None:
        self._rows, self._piece_bytes = plan.rows, plan.limits.piece_bytes
        self._store = LocalStore(str(folder))
        self._spool = SavepointWriter(self._store, self._store)
        self._all = plan.empty(HashRange(plan.hashes[0].low, plan.hashes[-1].high))
        self._files: list[SegmentFile] = []
        self._last: pa.Table | None = None
        self._bytes = 0
        self._span: HashRange | None = None

    def add(self, table: pa.Table) -> None:
        """Add rows sorted by hash, at least one."""
        if self._last is not None:
            spooled = self._spool.rows(self._all, iter([self._last]))
            self._files += [SegmentFile(s, lambda ref: read_file(self._store, ref)) for s in spooled.segments]
        self._last = table
        self._bytes += table.nbytes
        hashes = table.column(KEY_HASH)
        low, high = hashes[0].as_py(), hashes[-1].as_py()
        known = self._span or HashRange(low, high)
        self._span = HashRange(min(low, known.low), max(high, known.high))

    def within(self, hashes: HashRange) -> Iterator[pa.Table]:
        """Yield all rows of a range sorted by hash, rows of one hash in one table; raises UsageError."""
        wanted = self._span and self._span.intersect(hashes)
        if self._last is None or wanted is None or self._span is None:
            return
        here = self._bytes * (wanted.high - wanted.low + 1) // (self._span.high - self._span.low + 1)
        for piece in even_ranges(wanted, -(-here // self._piece_bytes)):
            found = [table for file in self._files for table in file.tables(piece)]
            table = pa.concat_tables([*found, rows_within(self._last, piece)])
            if table.num_rows:
                self._rows.require_once(table)
                yield self._rows.numbered(table.sort_by(KEY_HASH) if found else table)


def _gathered(batches: Iterable[pa.RecordBatch], run_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows as non-empty tables of a bounded size."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= run_bytes:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _hashes(parallelism: int, key_groups: int) -> tuple[HashRange, ...]:
    return tuple(hash_range_of(subtask, parallelism, key_groups) for subtask in range(parallelism))


def _joined(empty: KeyedStateSnapshot, parts: Sequence[KeyedStateSnapshot]) -> KeyedStateSnapshot:
    """Return one subtask's parts of all tasks as one, with new positions."""
    segments = sorted((s for part in parts for s in part.segments), key=lambda s: (s.hash_min, s.file.path))
    placed = (msgspec.structs.replace(segment, position=place) for place, segment in enumerate(segments, 1))
    return msgspec.structs.replace(empty, segments=tuple(placed))


def _require_apart(plan: WritePlan, state: KeyedStateSnapshot) -> None:
    """Refuse two rows of one key in two files; hashes in the range of one file alone are not read."""
    store = plan.target.store
    hint = _TOGETHER if plan.rows.is_list else _ONCE
    for shared in shared_ranges(_range(segment) for segment in state.segments):
        near = [segment for segment in state.segments if _range(segment).intersect(shared)]
        files = [SegmentFile(segment, lambda ref: read_file(store, ref)) for segment in near]
        held = msgspec.structs.replace(state, segments=tuple(near))
        for piece in ranges_by_size(loads_of([held]), shared, plan.limits.compared_bytes):
            found = [table for file in files for table in file.tables(piece)]
            if len(found) > 1:
                plan.rows.require_once(pa.concat_tables(found), hint)


def _range(segment: Segment) -> HashRange:
    return HashRange(segment.hash_min, segment.hash_max)


def _with_state(
    plan: WritePlan, manifest: Manifest, states: tuple[KeyedStateSnapshot, ...], writer: SavepointWriter
) -> Manifest:
    """Return a manifest with the state, and with copies of all other content."""
    uid, name = states[0].uid, states[0].state
    subtasks = []
    for part in manifest.subtasks:
        keyed = [writer.state(state) for state in part.keyed if (state.uid, state.state) != (uid, name)]
        if part.vertex_id == plan.vertex_id:
            keyed.append(states[part.subtask])
        outputs = tuple(writer.output(output) for output in part.committables)
        subtasks.append(msgspec.structs.replace(part, keyed=tuple(keyed), committables=outputs))
    known = {part.subtask for part in manifest.subtasks if part.vertex_id == plan.vertex_id}
    for number, state in enumerate(states):
        if number not in known:
            subtasks.append(SubtaskSnapshot(vertex_id=plan.vertex_id, subtask=number, keyed=(state,)))
    return msgspec.structs.replace(
        manifest,
        kind="savepoint",
        operators={**manifest.operators, uid: (len(states), plan.vertex_id)},
        subtasks=tuple(subtasks),
        pending=tuple(writer.output(output) for output in manifest.pending),
        note=plan.target.uri,
    )
