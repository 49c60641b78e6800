"""Rewrites a snapshot in two steps: most of it while the job runs, the rest after it has stopped.

A `Preparation` rewrites the large files of a running job's checkpoint into a folder, and may be repeated. A
`RewritePlan` makes a savepoint of the last checkpoint: it names the files of that folder and writes only the rest.
Called by `penstock state prepare`, `repartition --prepared` and `rekey --prepared`; the work runs here or on Spark.

<folder>/<uid>/<state>/part-<run>-<n>.parquet    rows of one run of segments
<folder>/runs/<run>.json                         the entry of these files in manifests, written last
<folder>/prepared.json                           marks the folder
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import polars as pl
import pyarrow as pa

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import join_uri, open_store, same_store
from penstock.core.errors import NotFoundError, SnapshotDamagedError, UsageError, did_you_mean
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.core.snapshot import KeyedStateSnapshot, Segment
from penstock.graph.restore_plan import clip_keyed
from penstock.snapshots.access.opening import Snapshot, open_snapshot
from penstock.snapshots.rewrite import repartition
from penstock.snapshots.rewrite.key_expressions import KeyColumn, keeps_apart, keys_of, parsed, require_by_key
from penstock.snapshots.rewrite.rekey import schema_of
from penstock.snapshots.rewrite.repartition import Run, VertexState, run_sequentially
from penstock.snapshots.rewrite.segment_runs import KeyChange, SegmentRun, is_large, runs_of
from penstock.snapshots.rewrite.split_points import DEFAULT_LIMITS, SnapshotLimits
from penstock.state.log.segment_columns import key_names

_RUNS, _MARKER = "runs/", "prepared.json"


class PreparedRun(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """The task of rewriting one run into the folder."""

    run: SegmentRun

    def write(self, source: ObjectStore, target: ObjectStore) -> KeyedStateSnapshot:
        """Write the run and its entry; neither if a file of it is gone, as after a compaction by the running job.

        Raises:
            SnapshotDamagedError: a file is damaged.
        """
        try:
            written = self.run.write(source, target)
        except SnapshotDamagedError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return self.run.held
            raise
        target.put(_entry_of(self.run.name), msgspec.json.encode(written))
        return written


@dataclass(frozen=True, slots=True)
class PreparedFolder:
    """A folder with rewritten runs."""

    store: ObjectStore
    names: frozenset[str]

    @classmethod
    def at(cls, uri: str) -> PreparedFolder:
        """List a folder, which may be empty."""
        store = open_store(uri.rstrip("/"))
        keys = (key.removeprefix(_RUNS) for key in store.list(_RUNS))
        return cls(store, frozenset(key.removesuffix(".json") for key in keys if key.endswith(".json")))

    def state_of(self, run: SegmentRun) -> KeyedStateSnapshot:
        """Return the rewritten run, with paths that are valid from anywhere.

        Raises:
            SnapshotDamagedError: its entry cannot be read.
        """
        key = _entry_of(run.name)
        try:
            state = msgspec.json.decode(self.store.read(key), type=KeyedStateSnapshot)
        except (FileNotFoundError, msgspec.MsgspecError) as error:
            msg = f"{join_uri(self.store.uri, key)} is damaged: {error}"
            raise SnapshotDamagedError(msg, hint="prepare again, in a new folder") from error
        return msgspec.structs.replace(state, segments=tuple(map(self._absolute, state.segments)))

    def _absolute(self, segment: Segment) -> Segment:
        file = msgspec.structs.replace(segment.file, path=join_uri(self.store.uri, segment.file.path))
        return msgspec.structs.replace(segment, file=file)


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of one preparation: runs of large files, and bytes of those rewritten."""

    written: int = 0
    written_bytes: int = 0
    #: Rewritten by an earlier preparation.
    reused: int = 0
    #: Their files were removed by the running job before they were read.
    gone: int = 0


