"""One state of a savepoint, written by many tasks at once, each with some of the rows in any order.

`plan_write` (driver) -> `write_part` (each task, perhaps several times) -> `finish` or `abort_write` (driver). The
target folder is a savepoint once its manifest exists. All files of one write have its token in their names, so
files of failed attempts can be told apart and removed. Called by `on_spark.spark_writing`; nothing here depends on
Spark.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import CLAIM, SAVEPOINT_MANIFEST, Manifest, decode_manifest
from penstock.checkpoint.retention import files_of
from penstock.checkpoint.stores import open_store, read_file
from penstock.core.errors import SavepointInUseError, StorageError, UsageError
from penstock.core.keygroup import HashRange, hash_range_of
from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot
from penstock.snapshots.access.opening import open_snapshot, open_target
from penstock.snapshots.rewrite.repartition import require_none_in_flight
from penstock.snapshots.rewrite.split_points import (
    DEFAULT_LIMITS,
    SnapshotLimits,
    loads_of,
    ranges_by_size,
    shared_ranges,
)
from penstock.snapshots.rewrite.writing import StateRows, bootstrap_manifest
from penstock.state.log.segment_columns import KEY_HASH
from penstock.state.log.segment_file import SegmentFile, rows_within
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore
    from penstock.core.snapshot import Segment
    from penstock.graph.job_graph import JobGraph

#: Files of a write that was aborted without being able to remove them.
_LEFTOVER = re.compile(r"(?:[^/]+/[^/]+/part|pending/chunk)-[0-9a-f]{12}-[^/]+")
#: Files of a savepoint by any other writer of penstock, by the operator's uid. A write that replaced it may have died
#: before removing them.
_REPLACED = re.compile(r"(?:([^/]+)/[^/]+/part-[\w-]*\d{5}\.parquet|pending/chunk-[\w-]*\d{5}\.arrow)")


@dataclass(frozen=True)
class Target:
    """The folder of a savepoint, as it was when the write began."""

    uri: str
    #: Twelve hex digits, unique to this write.
    token: str
    #: Version of the manifest to replace; empty: there is none.
    replaces: str = ""
    #: Files left by an earlier write.
    leftovers: tuple[str, ...] = ()

    @property
    def store(self) -> ObjectStore:
        """Return the folder's store."""
        return open_store(self.uri)

    def writer(self, name: str, source: ObjectStore | None = None) -> SavepointWriter:
        """Return a writer of files; each needs its own `name`."""
        store = self.store
        return SavepointWriter(source or store, store, f"{self.token}-{name}-")

    def require_open(self, written: Iterable[KeyedStateSnapshot]) -> None:
        """Remove a task's files if the write has ended without it.

        Called after the last file and before the task ends. If the write ends, either its clean-up finds the files, or
        this call finds that it has ended.

        Raises:
            StorageError: it has, or another savepoint was written to the folder.
        """
        store = self.store
        if _version(store) == self.replaces:
            return
        for state in written:
            for segment in state.segments:
                store.delete(segment.file.path)
        msg = f"another savepoint was written to {self.uri} while a task was writing there"
        raise StorageError(msg, hint="a late attempt of a task does no harm; otherwise write to another folder")

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, then remove the replaced savepoint and the files of unused attempts.

        Raises:
            StorageError: another savepoint was written to the folder meanwhile, or it cannot be written.
            SavepointInUseError: a job was started from the savepoint to be replaced.
        """
        store = self.store
        old: set[str] = set()
        if self.replaces:
            _require_unclaimed(store)
            with contextlib.suppress(FileNotFoundError):  # then it cannot be replaced either, which is reported below
                old = files_of(decode_manifest(store.read(SAVEPOINT_MANIFEST)))
        SavepointWriter(store, store).manifest(manifest, replaces=self.replaces)
        for key in sorted({*old, *self.leftovers} - files_of(manifest)):
            store.delete(key)
        self.sweep()

    def sweep(self) -> None:
        """Remove the files of this write that the savepoint does not name: all of them if there is none."""
        store = self.store
        named: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            named = files_of(decode_manifest(store.read(SAVEPOINT_MANIFEST)))
        own = re.compile(rf"(?:[^/]+/[^/]+/part|pending/chunk)-{self.token}-[^/]+")
        for key in store.list(""):
            if own.fullmatch(key) and key not in named:
                store.delete(key)


def new_target(uri: str, token: str) -> Target:
    """Return an empty folder as target; raises UsageError if it is not empty."""
    return Target(open_target(uri).uri, token)


def replaced_target(uri: str, token: str) -> Target:
    """Return a folder that is empty, or holds a savepoint or files of a write to it, and will be replaced.

    Raises:
        UsageError: the folder has other content.
        SavepointInUseError: a job was started from the savepoint.
    """
    store = open_store(uri.rstrip("/"))
    keys = store.list("")
    version = _version(store)
    named: set[str] = set()
    uids: set[str | None] = set()
    if version:
        _require_unclaimed(store)
        try:
            manifest = decode_manifest(store.read(SAVEPOINT_MANIFEST))
        except msgspec.MsgspecError as error:
            msg = f"{store.uri}/{SAVEPOINT_MANIFEST} is not the manifest of a savepoint: {error}"
            raise UsageError(msg, hint="give a new folder") from error
        named = {*files_of(manifest), SAVEPOINT_MANIFEST}
        uids = {None, *manifest.operators}
    rest = [key for key in keys if key not in named]
    for key in rest:
        replaced = _REPLACED.fullmatch(key)
        if not _LEFTOVER.fullmatch(key) and (replaced is None or replaced[1] not in uids):
            msg = f"{store.uri} holds {key}, which does not belong to a savepoint"
            raise UsageError(msg, hint="such a folder is never replaced: use another one")
    return Target(store.uri, token, version, tuple(rest))


def _version(store: ObjectStore) -> str:
    try:
        return store.read_with_etag(SAVEPOINT_MANIFEST)[1]
    except FileNotFoundError:
        return ""


def _require_unclaimed(store: ObjectStore) -> None:
    if store.list(CLAIM):
        msg = f"a job was started from the savepoint {store.uri} and may still read its files"
        raise SavepointInUseError(msg, hint="give another folder, or dispose of this one")


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
    require_none_in_flight(manifest.subtasks)
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
        _require_disjoint_keys(plan, state)
    if plan.base is not None:
        manifest = _with_state(plan, plan.base, states, plan.target.writer("rest"))
    else:
        snapshot = open_snapshot(plan.source)
        writer = plan.target.writer("rest", snapshot.store)
        manifest = _with_state(plan, snapshot.manifest, states, writer)
        manifest = msgspec.structs.replace(manifest, origin=manifest.origin or snapshot.store.uri)
    plan.target.publish(manifest)


def abort_write(plan: WritePlan) -> None:
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
        for piece in wanted.split(-(-here // self._piece_bytes)):
            found = [table for file in self._files for table in file.tables(piece)]
            table = pa.concat_tables([*found, rows_within(self._last, piece)])
            if table.num_rows:
                self._rows.require_unique(table)
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


def _require_disjoint_keys(plan: WritePlan, state: KeyedStateSnapshot) -> None:
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
                plan.rows.require_unique(pa.concat_tables(found), hint)


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
