"""`penstock state repartition`: a snapshot written anew as a savepoint, with another number of key groups.

Any job can start from a snapshot with another number of key groups, since the files are cut by hash; what this changes
is where the rows lie: one part a subtask, as the new groups are, merged and without what is deleted. It also makes a
savepoint of an older checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from penstock.core.errors import UsageError
from penstock.core.keygroup import HashRange, hash_range_of
from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot
from penstock.snapshots.opening import Snapshot, open_target
from penstock.state.segments import read_state
from penstock.task.savepoint import SavepointWriter


def repartition(snapshot: Snapshot, target_uri: str, *, key_groups: int | None = None) -> str:
    """Write the snapshot to `target_uri` (None: with as many key groups as it has); return the savepoint's URI.

    Raises:
        UsageError: fewer key groups than subtasks, or the target is not empty.
        SnapshotDamagedError: a file is missing or damaged. StorageError: the target cannot be written.
    """
    manifest = snapshot.manifest
    groups = key_groups if key_groups is not None else manifest.key_groups
    widest = max((_parallelism(manifest.subtasks, s.vertex_id) for s in manifest.subtasks if s.keyed), default=1)
    if groups < widest:
        msg = f"{groups} key groups are fewer than the {widest} subtasks of the snapshot"
        raise UsageError(msg, hint=f"use at least {widest}; the parallelism is changed at the job's next start")
    target = open_target(target_uri)
    writer = SavepointWriter(snapshot.store, target)
    subtasks = []
    for part in manifest.subtasks:
        others = [s for s in manifest.subtasks if s.vertex_id == part.vertex_id]
        hashes = hash_range_of(part.subtask, len(others), groups) if any(s.keyed for s in others) else None
        keyed = () if hashes is None else tuple(_recut(writer, snapshot, others, hashes))
        outputs = tuple(writer.output(output) for output in part.committables)
        subtasks.append(msgspec.structs.replace(part, keyed=keyed, committables=outputs))
    writer.manifest(
        msgspec.structs.replace(
            manifest,
            kind="savepoint",
            key_groups=groups,
            subtasks=tuple(subtasks),
            pending=tuple(writer.output(output) for output in manifest.pending),
            note=target.uri,
            origin=manifest.origin or snapshot.store.uri,
        )
    )
    return target.uri


def _parallelism(subtasks: tuple[SubtaskSnapshot, ...], vertex_id: str) -> int:
    return sum(part.vertex_id == vertex_id for part in subtasks)


def _recut(
    writer: SavepointWriter, snapshot: Snapshot, parts: list[SubtaskSnapshot], hashes: HashRange
) -> Iterator[KeyedStateSnapshot]:
    """Write the rows of all states of one vertex that lie in a range of hashes."""
    states: dict[tuple[str, str], list[KeyedStateSnapshot]] = {}
    for part in parts:
        for state in part.keyed:
            states.setdefault((state.uid, state.state), []).append(state)
    for held in states.values():
        held.sort(key=lambda state: state.hash_low)
        empty = msgspec.structs.replace(held[0], hash_low=hashes.low, hash_high=hashes.high, segments=(), tombstones=())
        yield writer.rows(empty, _live(snapshot, held, hashes))


def _live(snapshot: Snapshot, held: list[KeyedStateSnapshot], hashes: HashRange) -> Iterator[pa.Table]:
    for state in held:
        yield from read_state(state, snapshot.read, hashes)
