"""Builds the checkpoint commands for the workers of a deployment; pure. Called by `checkpoints.checkpointing`."""

from __future__ import annotations

from penstock.checkpoint.coordinator import PendingCheckpoint
from penstock.checkpoint.manifest import Manifest, encode_manifest
from penstock.core.permits import CommitPermit
from penstock.jobmanager.deploy.deployment import Deployment
from penstock.jobmanager.messages.commands import Command, SendToWorker
from penstock.rpc.worker_commands import CheckpointAborted, CheckpointCompleted, TriggerCheckpoint, WriteSavepoint


def trigger(deployment: Deployment, pending: PendingCheckpoint) -> list[Command]:
    """Return the commands that make the sources emit the barrier."""
    message = TriggerCheckpoint(
        job_id=deployment.ids.job_id,
        run_id=deployment.ids.run_id,
        generation=deployment.ids.generation,
        checkpoint_id=pending.checkpoint_id,
        kind=pending.kind.value,
    )
    return [SendToWorker(worker_id, message) for worker_id in deployment.workers]


def completed(deployment: Deployment, permit: CommitPermit, held: tuple[str, ...]) -> list[Command]:
    """Return the commands that let all sinks publish except those in `held` (uids)."""
    message = CheckpointCompleted(permit=permit, held=held)
    return [SendToWorker(worker_id, message) for worker_id in deployment.workers]


def aborted(deployment: Deployment, checkpoint_id: int) -> list[Command]:
    """Return the commands that tell all workers that a checkpoint is aborted."""
    message = CheckpointAborted(job_id=deployment.ids.job_id, run_id=deployment.ids.run_id, checkpoint_id=checkpoint_id)
    return [SendToWorker(worker_id, message) for worker_id in deployment.workers]


def copy(deployment: Deployment, manifest: Manifest, savepoint_id: str, uri: str) -> list[Command]:
    """Return the command that makes a worker copy a checkpoint to `uri` as a savepoint."""
    message = WriteSavepoint(
        job_id=deployment.ids.job_id,
        savepoint_id=savepoint_id,
        uri=uri,
        checkpoint_root=deployment.graph.settings.checkpoint_root,
        job_name=manifest.job_name,
        manifest=encode_manifest(manifest),
    )
    return [SendToWorker(deployment.any_worker(), message)]