def key_change(snapshot: Snapshot, uid: str, key: Sequence[str]) -> KeyChange:
    """Return the new key of an operator; see `rekey.rekey`.

    Raises:
        NotFoundError: the snapshot has no keyed state of that uid.
        UsageError: an expression is wrong, or two old keys might get one new key.
    """
    found = {state.uid: state for part in snapshot.manifest.subtasks for state in part.keyed}
    if uid not in found:
        raise NotFoundError(f"the snapshot has no keyed state of uid {uid!r}", hint=did_you_mean(uid, found))
    old = schema_from_text(found[uid].schema)
    names = key_names(old)
    change = KeyChange(uid, parsed(key, names, f"rekey: {uid}"))
    _keys_of_none(old, change)
    require_by_key(change.key, change.where)
    if not keeps_apart(change.key, pa.schema([old.field(name) for name in names])):
        msg = f"{change.where}: two old keys might get one new key, which no single file shows"
        raise UsageError(msg, hint="keep or cast each column of the old key, or rekey without a preparation")
    return change


@dataclass(frozen=True, slots=True)
class Preparation:
    """The large files of a checkpoint, as runs to rewrite into a folder."""

    snapshot: Snapshot
    folder: PreparedFolder
    runs: list[SegmentRun]

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        folder_uri: str,
        *,
        change: KeyChange | None = None,
        limits: SnapshotLimits = DEFAULT_LIMITS,
    ) -> Preparation:
        """Compare the checkpoint with the files that the folder has.

        Raises:
            UsageError: the folder is the snapshot's own.
            SnapshotDamagedError: a file is missing or damaged.
        """
        folder = PreparedFolder.at(folder_uri)
        if same_store(folder.store, snapshot.store):
            raise UsageError(f"{folder.store.uri} is the snapshot's own folder", hint="give another folder")
        found: list[SegmentRun] = []
        for state in (state for part in snapshot.manifest.subtasks for state in part.keyed):
            runs = runs_of(state, snapshot.read, limits, _key_of(state, change))
            found += [run for run in runs if is_large(run.held.segments[0], limits)]
        return cls(snapshot, folder, found)

    @property
    def missing(self) -> list[SegmentRun]:
        """Return the runs that the folder does not have."""
        return [run for run in self.runs if run.name not in self.folder.names]

    @property
    def missing_bytes(self) -> int:
        """Return the bytes of files that are to be read."""
        return sum(run.size_bytes for run in self.missing)

    def write(self, run: Run = run_sequentially) -> Progress:
        """Rewrite the missing runs.

        Raises:
            SnapshotDamagedError: a file is damaged, or missing although the job's newest checkpoint names it.
            StorageError: the folder cannot be written.
        """
        todo, store = self.missing, self.folder.store
        run([PreparedRun(run=one) for one in todo], self.snapshot.store, store)
        there = PreparedFolder.at(store.uri).names
        gone = [one for one in todo if one.name not in there]
        if gone:
            _require_removed_by_job(self.snapshot, gone)
        store.put(_MARKER, b"{}")
        written = [one for one in todo if one.name in there]
        size = sum(one.size_bytes for one in written)
        return Progress(len(written), size, len(self.runs) - len(todo), len(gone))


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """How a savepoint is made of a snapshot and of prepared files."""

    snapshot: Snapshot
    prepared: PreparedFolder
    change: KeyChange | None
    key_groups: int
    #: The states, with their runs, oldest first.
    states: list[tuple[VertexState, list[SegmentRun]]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        prepared_uri: str,
        *,
        change: KeyChange | None = None,
        key_groups: int | None = None,
        limits: SnapshotLimits = DEFAULT_LIMITS,
    ) -> RewritePlan:
        """Compare a snapshot with the prepared files.

        Raises:
            UsageError: fewer key groups than subtasks, rows in flight, or nothing is prepared.
            SnapshotDamagedError: a file is missing or damaged.
        """
        prepared = PreparedFolder.at(prepared_uri)
        if not prepared.store.list(_MARKER):
            msg = f"nothing was prepared in {prepared.store.uri}"
            raise UsageError(msg, hint="run `penstock state prepare` first, or leave out --prepared")
        states = repartition.vertex_states(snapshot.manifest.subtasks)
        groups = repartition.require_enough(states, key_groups or snapshot.manifest.key_groups)
        plan = cls(snapshot, prepared, change, groups)
        for state in states:
            key = _key_of(state.parts[0], change)
            runs = [run for part in state.parts for run in runs_of(part, snapshot.read, limits, key)]
            plan.states.append((state, runs))
        return plan

    @property
    def missing(self) -> list[SegmentRun]:
        """Return the runs that are not prepared."""
        return [run for _, runs in self.states for run in runs if run.name not in self.prepared.names]

    @property
    def missing_bytes(self) -> int:
        """Return the bytes of files that are still to be read."""
        return sum(run.size_bytes for run in self.missing)

    def write(self, target_uri: str, run: Run = run_sequentially) -> str:
        """Write the savepoint; return its URI.

        Raises:
            UsageError: the target is not empty or is written by another run.
            SnapshotDamagedError: a file is missing or damaged.
            StorageError: the target cannot be written, or was emptied meanwhile.
        """
        place = repartition.take(target_uri, "repartition" if self.change is None else "rekey")
        missing = self.missing
        results = run(missing, self.snapshot.store, place.store)
        written = {one.name: state for one, state in zip(missing, results, strict=True)}
        owned: dict[tuple[str, int], tuple[KeyedStateSnapshot, ...]] = {}
        for state, runs in self.states:
            whole = self._whole(state.parts[0], runs, written)
            for subtask, hashes in enumerate(state.ranges(self.key_groups)):
                own = clip_keyed(whole, hashes)
                assert own is not None  # noqa: S101 - it has all hashes
                owner = (state.vertex_id, subtask)
                owned[owner] = (*owned.get(owner, ()), own)
        return repartition.write_manifest(self.snapshot, place, owned, self.key_groups)

    def _whole(
        self, part: KeyedStateSnapshot, runs: Sequence[SegmentRun], written: Mapping[str, KeyedStateSnapshot]
    ) -> KeyedStateSnapshot:
        """Return a state as one log of all hashes, with its runs in order at increasing positions."""
        segments: list[Segment] = []
        for position, run in enumerate(runs, start=1):
            state = written[run.name] if run.name in written else self.prepared.state_of(run)
            tier = max(segment.tier for segment in run.held.segments)
            segments += [msgspec.structs.replace(s, position=position, tier=tier) for s in state.segments]
        schema = part.schema
        if self.change is not None and _key_of(part, self.change):
            old = schema_from_text(schema)
            schema = schema_to_text(schema_of(old, _keys_of_none(old, self.change), self.change.where))
        return msgspec.structs.replace(
            part,
            schema=schema,
            hash_low=ALL_HASHES.low,
            hash_high=ALL_HASHES.high,
            segments=tuple(segments),
            tombstones=(),
        )


def _entry_of(name: str) -> str:
    return f"{_RUNS}{name}.json"


def _key_of(state: KeyedStateSnapshot, change: KeyChange | None) -> tuple[KeyColumn, ...]:
    return change.key if change is not None and state.uid == change.uid else ()


def _keys_of_none(old: pa.Schema, change: KeyChange) -> pa.Schema:
    """Return the columns of the new key; raises UsageError."""
    none = pl.DataFrame(pl.from_arrow(old.empty_table().select(key_names(old))))
    return keys_of(none, change.key, change.where).schema


def _require_removed_by_job(snapshot: Snapshot, gone: Sequence[SegmentRun]) -> None:
    """Refuse missing files that the newest checkpoint names, which the job has not removed."""
    newest = open_snapshot(snapshot.store.uri).manifest
    named = {segment.file.path for part in newest.subtasks for state in part.keyed for segment in state.segments}
    lost = sorted({s.file.path for run in gone for s in run.held.segments} & named)
    if lost:
        msg = f"{join_uri(snapshot.store.uri, lost[0])} is missing"
        raise SnapshotDamagedError(msg, hint="it is named by the newest checkpoint; see `penstock state fsck`")
