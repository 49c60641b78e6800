"""Shared parts of the snapshot commands: arguments, opening, short summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from penstock.snapshots.access.opening import Snapshot

UriArgument = Annotated[
    str, typer.Argument(metavar="URI", help="Folder of a savepoint, or CHECKPOINT_ROOT/JOB for the newest checkpoint.")
]
CheckpointOption = Annotated[
    int | None, typer.Option("--checkpoint", help="Use the checkpoint with this sequence instead of the newest.")
]


def opened(uri: str, checkpoint: int | None = None) -> Snapshot:
    """Return a snapshot; see `snapshots.access.opening.open_snapshot`."""
    from penstock.snapshots.access.opening import open_snapshot

    return open_snapshot(uri, checkpoint=checkpoint)


def summary_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the summary of a snapshot for listings."""
    from penstock.snapshots.access.content import states_of

    manifest, states = snapshot.manifest, states_of(snapshot.manifest)
    return {
        "job": manifest.job_name,
        "kind": manifest.kind,
        "sequence": manifest.sequence,
        "checkpoint": manifest.checkpoint_id,
        "created-ms": manifest.created_ms,
        "barrier": manifest.barrier,
        "key-groups": manifest.key_groups,
        "rows": sum(state.rows for state in states if state.kind == "keyed"),
        "bytes": sum(state.size_bytes for state in states),
        "pending-rows": sum(output.rows for output in manifest.pending),
        "uri": snapshot.uri,
    }
