"""`penstock state repartition`: rewrite a snapshot as a savepoint with another number of key groups.

Any job can start from a snapshot with another number of key groups, since files are ordered by hash. This command
changes the layout: one merged part per subtask of the new groups, without deleted rows. It also makes a savepoint of an
older checkpoint. States are split and written by `snapshots.rewrite.recut`.
"""

from __future__ import annotations

from penstock.core.errors import UsageError
from penstock.snapshots.access.opening import Snapshot
from penstock.snapshots.access.snapshot_limits import DEFAULT_LIMITS, SnapshotLimits
from penstock.snapshots.rewrite.recut import Parts, Run, held_states, in_turn, take, write_manifest


def repartition(
    snapshot: Snapshot,
    target_uri: str,
    *,
    key_groups: int | None = None,
    run: Run = in_turn,
    limits: SnapshotLimits = DEFAULT_LIMITS,
) -> str:
    """Write the snapshot to `target_uri`; return the savepoint's URI.

    Without `key_groups` the savepoint has as many as the snapshot.

    Raises:
        UsageError: fewer key groups than subtasks, or the target is not empty or is written by another run.
        SnapshotDamagedError: a file is missing or damaged.
        StorageError: the target cannot be written, or was emptied meanwhile.
    """
    groups = key_groups if key_groups is not None else snapshot.manifest.key_groups
    states = held_states(snapshot.manifest.subtasks)
    widest = max((state.parallelism for state in states), default=1)
    if groups < widest:
        msg = f"{groups} key groups are fewer than the {widest} subtasks of the snapshot"
        raise UsageError(msg, hint=f"use at least {widest}; the parallelism is changed at the job's next start")
    place = take(target_uri, "repartition")
    parts = Parts(limits)
    for state in states:
        parts.add(snapshot, state, groups)
    written = run(parts.cuts, snapshot.store, place.store)
    return write_manifest(snapshot, place, parts.owned(written), groups)
