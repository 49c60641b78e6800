"""Rows in flight at a restore: which subtask processes the rows that a checkpoint's barriers have overtaken.

Pure; called by `graph.restore_plan` and `graph.execution_graph`. At an unchanged parallelism rows stay at the subtask
that would have received them. Otherwise those of keyed edges go to the owners of their keys, and those of other edges
are distributed file by file. At each subtask the rows that their receiver had precede those of the senders, so rows of
one key keep their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from penstock.core.errors import StateMismatchError
from penstock.core.keygroup import ALL_HASHES, HashRange, hash_range_of
from penstock.core.snapshot import InFlightRows, SubtaskSnapshot
from penstock.graph.job_graph import JobEdge, JobGraph, KeyGroup, Rebalance
from penstock.graph.task_deployment import RestoredRows


def edge_id(edge: JobEdge) -> str:
    """Return the id of an edge whose rows barriers may overtake, the same in every run; empty for other edges.

    Forward and broadcast edges keep the order of rows and barriers: their rows cannot be given to other subtasks.
    """
    if not isinstance(edge.partitioner, KeyGroup | Rebalance):
        return ""
    parts = (edge.source, edge.target, edge.input_index, edge.side_output, edge.partitioner, edge.schema, edge.combine)
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8, person=b"penstock.edge").hexdigest()


def has_rows_in_flight(snapshots: Sequence[SubtaskSnapshot]) -> bool:
    """Return whether a checkpoint contains rows that its barriers have overtaken."""
    return any(snapshot.in_flight for snapshot in snapshots)


def assign_rows(
    graph: JobGraph, snapshots: Sequence[SubtaskSnapshot]
) -> dict[tuple[str, int], tuple[RestoredRows, ...]]:
    """Return, by (vertex id, subtask), the files to read at a restore, in the order of their rows.

    Raises:
        StateMismatchError: the job does not have an edge of the rows, or has changed it.
    """
    edges = {edge_id(edge): edge for edge in graph.edges}
    found: dict[tuple[str, int], list[RestoredRows]] = {}
    parts = [part for snapshot in snapshots for part in snapshot.in_flight]
    for part in sorted(parts, key=lambda part: part.at_sender):
        edge = edges.get(part.edge)
        if edge is None:
            msg = "the checkpoint holds rows in flight between operators that the job no longer connects in this way"
            hint = "run the job as it was and stop it with a savepoint, which holds no rows in flight"
            raise StateMismatchError(msg, hint=hint)
        for subtask, restored in _receivers(part, edge, graph):
            found.setdefault((edge.target, subtask), []).append(restored)
    return {place: tuple(rows) for place, rows in found.items()}


def _receivers(part: InFlightRows, edge: JobEdge, graph: JobGraph) -> list[tuple[int, RestoredRows]]:
    parallelism, index = graph.vertex(edge.target).parallelism, edge.input_index
    if not isinstance(edge.partitioner, KeyGroup):
        return [(part.receiver % parallelism, RestoredRows(part=part, input_index=index))]
    held = HashRange(part.hash_low, part.hash_high)
    receivers = []
    for subtask in range(parallelism):
        own = hashes_of(subtask, parallelism, graph.settings.key_groups)
        if own.intersect(held) is not None:
            whole = own != ALL_HASHES and own.low <= held.low and held.high <= own.high
            key = () if whole or parallelism == 1 else edge.partitioner.columns
            receivers.append((subtask, RestoredRows(part=part, input_index=index, key=key)))
    return receivers


def hashes_of(subtask: int, parallelism: int, key_groups: int) -> HashRange:
    """Return the hashes a subtask owns; all hashes if there are more subtasks than key groups (never keyed)."""
    return ALL_HASHES if parallelism > key_groups else hash_range_of(subtask, parallelism, key_groups)
