"""The services of a worker (or the simulator) for its subtasks, and each subtask's reports to its JobMaster.

All access to the outside passes through these classes, so that the simulator can drive the same subtasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import open_store
from penstock.core.clock import Clock
from penstock.operators.registry import create_operator
from penstock.rpc.messages import (
    CheckpointAck,
    CheckpointDeclined,
    InputEnded,
    NetworkNeed,
    OutputPublished,
    TaskState,
    WorkerMessage,
    WorkerReport,
)
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.tiers.remote_log import Gather, one_by_one
from penstock.task.chain.background import Background, SlowCalls

if TYPE_CHECKING:
    from penstock.checkpoint.local_copies import LocalCopies, StateFiles
    from penstock.core.snapshot import FileRef, KeyedStateSnapshot
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.network.data_plane import DataPlane
    from penstock.network.network_memory import GateShare
    from penstock.operators.operator import Operator
    from penstock.state.memory.budget import MemoryBudget
    from penstock.state.store import KeyedState
    from penstock.task.chain.uploader import Uploader


@dataclass(slots=True)
class TaskReports:
    """The reports of one deployment of one subtask; what was reported last is read from any thread."""

    deployment: TaskDeployment
    #: Takes acks too, which go together with those of other subtasks.
    send: Callable[[WorkerReport | CheckpointAck], None]
    #: See `TaskState`; empty before the first report. Set before it is sent, as a report may be lost.
    last_state: str = ""
    has_input_ended: bool = False

    def state(
        self, state: str, error: str = "", detail: str = "", last: tuple[dict[str, float], dict[str, str]] | None = None
    ) -> None:
        """Report another state of the subtask; `last`: its last metrics and texts."""
        metrics, texts = last or ({}, {})
        self.last_state = state
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
                metrics=metrics,
                texts=texts,
            )
        )

    def input_ended(self) -> None:
        """Report that all input was processed and the operators have emitted the rest."""
        execution, self.has_input_ended = self.deployment.execution, True
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnvironment:
    """The services for subtasks, one instance per worker."""

    worker_id: str
    clock: Clock
    network: DataPlane
    #: Sends a report to the supervisor; after it returns, a crash of this process does not lose the report.
    report: Callable[[WorkerMessage], None]
    #: Threads for encoding and uploading.
    background: Background
    #: Threads for publishing, recovery and savepoints; work may block for as long as an external system is down.
    blocking: Background
    #: Limit of all keyed state of this worker.
    managed_memory_bytes: int = 256 << 20
    #: Guaranteed limit of the rows in flight to all subtasks of this worker; None: each gate has its own limit only.
    network_memory_bytes: int | None = None
    #: Tells the TaskManager what the gates need; it answers with a `NetworkShare`.
    tell_need: Callable[[NetworkNeed], None] = lambda _: None
    #: Folder for spilled state.
    state_dir: Path = field(default_factory=lambda: Path("state"))
    #: Folder of the copies of the job's checkpoint files on this TaskManager; None: none are kept.
    copies_dir: Path | None = None
    open_store: Callable[[str], ObjectStore] = open_store
    #: Whether the worker was started beside the one that it replaces.
    beside: bool = False
    #: Raises if this process cannot write a job's folder; None: no other process writes there.
    require_writable: Callable[[str], None] | None = None
    create_operator: Callable[[str], Operator] = create_operator
    #: Reads of remote state, several at a time.
    gather: Gather = one_by_one
    #: Sizes of state and uploads of all subtasks.
    limits: StateLimits = PRODUCTION
    #: Running calls to external systems.
    slow_calls: SlowCalls


class LoadedState(Protocol):
    """Keyed state that was loaded before its subtask starts: `task.checkpoint.prepared_state.PreparedState`."""

    budget: MemoryBudget

    def take(self, uid: str, snapshots: tuple[KeyedStateSnapshot, ...]) -> KeyedState | None:
        """Return the state of one operator at a later checkpoint; None: it has to be read as a whole."""

    def close(self) -> None:
        """Free the state that was not taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobServices:
    """The services that all subtasks of one job share in a worker."""

    uploader: Uploader
    #: Verified read of a file of the job from its store.
    read_file: Callable[[FileRef], bytes]
    #: The job's local copies in this worker, and the files of one subtask's state.
    copies: LocalCopies
    state_files: StateFiles
    #: The share of memory of each stateful subtask.
    managed_memory_bytes: int
    #: Sends a report or an ack of a subtask.
    send: Callable[[WorkerReport | CheckpointAck], None]
    #: The subtask's part of the network memory; None: it is not bounded.
    network: GateShare | None = None
    #: The subtask's state that was loaded before it starts.
    prepared: LoadedState | None = None
