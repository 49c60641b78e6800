"""Who looks at a vertex has samples taken, once a minute at most, by each worker once."""

import asyncio

import msgspec

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.jobmanager.cluster.taskmanagers import WorkerQueries
from penstock.jobmanager.messages.views import (
    JobDetail,
    JobSummary,
    SubtaskView,
    TaskManagerView,
    VertexView,
    WorkerView,
)
from penstock.jobmanager.observe.profiling import FORGET_MS, REFRESH_MS, Profiler, worker_threads
from penstock.rpc.messages import SubtaskAnswer

SUMMARY = JobSummary(
    job_id="1" * 32, name="j", state="RUNNING", run_id="r", start_ms=5, end_ms=-1, last_modified_ms=6, tasks={},
    restarts=0,
)  # fmt: skip
ANSWER = {"frames": [["step", "engine"], ["rate", "user"]], "samples": 9, "wall-ms": 100.0, "cpu-ms": 1.0}


def vertex(attempt=1):
    subtasks = tuple(
        SubtaskView(subtask=n, state="RUNNING", attempt=attempt, worker_id=f"w{n % 2}", taskmanager_id="tm")
        for n in range(4)
    )
    return VertexView(
        id="v", name="v", parallelism=4, max_parallelism=64, state="RUNNING", operators=(), subtasks=subtasks
    )


class Cluster:
    """Two workers that answer at once, or with an error, or not at all."""

    def __init__(self, error="", silent=False):
        self.clock, self.asked, self.error, self.silent = ManualClock(), [], error, silent
        self.queries = WorkerQueries(self.send, deadline_s=0.05)
        self.profiler = Profiler(lambda: self.queries, self.clock)

    def send(self, _taskmanager, workers, command):
        self.asked.append((*workers, type(command).__name__))
        if not self.silent:
            subtasks = {n: [[[0, 1], 5, 1]] for n in ("02" if workers == ("w0",) else "13")}
            answer = {} if self.error else {**ANSWER, "subtasks": subtasks, "threads": [["main", "line 1"]]}
            head = {"job_id": command.job_id, "request_id": command.request_id}
            self.queries.answered(SubtaskAnswer(**head, answer=answer, error=self.error))

    async def profile_of(self, of=None, summary=SUMMARY):
        detail = JobDetail(summary=summary, vertices=(), edges=(), settings=JobSettings(), timestamps={})
        found = self.profiler.profile_of(detail, of or vertex())
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        return found


async def test_the_first_look_waits_and_the_next_have_it_for_a_minute():
    cluster = Cluster()
    first = await cluster.profile_of()
    assert (first.profile, first.sampling) == (None, True)
    second = await cluster.profile_of()
    assert sorted(second.profile.subtasks) == [0, 1, 2, 3]
    assert second.profile.subtasks[3] == (((("step", "engine"), ("rate", "user")), 5, 1),)
    assert not second.sampling
    assert (second.profile.cost_ms, second.profile.wall_ms) == (2.0, 200.0)
    cluster.clock.advance(REFRESH_MS - 1)
    await cluster.profile_of()
    assert sorted(cluster.asked) == [("w0", "SampleStacks"), ("w1", "SampleStacks")]
    cluster.clock.advance(1)
    stale = await cluster.profile_of()
    assert stale.profile is second.profile, "what there is, until the new ones are there"
    assert stale.sampling
    assert len(cluster.asked) == 4
    cluster.clock.advance(FORGET_MS)
    assert (await cluster.profile_of()).profile is None


async def test_another_attempt_or_run_is_looked_at_anew():
    cluster = Cluster()
    await cluster.profile_of()
    assert (await cluster.profile_of(vertex(attempt=2))).profile is None
    assert (await cluster.profile_of(summary=msgspec.structs.replace(SUMMARY, run_id="other"))).profile is None


async def test_what_cannot_be_had_is_told_and_not_asked_for_again_at_once():
    for cluster, text in ((Cluster(error="the subtask does not run"), "does not run"), (Cluster(silent=True), "w")):
        failed = await cluster.profile_of()
        for _ in range(50):
            if not failed.sampling:
                break
            failed = await cluster.profile_of()
        assert text in failed.error
        assert not failed.sampling
        asked = len(cluster.asked)
        await cluster.profile_of()
        assert len(cluster.asked) == asked


async def test_threads_of_workers_and_of_one_that_is_silent():
    view = TaskManagerView(
        taskmanager_id="tm", host="h", pid=1, slots=1, free_slots=0, registered_ms=1, last_heartbeat_ms=1,
        workers=(WorkerView(worker_id="w0", job_id="j", slot=0, pid=2, memory_bytes=1),),
    )  # fmt: skip
    assert await worker_threads(view, Cluster().queries) == [("w0/main", "line 1")]
    ((name, text),) = await worker_threads(view, Cluster(silent=True).queries)
    assert name == "w0"
    assert "worker w0 did not answer" in text
