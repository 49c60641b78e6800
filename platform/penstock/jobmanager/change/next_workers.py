"""The workers of a job's next deployment, which load its state while the old ones run; pure.

`ChangePreparation` is a member of `change.job_change`, for the rescale or upgrade in progress. Rounds: all workers load
a checkpoint, then what later ones add to it, until little is missing. A problem ends the preparation, not the change:
state is then read after the stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.checkpoint.manifest_log import Manifest
from penstock.core.errors import PenstockError
from penstock.graph.execution_graph import PlanIds
from penstock.graph.job_graph import JobGraph, required_slots
from penstock.graph.restore_plan import assign_state
from penstock.jobmanager.change.decisions import ChangeContext, ChangeDecision, KillPrepared, Note, PauseCompactions
from penstock.jobmanager.checkpoints.checkpointing import ChangeCheckpoint, Checkpointing
from penstock.jobmanager.deploy.deployment import Worker, plan_tasks, start_timeout_ms
from penstock.jobmanager.deploy.job_log import JobIdentity
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages.commands import Command, LaunchWorker, SendToWorker
from penstock.jobmanager.messages.events import NO_COPY, CopyTarget
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc.messages import PauseCompaction, PrepareTasks, TasksPrepared, WorkerReady, WorkerReport

#: Another round follows one that took longer than this, because as much has been written meanwhile.
_SHORT_MS = 1_000
_MOST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class NextDeployment:
    """A planned deployment: the graph, the ids of its subtasks, and the slots in the order of the subtasks."""

    graph: JobGraph
    ids: PlanIds
    slots: Sequence[Slot]
    #: The keyed state that the subtask with the most of it reads.
    read_bytes: int
    #: Whether its workers have the environment of this graph, else that of the running job.
    new_version: bool = False


class NextWorkers:
    """The workers, from their launch until they are handed over or killed."""

    def __init__(self, planned: NextDeployment, names: str, deadline_ms: int) -> None:
        """Name the workers `<names>-<number>`, which must be unique over all workers of the run."""
        self._planned = planned
        self.deadline_ms = deadline_ms
        self.workers = {
            f"{names}-{number}": Worker(f"{names}-{number}", slot)
            for number, slot in enumerate(planned.slots[: required_slots(planned.graph)])
        }
        #: Why state cannot be prepared; empty: it can.
        self.problem = ""
        self.round = 0
        #: The checkpoint to load next, and whether it is requested.
        self._checkpoint: Manifest | None = None
        self._requested = True
        self._asked_ms = self._lasted_ms = 0
        self._missing: set[str] = set()

    def launch(self, version: JobGraph | None) -> list[Command]:
        """Return the commands that start the workers, beside those that run in the same slots."""
        workers = self.workers.values()
        return [LaunchWorker(worker.worker_id, worker.slot, beside=True, version=version) for worker in workers]

    @property
    def loaded(self) -> bool:
        """Whether all workers have loaded the newest checkpoint that they were given."""
        return self.round > 0 and self._checkpoint is None and not self._missing

    @property
    def complete(self) -> bool:
        """Whether a further round would bring little."""
        return self.loaded and (self._lasted_ms <= _SHORT_MS or self.round >= _MOST_ROUNDS)

    def take_turn(self) -> bool:
        """Return whether a later checkpoint is to be requested now; it is then expected."""
        due = self.loaded and not self._requested
        self._requested = self._requested or due
        return due

    def load(self, checkpoint: Manifest, now_ms: int) -> list[Command]:
        """Let the workers load a checkpoint as soon as all are ready."""
        self._checkpoint, self._requested = checkpoint, False
        return self._advance(now_ms)

    def reported(self, worker_id: str, report: WorkerReport, now_ms: int) -> list[Command]:
        """Handle a report of one of the workers."""
        match report:
            case WorkerReady():
                worker = self.workers[worker_id]
                worker.endpoint, worker.pid = report.endpoint, report.pid
            case TasksPrepared() if report.round == self.round:
                self.problem = self.problem or report.error
                self._missing.discard(worker_id)
                self._lasted_ms = now_ms - self._asked_ms
        return self._advance(now_ms)

    def lost(self, worker_id: str, reason: str) -> None:
        """Handle the end of one of the workers."""
        if self.workers.pop(worker_id, None) is not None:
            self.problem = self.problem or f"worker {worker_id} was lost: {reason}"

    def taskmanager_lost(self, taskmanager_id: str) -> None:
        """Handle the loss of a TaskManager with its workers."""
        for worker in [worker for worker in self.workers.values() if worker.slot.taskmanager_id == taskmanager_id]:
            self.lost(worker.worker_id, f"its TaskManager {taskmanager_id} is gone")

    def _advance(self, now_ms: int) -> list[Command]:
        checkpoint = self._checkpoint
        if checkpoint is None or self._missing or not all(worker.endpoint for worker in self.workers.values()):
            return []
        self._checkpoint = None
        self.round += 1
        self._asked_ms, self._missing = now_ms, set(self.workers)
        graph, ids = self._planned.graph, self._planned.ids
        try:
            restore = assign_state(graph, checkpoint.subtasks, checkpoint_id=checkpoint.checkpoint_id)
        except PenstockError as error:
            self.problem = self.problem or str(error)
            return []
        tasks = plan_tasks(graph, ids, self.workers.values(), restore).tasks
        job_id, generation, number = ids.job_id, ids.generation, self.round
        return [
            SendToWorker(
                name, PrepareTasks(job_id=job_id, generation=generation, round=number, tasks=tasks.get(name, ()))
            )
            for name in self.workers
        ]


class ChangePreparation:
    """The next workers, from the start of a rescale or upgrade until it deploys or gives them up."""

    def __init__(self) -> None:
        """Start without workers."""
        self._next: NextWorkers | None = None
        #: The kind of entries in the event log, the id of the change's own checkpoint, and where that is copied to.
        self._kind = self._checkpoint_request = ""
        self._target = NO_COPY
        self._checkpointing: Checkpointing | None = None
        #: Whether the change's own checkpoint waits for them.
        self.waits = False
        #: Number of preparations under this leader, for the names of workers.
        self._number = 0

    def begin(
        self, kind: str, checkpoint_request: str, planned: NextDeployment, job: ChangeContext, target: CopyTarget
    ) -> list[ChangeDecision]:
        """Start the next workers and request a checkpoint for them; there are enough slots.

        When they have loaded their state, or cannot, `decide` requests the checkpoint of the change itself, by this id
        and with this copy. `kind` is that of entries in the event log.
        """
        size, self._checkpointing = planned.read_bytes, job.checkpointing
        self._kind, self._checkpoint_request, self._target = kind, checkpoint_request, target
        self._number, self.waits = self._number + 1, True
        names = f"{planned.ids.job_id[:8]}-g{planned.ids.generation}-n{self._number}"
        self._next = NextWorkers(planned, names, job.now_ms + start_timeout_ms(size))
        note = Note(kind, f"the next workers load {size / 1e6:,.0f} MB of state each, while the job runs")
        launched = self._next.launch(planned.graph if planned.new_version else None)
        return [note, PauseCompactions(paused=True), *launched, *self._request(self._next, job)]

    def decide(self, job: ChangeContext) -> list[ChangeDecision]:
        """Return the steps that are due: another round, or the change's own checkpoint."""
        following, failed = self._next, list[ChangeDecision]()
        if following is None or not self.waits or job.step is not Step.RUNNING:
            return []
        if not following.problem and job.now_ms >= following.deadline_ms:
            following.problem = "it took too long"
        if following.problem:
            failed = [Note(self._kind, f"state is read after the stop: {following.problem}"), *self.give_up()]
        elif not following.complete:
            return self._request(following, job) if following.take_turn() else []
        self.waits = False
        return [*failed, *job.checkpointing.request_for_change(self._checkpoint_request, job.now_ms, self._target)]

    def checkpoint_ended(self, result: ChangeCheckpoint, job: ChangeContext) -> list[ChangeDecision]:
        """Let the next workers load the checkpoint that was requested for them; ignore another one."""
        following = self._next
        if following is None or result.request_id != self._request_id(following):
            return []
        if result.checkpoint is not None:
            job.checkpointing.loaded_sequence = result.checkpoint.sequence
            return [*following.load(result.checkpoint, job.now_ms)]
        following.problem = following.problem or result.error
        return []

    def of_worker(self, worker_id: str) -> NextWorkers | None:
        """Return the next workers if this is one of them."""
        return self._next if self._next is not None and worker_id in self._next.workers else None

    def taskmanager_lost(self, taskmanager_id: str) -> None:
        """Handle the loss of a TaskManager with its workers."""
        if self._next is not None:
            self._next.taskmanager_lost(taskmanager_id)

    def take(self) -> tuple[Worker, ...]:
        """Return the next workers, for the deployment."""
        following, self._next, self.waits = self._next, None, False
        if self._checkpointing is not None:
            self._checkpointing.loaded_sequence = None
        return () if following is None else tuple(following.workers.values())

    def give_up(self) -> list[ChangeDecision]:
        """Kill the next workers; the running ones merge segments again."""
        return [] if self._next is None else [KillPrepared(self.take()), PauseCompactions(paused=False)]

    def wake_ms(self) -> int | None:
        """Return the time at which `decide` is due without an event."""
        return self._next.deadline_ms if self._next is not None and self.waits else None

    def _request_id(self, following: NextWorkers) -> str:
        return f"prepare-{following.round}-{self._checkpoint_request}"

    def _request(self, following: NextWorkers, job: ChangeContext) -> list[ChangeDecision]:
        return [*job.checkpointing.request_for_change(self._request_id(following), job.now_ms)]


def pause_order(running: JobIdentity, *, paused: bool) -> PauseCompaction:
    """Return the command that lets the running subtasks merge no segments, or continue to."""
    return PauseCompaction(job_id=running.job_id, run_id=running.run_id, generation=running.generation, paused=paused)
