"""The reports of one subtask to its JobMaster, addressed by its execution; sent through the worker's control socket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.snapshot import CheckpointMetrics, SubtaskSnapshot
from penstock.rpc.messages import (
    CheckpointAck,
    CheckpointDeclined,
    InputEnded,
    OutputPublished,
    TaskState,
    WorkerReport,
)

if TYPE_CHECKING:
    from penstock.graph.deployment import TaskDeployment


@dataclass(frozen=True, slots=True)
class TaskReports:
    """The reports of one deployment of one subtask."""

    deployment: TaskDeployment
    send: Callable[[WorkerReport], None]

    def state(self, state: str, error: str = "", detail: str = "", metrics: dict[str, float] | None = None) -> None:
        """Report another state of the subtask; `metrics`: its last ones."""
        execution = self.deployment.execution
        self.send(
            TaskState(
                job_id=self.deployment.job_id,
                vertex_id=execution.vertex_id,
                subtask=execution.subtask,
                attempt=execution.attempt,
                state=state,
                error=error,
                detail=detail,
                metrics=metrics or {},
            )
        )

    def input_ended(self) -> None:
        """Report that all input was processed and the operators have emitted the rest."""
        execution = self.deployment.execution
        self.send(
            InputEnded(
                job_id=self.deployment.job_id,
                vertex_id=execution.vertex_id,
                subtask=execution.subtask,
                attempt=execution.attempt,
            )
        )

    def published(self, ids: tuple[str, ...]) -> None:
        """Report committables that are known to be published."""
        if ids:
            self.send(
                OutputPublished(job_id=self.deployment.job_id, run_id=self.deployment.run_id, committable_ids=ids)
            )

    def acknowledged(self, checkpoint_id: int, snapshot: SubtaskSnapshot, metrics: CheckpointMetrics) -> None:
        """Report that the subtask's part of a checkpoint is durable."""
        self.send(
            CheckpointAck(
                job_id=self.deployment.job_id,
                run_id=self.deployment.run_id,
                generation=self.deployment.generation,
                checkpoint_id=checkpoint_id,
                attempt=self.deployment.execution.attempt,
                snapshot=snapshot,
                metrics=metrics,
            )
        )

    def declined(self, checkpoint_id: int, reason: str) -> None:
        """Report that the subtask cannot take part in a checkpoint."""
        execution = self.deployment.execution
        self.send(
            CheckpointDeclined(
                job_id=self.deployment.job_id,
                run_id=self.deployment.run_id,
                generation=self.deployment.generation,
                checkpoint_id=checkpoint_id,
                vertex_id=execution.vertex_id,
                subtask=execution.subtask,
                attempt=execution.attempt,
                reason=reason,
            )
        )
