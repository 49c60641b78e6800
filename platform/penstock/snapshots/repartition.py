"""`penstock state repartition`: a snapshot written anew as a savepoint, with another number of key groups.

Any job can start from a snapshot with another number of key groups, since the files are cut by hash; what this changes
is where the rows lie: one part a subtask, as the new groups are, merged and without what is deleted. It also makes a
savepoint of an older checkpoint. The work is a list of cuts that do not depend on each other: made here one after the
other, or as tasks of Spark (`snapshots.spark_repartition`), with the same rows in the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import read_file
from penstock.core.errors import UsageError
from penstock.core.keygroup import HashRange, hash_range_of
from penstock.core.rand import SystemRand
from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot
from penstock.snapshots.cuts import ranges_by_size
from penstock.snapshots.opening import Snapshot, open_target
from penstock.snapshots.reservation import release, require_reserved, reserve
from penstock.state.segments import read_state
from penstock.task.savepoint import SavepointWriter

#: Bytes of the old files that one cut is made of, about.
CUT_BYTES = 256 << 20


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one state in a range of hashes that one subtask will own; files are named by `number`."""

    number: int
    #: The state as the old subtasks have it, by their ranges of hashes.
    held: tuple[KeyedStateSnapshot, ...]
    low: int
    high: int

    def write(self, source: ObjectStore, target: ObjectStore) -> KeyedStateSnapshot:
        """Write the rows; the same again writes the same files."""
        wanted = HashRange(self.low, self.high)
        empty = msgspec.structs.replace(
            self.held[0], hash_low=self.low, hash_high=self.high, segments=(), tombstones=()
        )
        return SavepointWriter(source, target, f"{self.number:05d}-").rows(empty, _live(source, self.held, wanted))


#: Writes all cuts from one store to another, in any order and place; the results are in the order of the cuts.
Run = Callable[[Sequence[Cut], ObjectStore, ObjectStore], Sequence[KeyedStateSnapshot]]


def in_turn(cuts: Sequence[Cut], source: ObjectStore, target: ObjectStore) -> list[KeyedStateSnapshot]:
    """Write one cut after the other."""
    return [cut.write(source, target) for cut in cuts]


def repartition(snapshot: Snapshot, target_uri: str, *, key_groups: int | None = None, run: Run = in_turn) -> str:
    """Write the snapshot to `target_uri` (None: with as many key groups as it has); return the savepoint's URI.

    Raises:
        UsageError: fewer key groups than subtasks, or the target is not empty, or another run's.
        SnapshotDamagedError: a file is missing or damaged.
        StorageError: the target cannot be written, or was emptied meanwhile.
    """
    manifest = snapshot.manifest
    groups = key_groups if key_groups is not None else manifest.key_groups
    widest = max((_parallelism(manifest.subtasks, s.vertex_id) for s in manifest.subtasks if s.keyed), default=1)
    if groups < widest:
        msg = f"{groups} key groups are fewer than the {widest} subtasks of the snapshot"
        raise UsageError(msg, hint=f"use at least {widest}; the parallelism is changed at the job's next start")
    target, run_id = open_target(target_uri), f"repartition-{SystemRand().token(12)}"
    reserve(target, run_id)
    cuts: list[Cut] = []
    owned = [_cuts_of(manifest.subtasks, part, groups, cuts) for part in manifest.subtasks]
    written = run(cuts, snapshot.store, target)
    writer = SavepointWriter(snapshot.store, target)
    subtasks = []
    for part, states in zip(manifest.subtasks, owned, strict=True):
        keyed = tuple(_joined([written[cut.number] for cut in own], hashes) for own, hashes in states)
        outputs = tuple(writer.output(output) for output in part.committables)
        subtasks.append(msgspec.structs.replace(part, keyed=keyed, committables=outputs))
    require_reserved(target, run_id)
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
    release(target)
    return target.uri


def state_bytes(snapshot: Snapshot) -> int:
    """Return the bytes of the files that a repartition reads."""
    keyed = (state for part in snapshot.manifest.subtasks for state in part.keyed)
    return sum(segment.file.length for state in keyed for segment in state.segments)


def _parallelism(subtasks: tuple[SubtaskSnapshot, ...], vertex_id: str) -> int:
    return sum(part.vertex_id == vertex_id for part in subtasks)


def _cuts_of(
    subtasks: tuple[SubtaskSnapshot, ...], part: SubtaskSnapshot, groups: int, cuts: list[Cut]
) -> list[tuple[list[Cut], HashRange]]:
    """Append what makes the states of one new subtask to `cuts`; return it by state, with the subtask's hashes."""
    others = [s for s in subtasks if s.vertex_id == part.vertex_id]
    states: dict[tuple[str, str], list[KeyedStateSnapshot]] = {}
    for other in others:
        for state in other.keyed:
            states.setdefault((state.uid, state.state), []).append(state)
    found = []
    for held in states.values():
        hashes = hash_range_of(part.subtask, len(others), groups)
        held.sort(key=lambda state: state.hash_low)
        own: list[Cut] = []
        for within in ranges_by_size(held, hashes, CUT_BYTES):
            near = tuple(s for s in held if HashRange(s.hash_low, s.hash_high).intersect(within))
            own.append(Cut(number=len(cuts) + len(own), held=near or tuple(held[:1]), low=within.low, high=within.high))
        cuts += own
        found.append((own, hashes))
    return found


def _joined(parts: list[KeyedStateSnapshot], hashes: HashRange) -> KeyedStateSnapshot:
    """Return the parts of one subtask's state as one."""
    segments = tuple(segment for part in parts for segment in part.segments)
    return msgspec.structs.replace(parts[0], hash_low=hashes.low, hash_high=hashes.high, segments=segments)


def _live(source: ObjectStore, held: Sequence[KeyedStateSnapshot], within: HashRange) -> Iterator[pa.Table]:
    for state in held:
        yield from read_state(state, lambda ref: read_file(source, ref), within)
