"""`penstock state repartition`: rewrites a snapshot as a savepoint with another number of key groups.

States are split into independent ranges of about equal size, which are written one after another or as tasks of
Spark. One run owns the savepoint's folder until its manifest is written, which comes last. `rekey` rewrites states
that keep their key in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import read_file
from penstock.core.errors import UsageError
from penstock.core.keygroup import HashRange, hash_range_of
from penstock.core.rand import SystemRand
from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot
from penstock.graph.in_flight import has_rows_in_flight
from penstock.graph.restore_plan import clip_keyed
from penstock.snapshots.access.opening import Snapshot, open_target, publish, reserve
from penstock.snapshots.rewrite.split_points import (
    DEFAULT_LIMITS,
    SnapshotLimits,
    loads_of,
    measured_loads,
    ranges_by_size,
)
from penstock.state.log.segments import read_state
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I64


class StateRange(msgspec.Struct, frozen=True, kw_only=True, tag="range"):
    """Rows of one state in a hash range that one subtask will own; files are named by `number`."""

    number: int
    #: The state as the old subtasks have it, by their hash ranges, clipped to this range.
    held: tuple[KeyedStateSnapshot, ...]
    low: int
    high: int

    def write(self, source: ObjectStore, target: ObjectStore) -> KeyedStateSnapshot:
        """Write the rows; a repetition writes the same files."""
        empty = msgspec.structs.replace(
            self.held[0], hash_low=self.low, hash_high=self.high, segments=(), tombstones=()
        )
        return SavepointWriter(source, target, f"{self.number:05d}-").rows(empty, self.rows(source))

    def rows(
        self, source: ObjectStore, only: Collection[str] | None = None, hashes: I64 | None = None
    ) -> Iterator[pa.Table]:
        """Yield the live rows, sorted by hash; for `only` and `hashes` see `read_state`."""
        within = HashRange(self.low, self.high)
        for state in self.held:
            yield from read_state(state, lambda ref: read_file(source, ref), within, only=only, hashes=hashes)


class WriteTask(Protocol):
    """A part of the work that any process can do, also more than once."""

    def write(self, source: ObjectStore, target: ObjectStore) -> KeyedStateSnapshot:
        """Write files; a repetition writes the same ones."""


#: Does all tasks from one store to another, in any order and process; the results are in the order of the tasks.
Run = Callable[[Sequence[WriteTask], ObjectStore, ObjectStore], Sequence[KeyedStateSnapshot]]
#: The keyed states of each subtask, by vertex id and subtask number.
Owned = Mapping[tuple[str, int], tuple[KeyedStateSnapshot, ...]]


def run_sequentially(tasks: Sequence[WriteTask], source: ObjectStore, target: ObjectStore) -> list[KeyedStateSnapshot]:
    """Do one task after the other."""
    return [task.write(source, target) for task in tasks]


@dataclass(frozen=True, slots=True)
class VertexState:
    """One keyed state of one vertex, with the parts of its subtasks."""

    vertex_id: str
    parallelism: int
    #: Ordered by their hash ranges.
    parts: tuple[KeyedStateSnapshot, ...]

    def ranges(self, key_groups: int) -> list[HashRange]:
        """Return the hashes that each subtask owns."""
        return [hash_range_of(subtask, self.parallelism, key_groups) for subtask in range(self.parallelism)]

    def state_ranges(
        self, snapshot: Snapshot, ranges: Sequence[HashRange], range_bytes: int, first: int = 0
    ) -> list[list[StateRange]]:
        """Return the parts of each hash range, numbered from `first`; for `range_bytes` see `SnapshotLimits`.

        Raises:
            SnapshotDamagedError: a file is missing or damaged.
        """
        loads = loads_of(self.parts)
        if any(loads.within(hashes) > range_bytes for hashes in ranges):
            loads = measured_loads(self.parts, snapshot.read)
        nothing = msgspec.structs.replace(self.parts[0], segments=(), tombstones=())
        made: list[list[StateRange]] = []
        for within in ranges:
            own = []
            for hashes in ranges_by_size(loads, within, range_bytes):
                near = tuple(clip for part in self.parts if (clip := clip_keyed(part, hashes)) is not None)
                own.append(StateRange(number=first, held=near or (nothing,), low=hashes.low, high=hashes.high))
                first += 1
            made.append(own)
        return made


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The ranges to write, and the subtask of each."""

    limits: SnapshotLimits = DEFAULT_LIMITS
    state_ranges: list[StateRange] = field(default_factory=list)
    #: For each subtask, by vertex id and number: the ranges of its states, with its hashes.
    owners: dict[tuple[str, int], list[tuple[list[StateRange], HashRange]]] = field(default_factory=dict)

    def add(self, snapshot: Snapshot, state: VertexState, key_groups: int) -> None:
        """Split one more state; raises SnapshotDamagedError."""
        ranges = state.ranges(key_groups)
        found = state.state_ranges(snapshot, ranges, self.limits.range_bytes, len(self.state_ranges))
        for subtask, (hashes, own) in enumerate(zip(ranges, found, strict=True)):
            self.owners.setdefault((state.vertex_id, subtask), []).append((own, hashes))
            self.state_ranges.extend(own)

    def owned(self, written: Sequence[KeyedStateSnapshot]) -> Owned:
        """Return the written states of each subtask."""
        return {
            place: tuple(joined([written[state_range.number] for state_range in own], hashes) for own, hashes in states)
            for place, states in self.owners.items()
        }


