"""Where the time of a vertex's subtasks goes: asks the workers for samples while somebody looks, and keeps the answer.

Held by `rest.diagnose.flame_graph`; a driver on the event loop. As in Flink what was seen is shown for a minute, then
the next request has new samples taken and gets the old ones meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.errors import PenstockError
from penstock.jobmanager.cluster.worker_queries import Worker
from penstock.rpc.worker_commands import DumpThreads, SampleStacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.jobmanager.cluster.worker_queries import Questions
    from penstock.jobmanager.messages.views import JobDetail, TaskManagerView, VertexView

#: Samples are taken for so long, so often.
DURATION_MS, INTERVAL_MS = 5_000.0, 20.0
#: Older samples are taken anew when somebody asks, and forgotten after the other.
REFRESH_MS, FORGET_MS = 60_000, 600_000
#: Of all vertices together at a time; who asks for more waits.
_MOST_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Profile:
    """What was seen of one vertex."""

    #: Wall clock, when the last sample was there.
    at_ms: int
    #: Subtask -> (stack of (name, whose), samples on a processor, samples off it).
    subtasks: dict[int, tuple[tuple[tuple[tuple[str, str], ...], int, int], ...]]
    #: Processor time that looking took, and the time it was looked for; milliseconds, of all workers together.
    cost_ms: float
    wall_ms: float


@dataclass(frozen=True, slots=True)
class Profiled:
    """What is known of a vertex: samples, maybe old ones, whether new ones are being taken, and why there are none."""

    profile: Profile | None
    sampling: bool
    error: str = ""


class Profiler:
    """Samples of all vertices that somebody has looked at."""

    def __init__(self, questions: Callable[[], Questions], clock: Clock) -> None:
        """Nothing was asked for; `questions` is called when somebody asks."""
        self._questions, self._clock = questions, clock
        self._known: dict[tuple[str, str], Profile] = {}
        self._errors: dict[tuple[str, str], tuple[int, str]] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def look(self, job: JobDetail, vertex: VertexView) -> Profiled:
        """Return what is known of a vertex that runs, and see that it is not older than a minute soon."""
        now = self._clock.now_ms()
        self._known = {k: p for k, p in self._known.items() if now - p.at_ms < FORGET_MS}
        self._errors = {k: e for k, e in self._errors.items() if now - e[0] < REFRESH_MS}
        # what another run's subtasks did says nothing of these
        key = f"{job.summary.run_id}/{max((s.attempt for s in vertex.subtasks), default=0)}", vertex.id
        known = self._known.get(key)
        fresh = known is not None and now - known.at_ms < REFRESH_MS
        wanted = not fresh and key not in self._errors and key not in self._tasks
        if wanted and len(self._tasks) < _MOST_AT_A_TIME:
            task = asyncio.get_running_loop().create_task(self._sample(key, job.summary.job_id, vertex))
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return Profiled(known, wanted or key in self._tasks, self._errors.get(key, (0, ""))[1])

    async def _sample(self, key: tuple[str, str], job_id: str, vertex: VertexView) -> None:
        question = SampleStacks(
            job_id=job_id, request_id="", vertex_id=vertex.id, duration_ms=DURATION_MS, interval_ms=INTERVAL_MS
        )
        workers = {Worker(s.taskmanager_id, s.worker_id) for s in vertex.subtasks if s.state == "RUNNING"}
        asking = [self._questions().ask(worker, question) for worker in workers]
        found = await asyncio.gather(*asking, return_exceptions=True)
        problems = [str(answer) for answer in found if isinstance(answer, PenstockError)]
        answers = [answer for answer in found if isinstance(answer, dict)]
        for answer in found:
            if isinstance(answer, BaseException) and not isinstance(answer, PenstockError):
                raise answer
        if not answers:
            self._errors[key] = self._clock.now_ms(), (problems or ["no subtask of it runs"])[0]
            return
        self._known[key] = Profile(
            at_ms=self._clock.now_ms(),
            subtasks={int(n): stacks for answer in answers for n, stacks in _unfolded(answer).items()},
            cost_ms=sum(answer["cpu-ms"] for answer in answers),
            wall_ms=sum(answer["wall-ms"] for answer in answers),
        )


def _unfolded(answer: dict[str, Any]) -> dict[str, tuple[tuple[tuple[tuple[str, str], ...], int, int], ...]]:
    frames = [(str(name), str(whose)) for name, whose in answer["frames"]]
    return {
        subtask: tuple((tuple(frames[i] for i in stack), int(on), int(off)) for stack, on, off in stacks)
        for subtask, stacks in answer["subtasks"].items()
    }


async def worker_threads(view: TaskManagerView, questions: Questions) -> list[tuple[str, str]]:
    """Return names and stacks of the threads of a TaskManager's workers; a worker that does not answer says so."""
    asking = [
        questions.ask(Worker(view.taskmanager_id, worker.worker_id), DumpThreads(job_id=worker.job_id, request_id=""))
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
