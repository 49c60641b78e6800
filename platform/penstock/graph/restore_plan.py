"""The restore plan: state of a snapshot for every subtask, keyed state clipped to its hashes, other state by its mode.

Pure; called by `penstock.jobmanager` before a deployment and by `penstock check`. Source splits are only collected: the
job assigns them (`jobmanager.deploy.deployment`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.core.errors import PenstockError, StateMismatchError
from penstock.core.keygroup import HashRange, hash_range_of
from penstock.core.snapshot import (
    Committable,
    KeyedStateSnapshot,
    OperatorStateSnapshot,
    Segment,
    SubtaskSnapshot,
    Tombstone,
)
from penstock.graph.in_flight import assign_rows
from penstock.graph.job_graph import JobGraph
from penstock.graph.state_check import DROP_STATE_HINT, drops_splits, foreign_splits, is_dropped, restorable_states
from penstock.graph.state_redistribution import TASK_STATE_PREFIX, redistribute
from penstock.graph.task_deployment import OperatorRestore, RestoredRows


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """State by (vertex id, subtask), and all source splits by uid."""

    restores: dict[tuple[str, int], tuple[OperatorRestore, ...]] = {}
    #: uid -> `connector.source.SourceSplit` values as builtins, of all old subtasks.
    splits: dict[str, tuple[Any, ...]] = {}
    #: Rows in flight by (vertex id, subtask).
    in_flight: dict[tuple[str, int], tuple[RestoredRows, ...]] = {}
    #: The checkpoint of the state, set by the caller.
    checkpoint_id: int | None = None

    def of(self, vertex_id: str, subtask: int) -> tuple[OperatorRestore, ...]:
        """Return the restored state of one subtask."""
        return self.restores.get((vertex_id, subtask), ())

    @property
    def read_bytes(self) -> int:
        """Return the bytes of keyed state that the subtask with the most of it has to read."""
        held = ((s.file.length for r in own for k in r.keyed for s in k.segments) for own in self.restores.values())
        return max((sum(lengths) for lengths in held), default=0)


class _UidState(msgspec.Struct):
    """All state of one uid in a snapshot."""

    keyed: list[KeyedStateSnapshot] = []
    #: (old subtask, its state), in the order of subtasks.
    operator: list[tuple[int, OperatorStateSnapshot]] = []
    unpublished: int = 0
    #: Number of subtasks of its vertex.
    parallelism: int = 0

    @property
    def is_task_state(self) -> bool:
        """Return whether this is only state of a task, the watermark of a task whose chain has changed."""
        own = all(state.name.startswith(TASK_STATE_PREFIX) for _, state in self.operator)
        return own and not self.keyed and not self.unpublished


def assign_state(
    graph: JobGraph,
    snapshots: Sequence[SubtaskSnapshot],
    *,
    checkpoint_id: int | None = None,
    allow_non_restored: Collection[str] = (),
) -> RestorePlan:
    """Return the restored state of every subtask of `graph`, from `snapshots` (a manifest's `subtasks`).

    Raises:
        StateMismatchError: state of an unknown uid, or that its operator would ignore, and that is not in
        `allow_non_restored`; or two subtasks that claim the same key hashes; or rows in flight on an edge that the job
        does not have.
    """
    held = _by_uid(snapshots)
    known = {operator.uid for vertex in graph.vertices for operator in vertex.operators}
    _check_known(held, known, allow_non_restored)
    for uid, left in held.items():
        _check_disjoint(uid, left.keyed)
    restores: dict[tuple[str, int], list[OperatorRestore]] = {}
    foreign: dict[str, Collection[str]] = {}
    for vertex in graph.vertices:
        for operator in vertex.operators:
            own = held.get(operator.uid)
            if own is None:
                continue
            kept = [k for k in own.keyed if not is_dropped(operator, k.state, allow_non_restored)]
            unkeyed = restorable_states(operator, own.operator, allow_non_restored)
            if drops_splits(operator, allow_non_restored):
                foreign[operator.uid] = foreign_splits(operator, [state for _, state in own.operator])
            parts = redistribute(unkeyed, own.parallelism, vertex.parallelism)
            for subtask in range(vertex.parallelism):
                keyed = _keyed_part(kept, subtask, vertex.parallelism, graph.settings.key_groups)
                if keyed or parts[subtask]:
                    restores.setdefault((vertex.id, subtask), []).append(
                        OperatorRestore(uid=operator.uid, keyed=keyed, operator=parts[subtask])
                    )
    return RestorePlan(
        restores={place: tuple(found) for place, found in restores.items()},
        splits=_splits(held, known, foreign),
        in_flight=assign_rows(graph, snapshots),
        checkpoint_id=checkpoint_id,
    )


def bytes_to_prepare(graph: JobGraph, snapshots: Sequence[SubtaskSnapshot]) -> int | None:
    """Return the keyed state that workers load before they replace running ones; None: they load it after the stop.

    In bytes, of the subtask with the most of it; 0 if it cannot be assigned, for which the change is refused later.
    """
    if graph.settings.state_backend == "remote":
        return None  # little is read at the start
    try:
        size = assign_state(graph, snapshots).read_bytes
    except PenstockError:
        size = 0
    return size if size >= graph.settings.prepare_state_bytes else None


def with_held(plan: RestorePlan, graph: JobGraph, held: Sequence[Committable]) -> RestorePlan:
    """Return the plan with withheld output assigned to the sink subtasks that wrote it, of the same run and graph."""
    restores = dict(plan.restores)
    places = {operator.uid: vertex.id for vertex in graph.vertices for operator in vertex.operators}
    for uid, subtask in sorted({(output.uid, output.subtask) for output in held}):
        place = (places[uid], subtask)
        own = tuple(output for output in held if (output.uid, output.subtask) == (uid, subtask))
        others = [r for r in restores.get(place, ()) if r.uid != uid]
        mine = next((r for r in restores.get(place, ()) if r.uid == uid), OperatorRestore(uid=uid))
        restores[place] = (*others, msgspec.structs.replace(mine, held=own))
    return msgspec.structs.replace(plan, restores=restores)


def clip_keyed(state: KeyedStateSnapshot, hashes: HashRange) -> KeyedStateSnapshot | None:
    """Return the part of a keyed state in `hashes`, or None if the ranges do not overlap."""
    own = HashRange(state.hash_low, state.hash_high).intersect(hashes)
    if own is None:
        return None
    return msgspec.structs.replace(
        state,
        hash_low=own.low,
        hash_high=own.high,
        segments=tuple(s for s in (_clip_segment(segment, own) for segment in state.segments) if s is not None),
        tombstones=tuple(t for t in (_clip_tombstone(stone, own) for stone in state.tombstones) if t is not None),
    )


def _clip_segment(segment: Segment, hashes: HashRange) -> Segment | None:
    clip = HashRange(segment.clip_low, segment.clip_high).intersect(hashes)
    if clip is None or clip.intersect(HashRange(segment.hash_min, segment.hash_max)) is None:
        return None
    return msgspec.structs.replace(segment, clip_low=clip.low, clip_high=clip.high)


def _clip_tombstone(stone: Tombstone, hashes: HashRange) -> Tombstone | None:
    clip = HashRange(stone.hash_low, stone.hash_high).intersect(hashes)
    if clip is None:
        return None
    return msgspec.structs.replace(stone, hash_low=clip.low, hash_high=clip.high)


def _keyed_part(
    states: Sequence[KeyedStateSnapshot], subtask: int, parallelism: int, key_groups: int
) -> tuple[KeyedStateSnapshot, ...]:
    if not states:
        return ()
    hashes = hash_range_of(subtask, parallelism, key_groups)
    return tuple(part for part in (clip_keyed(state, hashes) for state in states) if part is not None)


def _by_uid(snapshots: Iterable[SubtaskSnapshot]) -> dict[str, _UidState]:
    held: dict[str, _UidState] = {}
    subtasks = Counter(snapshot.vertex_id for snapshot in snapshots)
    for snapshot in sorted(snapshots, key=lambda s: (s.vertex_id, s.subtask)):
        for keyed in snapshot.keyed:
            held.setdefault(keyed.uid, _UidState()).keyed.append(keyed)
        for operator in snapshot.operator:
            left = held.setdefault(operator.uid, _UidState())
            left.operator.append((snapshot.subtask, operator))
            left.parallelism = subtasks[snapshot.vertex_id]
        for committable in snapshot.committables:
            held.setdefault(committable.uid, _UidState()).unpublished += 1
    return held


def _check_known(held: dict[str, _UidState], known: set[str], allowed: Collection[str]) -> None:
    for uid, left in sorted(held.items()):
        if uid in known or uid in allowed or left.is_task_state:
            continue
        what = "unpublished output" if left.unpublished else "state"
        msg = f"the snapshot holds {what} of {uid!r}, and the job has no operator of that uid"
        way = f"give the operator its old uid back, or {DROP_STATE_HINT.format(uid)}"
        raise StateMismatchError(msg, hint=way)


def _check_disjoint(uid: str, states: Sequence[KeyedStateSnapshot]) -> None:
    """Check that no hash has two owners; both would restore its rows, from a damaged or hand-made manifest."""
    by_state: dict[str, list[KeyedStateSnapshot]] = {}
    for state in states:
        by_state.setdefault(state.state, []).append(state)
    for name, parts in by_state.items():
        parts.sort(key=lambda p: p.hash_low)
        for left, right in itertools.pairwise(parts):
            if right.hash_low <= left.hash_high:
                msg = (
                    f"the snapshot's state {name!r} of {uid!r} is claimed twice for the hashes "
                    f"{right.hash_low} to {min(left.hash_high, right.hash_high)}"
                )
                raise StateMismatchError(msg, hint="the manifest is damaged; restore an older one with --from")


def _splits(
    held: dict[str, _UidState], known: set[str], dropped: Mapping[str, Collection[str]]
) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for uid, left in held.items():
        items = tuple(item for _, state in left.operator if state.mode == "split" for item in state.items)
        if uid in dropped:
            items = tuple(item for item in items if item["id"] not in dropped[uid])
        if uid in known and (items or any(state.mode == "split" for _, state in left.operator)):
            found[uid] = items
    return found
