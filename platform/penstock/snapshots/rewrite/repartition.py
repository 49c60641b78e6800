"""`penstock state repartition`: a snapshot written anew as a savepoint, with another number of key groups.

Any job can start from a snapshot with another number of key groups, since the files are cut by hash; what this changes
is where the rows lie: one part a subtask, as the new groups are, merged and without what is deleted. It also makes a
savepoint of an older checkpoint. How states are cut and written is `snapshots.rewrite.recut`.
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
    """Write the snapshot to `target_uri` (None: with as many key groups as it has); return the savepoint's URI.

    Raises:
        UsageError: fewer key groups than subtasks, or the target is not empty, or another run's.
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