@dataclass(frozen=True, slots=True)
class ReservedFolder:
    """The folder of a savepoint while one run writes it."""

    store: ObjectStore
    run_id: str


def take(target_uri: str, what: str) -> ReservedFolder:
    """Reserve an empty folder for one run; raises UsageError if it is not empty or reserved by another run."""
    place = ReservedFolder(open_target(target_uri), f"{what}-{SystemRand().token(12)}")
    reserve(place.store, place.run_id)
    return place


def write_manifest(snapshot: Snapshot, place: ReservedFolder, owned: Owned, key_groups: int) -> str:
    """Copy the pending output and write the manifest, which comes last; return the savepoint's URI.

    Raises:
        SnapshotDamagedError: a file is missing or damaged.
        StorageError: the target cannot be written, or was emptied meanwhile.
    """
    manifest, target = snapshot.manifest, place.store
    writer = SavepointWriter(snapshot.store, target)
    subtasks = tuple(
        msgspec.structs.replace(
            part,
            keyed=owned.get((part.vertex_id, part.subtask), ()),
            committables=tuple(writer.output(output) for output in part.committables),
        )
        for part in manifest.subtasks
    )
    made = msgspec.structs.replace(
        manifest,
        kind="savepoint",
        key_groups=key_groups,
        subtasks=subtasks,
        pending=tuple(writer.output(output) for output in manifest.pending),
        note=target.uri,
        origin=manifest.origin or snapshot.store.uri,
    )
    publish(target, place.run_id, lambda: writer.manifest(made))
    return target.uri


def state_bytes(snapshot: Snapshot) -> int:
    """Return the bytes of the files that a repartition reads."""
    keyed = (state for part in snapshot.manifest.subtasks for state in part.keyed)
    return sum(segment.file.length for state in keyed for segment in state.segments)


def require_none_in_flight(subtasks: Sequence[SubtaskSnapshot]) -> None:
    """Refuse a checkpoint with rows in flight, which belong to the present subtasks and edges.

    Raises:
        UsageError: it has some.
    """
    if has_rows_in_flight(subtasks):
        msg = "the checkpoint holds rows in flight, which a savepoint made of it would lose"
        raise UsageError(msg, hint="run the job and stop it with a savepoint, which holds none")


def vertex_states(subtasks: Sequence[SubtaskSnapshot]) -> list[VertexState]:
    """Return the keyed states of a snapshot, each with all its parts."""
    require_none_in_flight(subtasks)
    parallelism = Counter(part.vertex_id for part in subtasks)
    found: dict[tuple[str, str, str], list[KeyedStateSnapshot]] = {}
    for part in subtasks:
        for state in part.keyed:
            found.setdefault((part.vertex_id, state.uid, state.state), []).append(state)
    return [
        VertexState(vertex_id, parallelism[vertex_id], tuple(sorted(parts, key=lambda part: part.hash_low)))
        for (vertex_id, _, _), parts in found.items()
    ]


def require_enough(states: Sequence[VertexState], key_groups: int) -> int:
    """Return the number of key groups; raises UsageError if a vertex has more subtasks."""
    widest = max((state.parallelism for state in states), default=1)
    if key_groups < widest:
        msg = f"{key_groups} key groups are fewer than the {widest} subtasks of the snapshot"
        raise UsageError(msg, hint=f"use at least {widest}; the parallelism is changed at the job's next start")
    return key_groups


def joined(parts: Sequence[KeyedStateSnapshot], hashes: HashRange) -> KeyedStateSnapshot:
    """Return the parts of one subtask's state as one."""
    segments = tuple(segment for part in parts for segment in part.segments)
    return msgspec.structs.replace(parts[0], hash_low=hashes.low, hash_high=hashes.high, segments=segments)


def repartition(
    snapshot: Snapshot,
    target_uri: str,
    *,
    key_groups: int | None = None,
    run: Run = run_sequentially,
    limits: SnapshotLimits = DEFAULT_LIMITS,
) -> str:
    """Write the snapshot to `target_uri`; return the savepoint's URI.

    Without `key_groups` the savepoint has as many as the snapshot.

    Raises:
        UsageError: fewer key groups than subtasks, or the target is not empty or is written by another run.
        SnapshotDamagedError: a file is missing or damaged.
        StorageError: the target cannot be written, or was emptied meanwhile.
    """
    states = vertex_states(snapshot.manifest.subtasks)
    groups = require_enough(states, key_groups if key_groups is not None else snapshot.manifest.key_groups)
    place = take(target_uri, "repartition")
    parts = RangePlan(limits)
    for state in states:
        parts.add(snapshot, state, groups)
    written = run(parts.state_ranges, snapshot.store, place.store)
    return write_manifest(snapshot, place, parts.owned(written), groups)
