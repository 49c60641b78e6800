"""`penstock state fsck`: check that every file that a snapshot names exists, is whole, and matches its manifest.

In a job's folder all retained checkpoints are verified, and files that no manifest names are listed. Nothing is changed
or deleted.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.checkpoint.job_lease import LEASE
from penstock.checkpoint.manifest_log import (
    CLAIM,
    DAMAGED_HINT,
    PREFIX,
    SAVEPOINT_MANIFEST,
    Manifest,
    key_of,
    sequence_of,
)
from penstock.checkpoint.recovery import present_manifests
from penstock.checkpoint.retention import SWEPT_PREFIXES, files_of
from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import join_uri
from penstock.core.errors import SnapshotDamagedError, StateMismatchError, StorageError
from penstock.core.evolution import conform_table
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import Committable, FileRef, InFlightRows, KeyedStateSnapshot, Segment
from penstock.kernels.keys.hashing import hash_columns
from penstock.snapshots.access.content import states_of
from penstock.snapshots.access.opening import Snapshot, open_snapshot, read_log
from penstock.state.log.row_spec import TIMERS
from penstock.state.log.segment_columns import KEY_HASH, NAMESPACE, key_names, one_batch

#: Folders that may be in a job's or a savepoint's folder, besides files in manifests.
_KNOWN_PREFIXES = (PREFIX, "savepoints/", *SWEPT_PREFIXES)
_KNOWN_KEYS = (LEASE, CLAIM, SAVEPOINT_MANIFEST)


@dataclass(frozen=True, slots=True)
class Damage:
    """One defect."""

    #: The file, or the manifest if that is damaged.
    file: str
    #: The manifest that names it.
    manifest: str
    problem: str
    remedy: str
    #: `uid/state` of a keyed state, `uid` of a sink's output, `rows in flight`; empty for a manifest.
    state: str = ""


@dataclass(slots=True)
class Report:
    """The result of a verification."""

    uri: str
    manifests: int = 0
    files: int = 0
    size_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)
    #: Files that no manifest names, left by aborted checkpoints; they are removed some time after the job's next start.
    unreferenced: list[str] = field(default_factory=list)
    #: Files that do not belong to penstock.
    unknown: list[str] = field(default_factory=list)


def verify(uri: str, *, checkpoint: int | None = None) -> Report:
    """Verify a savepoint, a job's folder with all retained checkpoints, or one checkpoint of it.

    Raises:
        NotFoundError: there is no snapshot.
        UsageError: `uri` holds several jobs.
        StorageError: the store cannot be read.
    """
    try:
        snapshot = open_snapshot(uri, checkpoint=checkpoint)
    except SnapshotDamagedError as error:
        where, _, problem = error.message.partition(" is damaged: ")
        remedy = f"use another savepoint or checkpoint; in a job's log: {DAMAGED_HINT}"
        return Report(uri, damaged=[Damage(where, where, f"cannot be read: {problem or where}", remedy)])
    report = Report(snapshot.store.uri)
    check = _Check(report)
    whole_job = snapshot.manifest.kind != "savepoint" and checkpoint is None and not uri.endswith(".json")
    log = read_log(snapshot.store) if whole_job else (snapshot.manifest,)
    present = [m.sequence for m in present_manifests(log)]
    newest = snapshot.manifest.sequence
    for manifest in log:
        if manifest.sequence not in present and manifest is not snapshot.manifest:
            continue
        where = snapshot.uri
        if whole_job:
            where = join_uri(snapshot.store.uri, key_of(manifest.sequence))
        remedy = _remedy(manifest, newest)
        check.manifest(Snapshot(where, snapshot.store, manifest), remedy)
    if whole_job or snapshot.manifest.kind == "savepoint":
        _unreferenced(snapshot.store, log, report)
    if whole_job and report.damaged:
        _without_removed(snapshot.store, report)
    return report


def _without_removed(store: ObjectStore, report: Report) -> None:
    """Drop the damage of entries that are gone or no longer name files: retention of a running job does that."""
    naming = (manifest for manifest in read_log(store) if manifest.subtasks or manifest.pending)
    there = {join_uri(store.uri, key_of(manifest.sequence)) for manifest in naming}
    report.damaged = [damage for damage in report.damaged if damage.manifest in there]


def _remedy(manifest: Manifest, newest: int) -> str:
    if manifest.kind == "savepoint":
        return "restore the file from a copy, or use another savepoint"
    if manifest.kind == "checkpoint" and manifest.sequence == newest:
        return (
            "restore the file from a copy, or start the job from a savepoint with --from and --accept-duplicates; "
            "`penstock state repartition --checkpoint N` makes one of an older checkpoint that is whole"
        )
    return "the job does not restore this entry while newer checkpoints are whole"


#: The owner of a file.
_Owner = tuple[KeyedStateSnapshot, Segment] | Committable | InFlightRows


class _Check:
    """Verifies manifests one after another; bytes that several of them name are read once."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._seen: dict[object, list[str]] = {}

    def manifest(self, snapshot: Snapshot, remedy: str) -> None:
        manifest, report = snapshot.manifest, self._report
        report.manifests += 1
        for state in states_of(manifest):
            for problem in _overlaps(state.keyed):
                place = f"{state.uid}/{state.name}"
                report.damaged.append(Damage(snapshot.uri, snapshot.uri, problem, "use another snapshot", place))
            for part in state.keyed:
                for segment in part.segments:
                    self._file(snapshot, segment.file, (part, segment), (f"{state.uid}/{state.name}", remedy))
        outputs = {c.id: c for s in manifest.subtasks for c in s.committables} | {c.id: c for c in manifest.pending}
        for output in outputs.values():
            for ref in output.files:
                self._file(snapshot, ref, output, (output.uid, remedy))
        for rows in (rows for subtask in manifest.subtasks for rows in subtask.in_flight):
            self._file(snapshot, rows.file, rows, ("rows in flight", remedy))

    def _file(
        self,
        snapshot: Snapshot,
        ref: FileRef,
        owner: _Owner,
        said: tuple[str, str],
    ) -> None:
        report, (state, remedy) = self._report, said
        # clips and positions in the log differ between checkpoints, the bytes do not
        known = (ref.path, ref.offset, ref.length, ref.checksum, ref.inline, state)
        if known not in self._seen:
            report.files += 1
            report.size_bytes += ref.length or len(ref.inline or b"")
            self._seen[known] = list(self._problems(snapshot, ref, owner))
        where = f"{snapshot.uri} (inline)" if ref.inline is not None else _place(snapshot, ref)
        for problem in self._seen[known]:
            report.damaged.append(Damage(where, snapshot.uri, problem, remedy, state))

    def _problems(self, snapshot: Snapshot, ref: FileRef, owner: _Owner) -> Iterator[str]:
        try:
            data = snapshot.read(ref)
        except SnapshotDamagedError as error:
            yield error.message
            return
        except StorageError as error:
            yield f"cannot be read: {error.message}"
            return
        if isinstance(owner, Committable):
            yield from _output_problems(data)
        elif isinstance(owner, InFlightRows):
            yield from _stream_problems(data)
        else:
            yield from segment_problems(data, *owner)


