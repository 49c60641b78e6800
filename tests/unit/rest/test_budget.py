"""The time budget of a job: sums over subtasks, shares over the job, and what is left around the operators."""

from penstock.config.settings import JobSettings
from penstock.jobmanager.messages.views import JobDetail, JobSummary, OperatorView, SubtaskView, VertexView
from penstock.rest.flink.documents import io_metrics
from penstock.rest.jobs import observation_routes as module
from penstock.rest.jobs.observation_routes import budget
from penstock.task.chain.operator_times import OUTPUT

SUMMARY = JobSummary(
    job_id="1" * 32, name="job", state="RUNNING", run_id="r", start_ms=5, end_ms=-1, last_modified_ms=6, tasks={},
    restarts=0,
)  # fmt: skip


def metrics(busy, **cpu):
    values = {"accumulatedBusyTimeMs": busy}
    for uid, ms in cpu.items():
        name = OUTPUT if uid == "output" else uid
        values |= {f"operator/{name}/accumulatedCpuTimeMs": ms, f"operator/{name}/accumulatedBusyTimeMs": 2 * ms}
        values |= {f"operator/{name}/cpuTimeMsPerSecond": ms / 10, f"operator/{name}/busyTimeMsPerSecond": ms / 5}
    return values


def vertex(uids, *subtasks):
    return VertexView(
        id="v",
        name=" -> ".join(uids),
        parallelism=len(subtasks),
        max_parallelism=8,
        state="RUNNING",
        operators=tuple(OperatorView(uid=uid, name=uid.title(), kind="k") for uid in uids),
        subtasks=tuple(SubtaskView(subtask=i, state="RUNNING", attempt=0, metrics=m) for i, m in enumerate(subtasks)),
    )


def test_times_add_up():
    vertices = (
        vertex(["read", "map"], metrics(100.0, read=10.0, map=20.0, output=5.0), metrics(60.0, read=20.0, map=5.0)),
        vertex(["sink"], metrics(50.0, sink=40.0), {}),
    )
    found = budget(
        JobDetail(summary=SUMMARY, vertices=vertices, edges=(), settings=JobSettings(), timestamps={"RUNNING": 5})
    )
    assert found["cpu-ms"] == 100
    first, second = found["vertices"]
    assert [(o["uid"], o["cpu-ms"], o["share"]) for o in first["operators"]] == [
        ("read", 30, 0.3), ("map", 25, 0.25), (OUTPUT, 5, 0.05),
    ]  # fmt: skip
    assert (first["busy-ms"], first["other-busy-ms"]) == (160, 40)
    assert second["other-busy-ms"] == 0, "clocks are read at different moments: never below nothing"
    assert second["operators"][0]["busy-ms-per-second"] == 8
    assert module._OUTPUT == OUTPUT


def test_a_job_that_has_not_begun_has_no_shares():
    found = budget(
        JobDetail(
            summary=SUMMARY,
            vertices=(vertex(["read"], {}),),
            edges=(),
            settings=JobSettings(),
            timestamps={"CREATED": 5},
        )
    )
    assert [o["share"] for o in found["vertices"][0]["operators"]] == [0, 0]


def test_flinks_times_of_a_vertex_are_the_tasks_own():
    document = io_metrics([metrics(100.0), metrics(60.0), {"accumulatedIdleTimeMs": 7.0}])
    assert document["accumulated-busy-time"] == 160
    assert document["accumulated-idle-time"] == 7
