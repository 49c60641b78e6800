"""The copy of one checkpoint to a savepoint: its parts, each by a worker, then the manifest; pure.

`Checkpointing` has one for each copy under way. The copy fails with its first failed part or lost worker; what is
written by then is no savepoint, since its manifest comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.manifest_log import Manifest, decode_manifest, encode_manifest
from penstock.checkpoint.savepoint_parts import joined_copy, split_for_copy
from penstock.jobmanager.messages.commands import SendToWorker
from penstock.rpc.messages import SavepointPart, SealSavepoint, WriteSavepoint

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.jobmanager.deploy.deployment import Deployment


class SavepointCopy:
    """A checkpoint, the workers that copy it, and the parts that they have written."""

    def __init__(self, deployment: Deployment, manifest: Manifest, savepoint_id: str, uri: str) -> None:
        """Divide the checkpoint between the workers of the deployment."""
        self.manifest = manifest
        self._ids = {
            "job_id": deployment.ids.job_id,
            "savepoint_id": savepoint_id,
            "uri": uri,
            "checkpoint_root": deployment.graph.settings.checkpoint_root,
            "job_name": manifest.job_name,
        }
        workers = deployment.present_workers()
        parts = split_for_copy(manifest, len(workers))
        self._parts = dict(enumerate(parts))
        self._written: dict[int, Manifest] = {}
        self._sealing_worker = workers[0]
        self._workers = dict(zip(self._parts, workers, strict=False))

    def start(self) -> list[SendToWorker]:
        """Return the commands that make the workers write their parts."""
        if not self._parts:
            return [self._seal()]
        return [
            SendToWorker(
                self._workers[number], WriteSavepoint(manifest=encode_manifest(part), part=number, **self._ids)
            )
            for number, part in self._parts.items()
        ]

    def part_written(self, message: SavepointPart) -> list[SendToWorker]:
        """Handle a written part; with the last one, return the command that writes the manifest.

        An earlier leader may have divided the same checkpoint in another way: its parts are not used.
        """
        part = decode_manifest(message.manifest)
        asked = self._parts.get(message.part)
        if asked is None or message.part in self._written or _content(part) != _content(asked):
            return []
        self._written[message.part] = part
        return [self._seal()] if len(self._written) == len(self._parts) else []

    def needs(self, workers: Collection[str]) -> bool:
        """Return whether one of these workers has work of this copy."""
        open_parts = [worker for number, worker in self._workers.items() if number not in self._written]
        return any(worker in workers for worker in (*open_parts, self._sealing_worker))

    def _seal(self) -> SendToWorker:
        joined = joined_copy(self.manifest, list(self._written.values()))
        return SendToWorker(self._sealing_worker, SealSavepoint(manifest=encode_manifest(joined), **self._ids))


def _content(part: Manifest) -> tuple[object, ...]:
    """Return what a part is of: the checkpoint, its subtasks and its output."""
    subtasks = [(subtask.vertex_id, subtask.subtask) for subtask in part.subtasks]
    return part.run_id, part.checkpoint_id, subtasks, [output.id for output in part.pending]