def segment_problems(data: bytes, state: KeyedStateSnapshot, segment: Segment) -> Iterator[str]:
    """Yield the differences between a segment's file and its entry in the manifest."""
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        table = file.read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        yield f"is not a Parquet file: {error}"
        return
    wanted = schema_from_text(state.schema)
    try:
        table = conform_table(table, wanted)  # a file may be older than the state's present columns
    except (pa.ArrowException, StateMismatchError):
        ours = ", ".join(f"{f.name} {f.type}" for f in wanted)
        theirs = ", ".join(f"{f.name} {f.type}" for f in table.schema)
        yield f"has the columns ({theirs}), but its manifest says ({ours})"
        return
    if table.num_rows != segment.rows:
        yield f"has {table.num_rows} rows, but its manifest says {segment.rows}"
    if table.num_rows == 0:
        return
    hashes = table.column(KEY_HASH).to_numpy()
    falls = np.flatnonzero(hashes[1:] < hashes[:-1]) + 1
    if state.state.startswith(TIMERS):  # a row group is sorted by time, and by hash only within one time
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        falls = np.setdiff1d(falls, np.cumsum(groups))
    if len(falls):
        yield f"is not sorted by {KEY_HASH}"
    namespaces = table.column(NAMESPACE).to_numpy()
    for name, values, low, high in (
        (KEY_HASH, hashes, segment.hash_min, segment.hash_max),
        (NAMESPACE, namespaces, segment.namespace_min, segment.namespace_max),
    ):
        found = int(values.min()), int(values.max())
        if found != (low, high):
            yield f"has {name} from {found[0]} to {found[1]}, but its manifest says {low} to {high}"
    keys = key_names(wanted)
    wrong = np.flatnonzero(hash_columns(one_batch(table), keys) != hashes)
    if keys and len(wrong):
        yield f"has {len(wrong)} rows whose {KEY_HASH} does not match their key, the first is row {int(wrong[0]) + 1:,}"


def _output_problems(data: bytes) -> Iterator[str]:
    try:
        with pa.ipc.open_file(pa.BufferReader(data)) as file:
            for number in range(file.num_record_batches):
                file.get_batch(number)
    except (pa.ArrowException, OSError, ValueError) as error:
        yield f"is not an Arrow IPC file: {error}"


def _stream_problems(data: bytes) -> Iterator[str]:
    try:
        with pa.ipc.open_stream(pa.BufferReader(data)) as stream:
            for _batch in stream:
                pass
    except (pa.ArrowException, OSError, ValueError) as error:
        yield f"is not an Arrow IPC stream: {error}"


def _overlaps(parts: tuple[KeyedStateSnapshot, ...]) -> Iterator[str]:
    for left, right in pairwise(sorted(parts, key=lambda part: part.hash_low)):
        if right.hash_low <= left.hash_high:
            high = min(left.hash_high, right.hash_high)
            yield f"says that two subtasks own the hashes {right.hash_low} to {high}"


def _unreferenced(store: ObjectStore, log: tuple[Manifest, ...], report: Report) -> None:
    named: set[str] = set().union(*(files_of(manifest) for manifest in log))
    savepoint = any(manifest.kind == "savepoint" and len(log) == 1 for manifest in log)
    for key in store.list(""):
        if key in named or key in _KNOWN_KEYS:
            continue
        if savepoint:
            report.unknown.append(key)
        elif key.startswith(SWEPT_PREFIXES):
            report.unreferenced.append(key)
        elif not key.startswith(_KNOWN_PREFIXES) or (key.startswith(PREFIX) and sequence_of(key) is None):
            report.unknown.append(key)


def _place(snapshot: Snapshot, ref: FileRef) -> str:
    path = ref.path if "://" in ref.path else join_uri(snapshot.store.uri, ref.path)
    return f"{path} at {ref.offset}" if ref.offset else path
