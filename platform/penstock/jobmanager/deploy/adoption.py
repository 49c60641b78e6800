"""Decides whether a job continues with the workers of an earlier leader; pure.

A member of `master.job_master` while the job is RECONCILING. It adopts the newest attempt of every vertex or nothing:
see the decision record 22.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from penstock.core.errors import PenstockError
from penstock.graph.execution_graph import PlanIds
from penstock.graph.job_graph import JobGraph, required_slots, slots_of
from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.deploy.deployment import AdoptedTask, Recovered, Worker
from penstock.jobmanager.deploy.job_log import JobIdentity, plan_restore
from penstock.jobmanager.messages.commands import Command, KeepWorker, KillWorker, ReleaseSlots, SendToWorker
from penstock.jobmanager.messages.events import LogRead
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc.messages import AskTasks, InputEnded, TasksReported, TaskState, WorkerReport

_ENDED = ("FINISHED", "CANCELED", "FAILED")
_Where = tuple[str, int]


class Verdict(enum.Enum):
    """The decision about the workers."""

    WAIT = "wait"
    ADOPT = "adopt"
    RESTART = "restart"


class Adoption:
    """The workers of one job, as far as they are known."""

    def __init__(self, graph: JobGraph, ids: PlanIds, attempts: Attempts, deadline_ms: int) -> None:
        """Wait until `deadline_ms` for all workers of `attempts`; `ids`: of this leader, with the newest attempt."""
        self.ids = ids
        self._attempts = attempts
        self._graph = graph
        self.deadline_ms = deadline_ms
        #: The recovery plan from the log; None before it is read.
        self.recovered: Recovered | None = None
        self.workers: dict[str, Worker] = {}
        #: Workers for a rescale or upgrade that the earlier leader did not begin.
        self.idle: list[Worker] = []
        #: The slots of all workers found; a lost worker's is still the job's.
        self._slots: list[Slot] = []
        #: The subtasks, and the number of the slot of each.
        self._places = {where: place for place, need in enumerate(slots_of(graph)) for where in need.subtasks}
        #: The largest id of a checkpoint that the earlier leader is known to have triggered; the log lacks failed ones.
        self.newest_checkpoint = 0
        self._tasks: dict[_Where, AdoptedTask] = {}
        self._owners: dict[tuple[str, str], int] = {}
        self._needed = required_slots(graph)
        self._sources = {vertex.id for vertex in graph.vertices if vertex.is_source}
        self._obstacle = ""

    @property
    def tasks(self) -> tuple[AdoptedTask, ...]:
        """The subtasks that the workers have reported."""
        return tuple(self._tasks.values())

    @property
    def slots(self) -> list[Slot]:
        """The slots of all workers, in the order of the subtasks that they have reported."""
        places: dict[Slot, int] = {}
        for where, task in self._tasks.items():
            worker = self.workers.get(task.worker_id)
            if worker is not None:
                places.setdefault(worker.slot, self._places.get(where, self._needed))
        return sorted(self._slots, key=lambda slot: places.get(slot, self._needed))

    def release_idle(self) -> list[Command]:
        """Return the commands that kill the idle workers, and release the slots that only they have."""
        used = {worker.slot for worker in self.workers.values()}
        free = tuple(slot for slot in self._slots if slot not in used)
        self._slots = [slot for slot in self._slots if slot in used]
        kills: list[Command] = [KillWorker(worker.worker_id, worker.slot) for worker in self.idle]
        return [*kills, ReleaseSlots(free)] if free else kills

    def refuse(self, obstacle: str) -> None:
        """Restart the job; the first obstacle counts."""
        self._obstacle = self._obstacle or obstacle

    def found(self, worker_id: str, slot: Slot) -> None:
        """Add a worker, which is then asked."""
        self.workers[worker_id] = Worker(worker_id, slot)
        if slot not in self._slots:  # two workers share a slot before a rescale
            self._slots.append(slot)

    def ask(self, workers: Iterable[tuple[str, Slot]]) -> list[Command]:
        """Add workers; return the commands that keep them and ask for their tasks."""
        question, commands = AskTasks(job_id=self.ids.job_id, generation=self.ids.generation), list[Command]()
        for worker_id, slot in workers:
            self.found(worker_id, slot)
            commands += [KeepWorker(worker_id, slot), SendToWorker(worker_id, question)]
        return commands

    def log_read(self, identity: JobIdentity, log: LogRead) -> None:
        """Plan the recovery from the log, or refuse if the workers cannot continue from it."""
        try:
            recovered = plan_restore(self._graph, identity, log, deployed_before=False)
        except PenstockError as error:
            self.refuse(str(error))  # the start says so too
            return
        if recovered.plan.finishing:
            self.refuse("only the last output is left to publish")
        elif recovered.plan.trial is not None and recovered.plan.trial.open:
            self.refuse("an upgrade is on trial")
        self.recovered = recovered

    def lost(self, worker_id: str) -> None:
        """Handle the end of a worker."""
        if self.workers.pop(worker_id, None) is not None:
            self.refuse(f"worker {worker_id} was lost")

    def taskmanager_lost(self, taskmanager_id: str) -> None:
        """Handle the loss of a TaskManager with its workers."""
        for worker in [worker for worker in self.workers.values() if worker.slot.taskmanager_id == taskmanager_id]:
            self.lost(worker.worker_id)
        self._slots = [slot for slot in self._slots if slot.taskmanager_id != taskmanager_id]

    def reported(self, worker_id: str, report: WorkerReport) -> None:
        """Handle a report of a worker: its answer, or a later change."""
        match report:
            case TasksReported() if report.generation == self.ids.generation:
                self._answered(worker_id, report)
            case TaskState() if report.attempt == self._attempts.of(report.vertex_id):
                self._change((report.vertex_id, report.subtask), state=report.state)
            case InputEnded() if report.attempt == self._attempts.of(report.vertex_id):
                self._change((report.vertex_id, report.subtask), input_ended=True)

    def decide(self, now_ms: int) -> tuple[Verdict, str]:
        """Return the verdict, and why the job restarts or what it waits for."""
        ended = next((task for task in self.tasks if task.report.state in _ENDED), None)
        if ended is not None:
            self.refuse(f"subtask {ended.report.vertex_id[:8]}_{ended.report.subtask} is {ended.report.state}")
        if self._obstacle:
            return Verdict.RESTART, self._obstacle
        if waiting := self._waiting():
            return (Verdict.WAIT if now_ms < self.deadline_ms else Verdict.RESTART), waiting
        if unassigned := [t for t in self.tasks if t.report.vertex_id in self._sources and t.report.splits is None]:
            where = unassigned[0].report
            return Verdict.RESTART, f"source subtask {where.vertex_id[:8]}_{where.subtask} has no splits yet"
        return Verdict.ADOPT, ""

    def _waiting(self) -> str:
        """Return what is still missing; empty if all subtasks run."""
        if self.recovered is None:
            return "the manifest log is not read"
        answered = sum(bool(worker.endpoint) for worker in self.workers.values())
        if answered < self._needed or answered < len(self.workers):
            return f"{answered} of {max(self._needed, len(self.workers))} workers have answered"
        if missing := self._places.keys() - self._tasks.keys():
            vertex_id, subtask = min(missing)
            return f"no worker runs subtask {vertex_id[:8]}_{subtask}"
        late = next((task.report for task in self.tasks if task.report.state != "RUNNING"), None)
        return "" if late is None else f"subtask {late.vertex_id[:8]}_{late.subtask} is {late.state}"

    def _answered(self, worker_id: str, report: TasksReported) -> None:
        worker = self.workers.get(worker_id)
        if worker is None or worker.endpoint:
            return
        if report.beside:
            self.idle.append(self.workers.pop(worker_id))
            return
        worker.endpoint, worker.pid = report.endpoint, report.pid
        self.newest_checkpoint = max(self.newest_checkpoint, report.newest_checkpoint)
        newest = {self._attempts.of(task.vertex_id) for task in report.tasks}
        if (report.run_id, {report.attempt}) != (self.ids.run_id, newest):
            own = max(newest, default=self.ids.attempt)
            self.refuse(f"worker {worker_id} runs attempt {report.attempt}, the newest is {own}")
        if report.stopping:
            self.refuse("a stop of the job was under way")
        for task in report.tasks:
            where = task.vertex_id, task.subtask
            if where not in self._places or where in self._tasks:
                self.refuse(
                    f"worker {worker_id} runs subtask {task.vertex_id[:8]}_{task.subtask}, which is not its own"
                )
            for split in task.splits or ():
                if self._owners.setdefault((task.vertex_id, split), task.subtask) != task.subtask:
                    self.refuse(f"two subtasks read split {split}")
            self._tasks[where] = AdoptedTask(worker_id, task, report.attempt)

    def _change(self, where: _Where, **changes: object) -> None:
        task = self._tasks.get(where)
        if task is not None:
            self._tasks[where] = replace(task, report=msgspec.structs.replace(task.report, **changes))


def dismissed(workers: Iterable[tuple[str, Slot]]) -> list[Command]:
    """Return the commands that kill workers which no leader waits for, and release their slots."""
    known = tuple(workers)
    return [*(KillWorker(*worker) for worker in known), ReleaseSlots(tuple(dict.fromkeys(slot for _, slot in known)))]
