"""Profiles a vertex's subtasks: requests stack samples from the workers on demand and caches the result.

Owned by `rest.diagnose.flame_graph`; a driver on the event loop. As in Flink, samples are shown for a minute. The next
request then starts new sampling and meanwhile gets the old samples.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.errors import PenstockError
from penstock.jobmanager.cluster.taskmanagers import WorkerAddress
from penstock.rpc.messages import DumpThreads, SampleStacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.jobmanager.cluster.taskmanagers import WorkerQueries
    from penstock.jobmanager.messages.views import JobDetail, TaskManagerView, VertexView

#: Duration and interval of sampling.
DURATION_MS, INTERVAL_MS = 5_000.0, 20.0
#: Age from which a request takes new samples, and age at which samples are dropped.
REFRESH_MS, FORGET_MS = 60_000, 600_000
#: Vertices sampled at the same time; further requests wait.
_MOST_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Profile:
    """The stack samples of one vertex."""

    #: Wall-clock time of the last sample.
    at_ms: int
    #: Subtask -> (stack of (name, owner), samples on CPU, samples off CPU).
    subtasks: dict[int, tuple[tuple[tuple[tuple[str, str], ...], int, int], ...]]
    #: CPU time spent on sampling, and its duration; milliseconds, sum of all workers.
    cost_ms: float
    wall_ms: float


@dataclass(frozen=True, slots=True)
class ProfileStatus:
    """The profile of a vertex (possibly old), whether new samples are being taken, and the last error."""

    profile: Profile | None
    sampling: bool
    error: str = ""


class Profiler:
    """Profiles of all vertices that were requested recently."""

    def __init__(self, queries: Callable[[], WorkerQueries], clock: Clock) -> None:
        """Start without profiles; `queries` is called for each sampling."""
        self._queries, self._clock = queries, clock
        self._known: dict[tuple[str, str], Profile] = {}
        self._errors: dict[tuple[str, str], tuple[int, str]] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def profile_of(self, job: JobDetail, vertex: VertexView) -> ProfileStatus:
        """Return the profile of a running vertex; start new sampling if it is older than a minute."""
        now = self._clock.now_ms()
        self._known = {k: p for k, p in self._known.items() if now - p.at_ms < FORGET_MS}
        self._errors = {k: e for k, e in self._errors.items() if now - e[0] < REFRESH_MS}
        # samples of an earlier run or attempt do not apply to these subtasks
        key = f"{job.summary.run_id}/{max((s.attempt for s in vertex.subtasks), default=0)}", vertex.id
        known = self._known.get(key)
        fresh = known is not None and now - known.at_ms < REFRESH_MS
        wanted = not fresh and key not in self._errors and key not in self._tasks
        if wanted and len(self._tasks) < _MOST_AT_A_TIME:
            task = asyncio.get_running_loop().create_task(self._sample(key, job.summary.job_id, vertex))
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return ProfileStatus(known, wanted or key in self._tasks, self._errors.get(key, (0, ""))[1])

    async def _sample(self, key: tuple[str, str], job_id: str, vertex: VertexView) -> None:
        query = SampleStacks(
            job_id=job_id, request_id="", vertex_id=vertex.id, duration_ms=DURATION_MS, interval_ms=INTERVAL_MS
        )
        workers = {WorkerAddress(s.taskmanager_id, s.worker_id) for s in vertex.subtasks if s.state == "RUNNING"}
        asking = [self._queries().ask(worker, query) for worker in workers]
        found = await asyncio.gather(*asking, return_exceptions=True)
        problems = [str(answer) for answer in found if isinstance(answer, PenstockError)]
        answers = [answer for answer in found if isinstance(answer, dict)]
        for answer in found:
            if isinstance(answer, BaseException) and not isinstance(answer, PenstockError):
                raise answer
        if not answers:
            self._errors[key] = self._clock.now_ms(), (problems or ["the vertex has no running subtask"])[0]
            return
        self._known[key] = Profile(
            at_ms=self._clock.now_ms(),
            subtasks={int(n): stacks for answer in answers for n, stacks in _expand_stacks(answer).items()},
            cost_ms=sum(answer["cpu-ms"] for answer in answers),
            wall_ms=sum(answer["wall-ms"] for answer in answers),
        )


def _expand_stacks(answer: dict[str, Any]) -> dict[str, tuple[tuple[tuple[tuple[str, str], ...], int, int], ...]]:
    frames = [(str(name), str(whose)) for name, whose in answer["frames"]]
    return {
        subtask: tuple((tuple(frames[i] for i in stack), int(on), int(off)) for stack, on, off in stacks)
        for subtask, stacks in answer["subtasks"].items()
    }


async def worker_threads(view: TaskManagerView, queries: WorkerQueries) -> list[tuple[str, str]]:
    """Return names and stacks of the threads of a TaskManager's workers; for a failed query its error."""
    asking = [
        queries.ask(
            WorkerAddress(view.taskmanager_id, worker.worker_id), DumpThreads(job_id=worker.job_id, request_id="")
        )
        for worker in view.workers
    ]
    found: list[tuple[str, str]] = []
    for worker, answer in zip(view.workers, await asyncio.gather(*asking, return_exceptions=True), strict=True):
        if isinstance(answer, PenstockError):
            found.append((worker.worker_id, str(answer)))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += [(f"{worker.worker_id}/{name}", text) for name, text in answer["threads"]]
    return found
