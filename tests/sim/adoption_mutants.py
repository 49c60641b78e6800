"""Faults planted into the adoption of workers by a new leader, for `test_mutants.py`."""

from __future__ import annotations

from typing import Any

from tests.sim.mutants import Mutant, Patch
from tests.sim.workload import Phase

from penstock.checkpoint import recovery
from penstock.checkpoint.job_lease import JobLease
from penstock.checkpoint.manifest_log import LogEntry
from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.deploy.adoption import Adoption, Verdict
from penstock.jobmanager.deploy.deployment import AdoptedTask
from penstock.jobmanager.deploy.split_assigner import SplitAssigner
from penstock.rpc.messages import RunningTask, TasksReported
from penstock.task.drive.runtime import TaskRuntime

_CHANGES = {"jobmanager-killed": 2.0, "leader-paused": 1.0}
_LOSSES = {**_CHANGES, "session-lost": 1.0}
_SLOW = {"input_ms": 1500.0}


def _impatient(patch: Patch) -> None:
    """It adopts the workers that have come in time."""
    decide = Adoption.decide

    def hasty(self: Adoption, now_ms: int) -> tuple[Verdict, str]:
        verdict, reason = decide(self, now_ms)
        if verdict is not Verdict.RESTART or self._obstacle or self.recovered is None or not self._tasks:
            return verdict, reason
        worker = next(iter(self.workers))
        for vertex_id, subtask in self._places.keys() - self._tasks.keys():
            task = RunningTask(vertex_id=vertex_id, subtask=subtask, state="RUNNING", splits=())
            self._tasks[vertex_id, subtask] = AdoptedTask(worker, task, self.ids.attempt)
        return Verdict.ADOPT, ""

    patch.setattr(Adoption, "decide", hasty)


def _no_fence(patch: Patch) -> None:
    live = TaskRuntime._live_subtasks

    def any_generation(self: TaskRuntime, job_id: str, run_id: str | None, _generation: int | None) -> Any:
        return live(self, job_id, run_id, None)

    patch.setattr(TaskRuntime, "_live_subtasks", any_generation)


def _ids_repeated(patch: Patch) -> None:
    """The next id is the one after the newest in the log."""

    def next_id(live: tuple[LogEntry, ...]) -> int:
        return 1 + max((entry.manifest.checkpoint_id or 0 for entry in live), default=0)

    patch.setattr(recovery, "_next_id", next_id)


def _owners_forgotten(patch: Patch) -> None:
    """It knows how many splits each subtask has, but not which: it lists them again."""

    def forgetful(_cls: type[SplitAssigner], owned: Any, *, bounded: bool) -> SplitAssigner:
        assigner = SplitAssigner(len(owned), bounded=bounded, restored=None)
        assigner._owned = [list(ids) for ids in owned]
        return assigner

    patch.setattr(SplitAssigner, "of_running", classmethod(forgetful))


def _first_attempt_stays(patch: Patch) -> None:
    record = JobLease.record_attempt

    def once(self: JobLease, attempts: Attempts) -> None:
        if not self.record.attempt:
            record(self, attempts)

    patch.setattr(JobLease, "record_attempt", once)


def _any_attempt_of_the_job(patch: Patch) -> None:
    """It knows which attempts the job has, but not of which vertex each is the newest: the last answer counts."""
    answered = Adoption._answered

    def known(self: Adoption, worker_id: str, report: TasksReported) -> None:
        attempts = self._attempts
        if report.attempt in (attempts.newest, *attempts.earlier.values()):
            self._attempts = Attempts(report.attempt)
        for task in report.tasks:
            self._tasks.pop((task.vertex_id, task.subtask), None)
        answered(self, worker_id, report)
        self._attempts = attempts

    patch.setattr(Adoption, "_answered", known)


ADOPTION = (
    Mutant("adopted with a subtask missing", _impatient, {}, _LOSSES, _SLOW, seeds=60, likely=11),
    Mutant(
        "an earlier leader's command obeyed", _no_fence, {"command-late": 0.9}, _LOSSES, _SLOW, seeds=100, likely=10
    ),
    Mutant(
        "a checkpoint id used by two leaders",
        _ids_repeated,
        {"upload-delayed": 0.3, "ack-late": 0.2},
        _CHANGES,
        _SLOW,
        {"checkpoint_interval_ms": 30},
        seeds=100,
        likely=5,
        every_ms=120,
    ),
    Mutant("a split assigned twice", _owners_forgotten, {}, _CHANGES, {**_SLOW, "phases": [Phase(3)]}),
    Mutant(
        "an earlier attempt adopted", _first_attempt_stays, {}, {**_LOSSES, "worker-zombie": 2.0}, _SLOW,
        seeds=200, likely=25, every_ms=100,
    ),
    Mutant(
        "an older attempt of a region adopted", _any_attempt_of_the_job, {},
        {"worker-zombie": 2.0, "jobmanager-killed": 2.0, "worker-killed": 1.0},
        {"phases": [Phase(1, "finish")], "begin_ms": 50.0, **_SLOW}, regions=2, seeds=500, likely=172, every_ms=100,
    ),
)  # fmt: skip
