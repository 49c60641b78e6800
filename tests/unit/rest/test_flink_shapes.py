"""What Flink's tools are answered about checkpoints, vertices, metrics and processes: its fields, never null."""

from types import SimpleNamespace

import msgspec
import pytest

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.errors import NotFoundError, UsageError
from penstock.jobmanager.messages.views import (
    AdaptiveView,
    CheckpointsView,
    CheckpointView,
    ClusterView,
    ExceptionView,
    JobDetail,
    JobSummary,
    OperatorView,
    SubtaskCheckpointView,
    SubtaskView,
    TaskManagerView,
    UpgradeView,
    VertexView,
    WorkerView,
)
from penstock.metrics.process import ProcessMeter
from penstock.metrics.prometheus import render
from penstock.rest.flink import cluster_documents as flink_cluster
from penstock.rest.flink import documents as flink_json
from penstock.rest.flink import vertex_documents as flink_checkpoints
from penstock.rest.flink import vertex_documents as flink_vertices
from penstock.rest.jobs import metric_routes as flink_metrics
from penstock.rest.jobs.operation_routes import policy_of, upgrade_document
from penstock.rpc.messages import MemoryParts, SlotStatus

NOW = 5_000


def subtask(index, state="RUNNING", manager="tm", **metrics):
    return SubtaskView(
        subtask=index, state=state, attempt=1, taskmanager_id=manager, host="h", start_ms=1_000, metrics=metrics
    )


VERTEX = VertexView(
    id="v", name="orders", parallelism=3, max_parallelism=8, state="RUNNING", start_ms=1_000,
    operators=(OperatorView(uid="u", name="orders", kind="source"),),
    subtasks=(
        subtask(0, backPressuredTimeMsPerSecond=50.0, busyTimeMsPerSecond=400.0, numRecordsOut=10.0),
        subtask(1, backPressuredTimeMsPerSecond=300.0, numRecordsOut=20.0, **{"operator/u/busyTimeMsPerSecond": 7.0}),
        subtask(2, "FAILED", "other", backPressuredTimeMsPerSecond=900.0, currentInputWatermark=12.0),
    ),
)  # fmt: skip
SUMMARY = JobSummary(
    job_id="1" * 32, name="job", state="RUNNING", run_id="r", start_ms=500, end_ms=-1, last_modified_ms=6, tasks={},
    restarts=2,
)  # fmt: skip
ADAPTIVE = AdaptiveView(slots=4, least=2, most=8, rescale_ms=9_000)
DETAIL = JobDetail(summary=SUMMARY, vertices=(VERTEX,), edges=(), settings=JobSettings(), timestamps={"RUNNING": 4_000})


@pytest.mark.parametrize(("view", "scheduler"), [(None, "Default"), (ADAPTIVE, "Adaptive")])
def test_the_scheduler_is_the_one_that_the_job_has(view, scheduler):
    summary = msgspec.structs.replace(SUMMARY, adaptive=view)
    detail = msgspec.structs.replace(DETAIL, summary=summary)
    assert flink_json.job_overview(summary, NOW)["schedulerType"] == scheduler
    assert flink_json.job_detail(detail, NOW)["schedulerType"] == scheduler
    told = flink_json.progress(detail, NO_CHECKPOINTS)["adaptive"]
    assert told == (view and {"slots": 4, "least": 2, "most": 8, "rescale-at": 9_000})


PARTS = tuple(
    SubtaskCheckpointView(
        vertex_id="v", subtask=i, ack_ms=120 + i, state_bytes=10, new_bytes=i, alignment_ms=1.5, sync_ms=2.0,
        async_ms=3.0, processed_bytes=100 * i, buffered_bytes=7,
    )
    for i in (0, 2)
)  # fmt: skip
CHECKPOINT = CheckpointView(
    id=7, kind="checkpoint", status="COMPLETED", trigger_ms=100, end_ms=130, duration_ms=30, acknowledged=2, total=3,
    state_bytes=20, new_bytes=2, processed_bytes=200, buffered_bytes=14, max_sync_ms=2.0, subtasks=PARTS,
)  # fmt: skip
CHECKPOINTS = CheckpointsView(
    completed=1, failed=0, in_progress=0, restored=0, history=(CHECKPOINT,), latest_completed=CHECKPOINT
)
NO_CHECKPOINTS = CheckpointsView(completed=0, failed=0, in_progress=0, restored=0, history=())
MANAGER = TaskManagerView(
    taskmanager_id="tm", host="h", pid=1, slots=2, free_slots=1, registered_ms=1, last_heartbeat_ms=2,
    workers=(WorkerView(worker_id="w", job_id="1" * 32, slot=0, pid=9, memory_bytes=100),),
    taken_slots=(
        SlotStatus(slot=0, worker_id="w", job_id="1" * 32, state="RELEASING"),
        SlotStatus(slot=0, worker_id="next", job_id="1" * 32),
    ),
    metrics_address="127.0.0.1:9", process={"Status.JVM.Memory.Heap.Used": 5.0, "Status.JVM.Memory.Heap.Max": 99.0},
    memory=MemoryParts(
        total_bytes=1 << 30, framework_bytes=128 << 20, task_bytes=400 << 20, network_bytes=96 << 20,
        network_shared_bytes=48 << 20, managed_bytes=400 << 20,
    ),
    network_lent_bytes=9 << 20,
)  # fmt: skip


def nulls(value, where=""):
    """The places of a document that hold null."""
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in nulls(item, f"{where}/{key}")]
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in nulls(item, f"{where}/{i}")]
    return [where] if value is None else []


def test_the_memory_of_a_taskmanager_is_given_in_parts_and_that_of_slots_in_mebibytes():
    shown = flink_cluster.taskmanager_detail(MANAGER)
    parts = shown["memoryConfiguration"]
    assert sum(parts[key] for key in ("frameworkHeap", "taskHeap", "networkMemory", "managedMemory")) == 1 << 30
    assert (parts["totalProcessMemory"], shown["hardware"]["managedMemory"]) == (1 << 30, 400 << 20)
    slot = {"cpuCores": 1.0, "taskHeapMemory": 200, "taskOffHeapMemory": 0, "managedMemory": 200, "networkMemory": 48}
    assert shown["freeResource"] == shown["allocatedSlots"][0]["resource"] == slot
    assert shown["totalResource"]["managedMemory"] == 400


def test_a_taken_slot_is_shown_with_the_state_of_its_first_worker():
    (taken,) = flink_cluster.taskmanager_detail(MANAGER)["allocatedSlots"]
    assert (taken["index"], taken["state"], taken["jobId"]) == (0, "RELEASING", "1" * 32)


def test_the_used_memory_of_a_taskmanager_is_that_of_its_workers():
    (worker,) = MANAGER.workers
    used = {"managedMemoryUsed": 7.0, "networkMemoryUsed": 5.0}
    workers = tuple(msgspec.structs.replace(worker, worker_id=name, metrics=used) for name in "ab")
    view = msgspec.structs.replace(MANAGER, workers=workers)
    shown, values = flink_cluster.taskmanager_detail(view)["metrics"], flink_cluster.taskmanager_values(view)
    parts = {"Total": 96 << 20, "Used": 10, "Available": (96 << 20) - 10}
    assert {part: shown[f"nettyShuffleMemory{part}"] for part in parts} == parts
    assert {part: values[f"Status.Shuffle.Netty.{part}Memory"] for part in parts} == parts
    assert values["Status.Flink.Memory.Managed.Used"] == 14
    network = {"guaranteed": 48 << 20, "shared": 48 << 20, "lent": 9 << 20, "used": 10}
    assert flink_cluster.taskmanager_detail(view)["networkMemory"] == network
    assert {what: values[f"Status.Penstock.Network.Memory.{what.title()}"] for what in network} == network


@pytest.mark.parametrize("settings", [JobSettings(), JobSettings(checkpoint_interval_ms=5)])
def test_nothing_is_null(settings):
    detail = msgspec.structs.replace(DETAIL, settings=settings)
    empty = msgspec.structs.replace(VERTEX, subtasks=(SubtaskView(subtask=0, state="CREATED", attempt=0),))
    documents = [
        flink_checkpoints.checkpoint_config(settings),
        flink_checkpoints.checkpoint_task(CHECKPOINT, detail, "v"),
        *(shape(vertex, NOW) for vertex in (VERTEX, empty) for shape in (
            flink_vertices.vertex_detail, flink_vertices.back_pressure, flink_vertices.subtask_times,
            flink_vertices.vertex_taskmanagers,
        )),
        flink_vertices.no_accumulators(VERTEX),
        flink_vertices.no_subtask_accumulators(VERTEX),
        flink_cluster.application_detail(detail, NOW),
        flink_cluster.job_config(detail),
        flink_cluster.taskmanager_detail(MANAGER),
        flink_metrics.job_values(detail, NO_CHECKPOINTS, 1),
    ]  # fmt: skip
    assert [nulls(document) for document in documents] == [[] for _ in documents]


def test_mode_and_number_of_checkpoints_have_the_names_of_flink():
    shown = flink_checkpoints.checkpoint_config(JobSettings())
    assert (shown["mode"], shown["max_concurrent"]) == ("exactly_once", 1)
    shown = flink_checkpoints.checkpoint_config(
        JobSettings(checkpoint_mode="at-least-once", max_concurrent_checkpoints=3)
    )
    assert (shown["mode"], shown["max_concurrent"]) == ("at_least_once", 3)


def test_a_checkpoint_by_vertex_and_subtask():
    task = flink_checkpoints.checkpoint_detail(CHECKPOINT, DETAIL)["tasks"]["v"]
    assert (task["num_subtasks"], task["num_acknowledged_subtasks"], task["end_to_end_duration"]) == (3, 2, 22)
    shown = flink_checkpoints.checkpoint_task(CHECKPOINT, DETAIL, "v")
    assert [(s["index"], s["status"]) for s in shown["subtasks"]] == [
        (0, "completed"), (1, "pending_or_failed"), (2, "completed"),
    ]  # fmt: skip
    assert shown["summary"]["end_to_end_duration"]["max"] == 22
    assert flink_checkpoints.find_checkpoint(CHECKPOINTS, 7) is CHECKPOINT


def test_what_was_in_flight_during_the_alignment_is_told_by_checkpoint_vertex_and_subtask():
    (entry,) = flink_json.checkpoints(CHECKPOINTS)["history"]
    task = flink_checkpoints.checkpoint_task(CHECKPOINT, DETAIL, "v")
    for told in (entry, task):
        assert (told["processed_data"], told["alignment_buffered"], told["persisted_data"]) == (200, 14, 0)
    assert task["subtasks"][2]["alignment"] == {"buffered": 7, "processed": 200, "persisted": 0, "duration": 1}
    assert task["summary"]["alignment"]["processed"]["max"] == 200
    assert flink_json.checkpoints(CHECKPOINTS)["summary"]["processed_data"]["max"] == 200
    assert flink_metrics.job_values(DETAIL, CHECKPOINTS, NOW)["lastCheckpointProcessedData"] == 200
    forgotten = msgspec.structs.replace(CHECKPOINT, id=3, status="FAILED")
    longer = msgspec.structs.replace(CHECKPOINTS, latest_failed=forgotten)
    assert flink_checkpoints.find_checkpoint(longer, 3) is forgotten
    with pytest.raises(NotFoundError, match="no checkpoint 8"):
        flink_checkpoints.find_checkpoint(CHECKPOINTS, 8)
    with pytest.raises(NotFoundError, match="no vertex x"):
        flink_checkpoints.checkpoint_task(CHECKPOINT, DETAIL, "x")


def test_a_failure_says_whether_its_version_was_rolled_back():
    own, rejected = ExceptionView(at_ms=9, error="x"), ExceptionView(at_ms=7, error="y", rolled_back_ms=8)
    first, second = flink_json.exceptions((own, rejected))["exceptionHistory"]["entries"]
    assert (first["failureLabels"], first["rolled-back"]) == ({"cause": "transient"}, None)
    assert (second["failureLabels"], second["rolled-back"]) == ({"cause": "transient", "version": "rejected"}, 8)


def test_the_summary_has_rows_and_rates_of_sources_and_sinks_and_their_places():
    mark = {"currentInputWatermark": 7.0}
    rates = {"numRecordsInPerSecond": 30.04, "numRecordsOutPerSecond": 2.0}
    alone = VertexView(
        id="v", name="all", parallelism=2, max_parallelism=8, state="RUNNING",
        operators=(
            OperatorView(uid="in", name="", kind="source", place="topic a at b:9"),
            OperatorView(uid="out", name="", kind="sink", place="/tmp/x"),
        ),
        subtasks=(
            subtask(0, numRecordsIn=40.0, numRecordsOut=4.0, **rates, **mark),
            subtask(1, "FINISHED", numRecordsIn=60.0, numRecordsOut=6.0, **rates, currentInputWatermark=9.0),
        ),
    )  # fmt: skip
    found = flink_json.progress(msgspec.structs.replace(DETAIL, vertices=(alone,)), NO_CHECKPOINTS)
    assert (found["rows-read"], found["rows-written"]) == ({"in": 100}, {"out": 10})
    assert (found["rows-read-per-second"], found["rows-written-per-second"]) == ({"in": 30.0}, {"out": 2.0})
    assert found["places"] == {"in": "topic a at b:9", "out": "/tmp/x"}
    assert found["watermark"] == 7.0
    assert found["running-since"] == 4_000
    carried = {"numRecordsIn": 1_000, "numRecordsOut": 50, "badRecords": 3}
    found = flink_json.progress(
        msgspec.structs.replace(DETAIL, vertices=(msgspec.structs.replace(alone, carried=carried),)), NO_CHECKPOINTS
    )
    assert (found["rows-read"], found["rows-written"]) == ({"in": 1_100}, {"out": 60})
    assert found["bad-records"] == {"in": 3}


@pytest.mark.parametrize(
    ("marks", "idle", "lowest"),
    [
        ((9.0, 7.0), (), 7.0),
        ((9.0, None), (), None),
        ((9.0, None), (1,), 9.0),
        ((9.0, 7.0), (0, 1), 9.0),
        ((None, None), (0, 1), None),
    ],
)
def test_the_watermark_of_the_summary_is_the_lowest_of_subtasks_that_are_not_idle(marks, idle, lowest):
    def metrics(index, mark):
        values = {"currentInputWatermark": -9.223372036854776e15 if mark is None else mark}
        return values | ({"watermarkIdle": 1.0} if index in idle else {})

    subtasks = tuple(subtask(index, **metrics(index, mark)) for index, mark in enumerate(marks))
    vertex = msgspec.structs.replace(VERTEX, subtasks=subtasks)
    found = flink_json.progress(msgspec.structs.replace(DETAIL, vertices=(vertex,)), NO_CHECKPOINTS)
    assert found["watermark"] == lowest


def test_the_summary_has_the_rows_that_no_checkpoint_has_published():
    sink = msgspec.structs.replace(
        VERTEX, operators=(OperatorView(uid="out", name="", kind="sink"),), subtasks=(subtask(0, numRecordsOut=90.0),)
    )
    detail = msgspec.structs.replace(DETAIL, vertices=(sink,))
    found = flink_json.progress(detail, msgspec.structs.replace(NO_CHECKPOINTS, rows_published={"out": 60}))
    assert (found["rows-written"], found["rows-unpublished"]) == ({"out": 90}, {"out": 30})
    assert flink_json.progress(detail, NO_CHECKPOINTS)["rows-unpublished"] == {}


def test_the_summary_has_the_rows_that_sources_have_not_read_where_they_say_so():
    lags = (subtask(0, recordsLag=7.0), subtask(1, recordsLag=5.0), subtask(2, "FAILED", recordsLag=9.0))
    detail = msgspec.structs.replace(DETAIL, vertices=(msgspec.structs.replace(VERTEX, subtasks=lags),))
    assert flink_json.progress(detail, NO_CHECKPOINTS)["rows-unread"] == {"u": 12}
    assert flink_json.progress(DETAIL, NO_CHECKPOINTS)["rows-unread"] == {}


@pytest.mark.parametrize("metrics", [{}, {"recordsLagUnknown": 1.0}, {"recordsLagUnknown": 1.0, "recordsLag": 0.0}])
def test_rows_that_a_source_has_not_read_are_null_until_all_its_subtasks_know_them(metrics):
    subtasks = (subtask(0, recordsLag=7.0, recordsLagUnknown=0.0), subtask(1, **metrics))
    detail = msgspec.structs.replace(DETAIL, vertices=(msgspec.structs.replace(VERTEX, subtasks=subtasks),))
    assert flink_json.progress(detail, NO_CHECKPOINTS)["rows-unread"] == {"u": None}


def test_a_source_of_an_ended_job_is_not_said_to_wait():
    away = msgspec.structs.replace(VERTEX, subtasks=(subtask(0, sourceUnreachableMs=9e3),))
    running = msgspec.structs.replace(DETAIL, vertices=(away,))
    ended = msgspec.structs.replace(running, summary=msgspec.structs.replace(SUMMARY, state="FINISHED", end_ms=9))
    assert list(flink_json.progress(running, NO_CHECKPOINTS)["sources-unreachable"]) == ["u"]
    found = flink_json.progress(ended, NO_CHECKPOINTS)
    assert (found["sources-unreachable"], found["ended"]) == ({}, 9)


def test_the_summary_has_the_subtasks_that_a_checkpoint_waits_for():
    open_ = msgspec.structs.replace(CHECKPOINT, status="IN_PROGRESS", acknowledged=1, total=2, subtasks=PARTS[:1])
    stuck = msgspec.structs.replace(VERTEX, subtasks=(subtask(0), subtask(1, backPressuredTimeMsPerSecond=900.0)))
    checkpoints = msgspec.structs.replace(NO_CHECKPOINTS, in_progress=1, history=(open_, CHECKPOINT))
    found = flink_json.progress(msgspec.structs.replace(DETAIL, vertices=(stuck,)), checkpoints)
    entry = found["checkpoint-in-progress"]
    assert (entry["id"], entry["acknowledged"], entry["total"]) == (CHECKPOINT.id, 1, 2)
    assert entry["since"] == CHECKPOINT.trigger_ms
    assert [(one["subtask"], one["parallelism"], one["back-pressured"]) for one in entry["missing"]] == [(1, 3, True)]
    assert flink_json.progress(DETAIL, CHECKPOINTS)["checkpoint-in-progress"] is None


def test_the_summary_says_how_often_the_jobmanager_was_replaced():
    assert flink_json.progress(DETAIL, NO_CHECKPOINTS)["jobmanagers-replaced"] == {"times": 0, "newest": None}
    taken = msgspec.structs.replace(SUMMARY, takeovers=2, taken_over_ms=4_000)
    told = flink_json.progress(msgspec.structs.replace(DETAIL, summary=taken), NO_CHECKPOINTS)["jobmanagers-replaced"]
    assert told == {"times": 2, "newest": 4_000}


def test_an_upgrade_is_shown_with_its_file_and_its_times():
    view = UpgradeView(request_id="t", phase="trial", run_id="n", back_run_id="b", file="new.py", begun_ms=5)
    shown = upgrade_document(view)
    assert (shown["file"], shown["begun"], shown["ended"]) == ("new.py", 5, None)
    ended = upgrade_document(msgspec.structs.replace(view, phase="rolled-back", ended_ms=9, reason="it failed"))
    assert (ended["phase"], ended["ended"], ended["reason"]) == ("rolled-back", 9, "it failed")
    assert policy_of({"file": "new.py"}).file == "new.py"
    assert [policy_of(query).native for query in ({}, {"native": "true"}, {"native": "false"})] == [True, True, False]


def test_back_pressure_has_flinks_levels():
    shown = flink_vertices.back_pressure(VERTEX, NOW)
    assert [s["backpressure-level"] for s in shown["subtasks"]] == ["ok", "low", "high"]
    assert (shown["backpressureLevel"], shown["subtasks"][0]["busyRatio"]) == ("high", 0.4)


def test_watermarks_are_text_and_flinks_lowest_before_the_first():
    assert [entry["value"] for entry in flink_vertices.watermarks(VERTEX)] == [str(-(1 << 63))] * 2 + ["12"]


def test_subtasks_by_taskmanager():
    first, second = flink_vertices.vertex_taskmanagers(VERTEX, NOW)["taskmanagers"]
    assert (first["taskmanager-id"], first["status-counts"]["FAILED"], first["status"]) == ("other", 1, "FAILED")
    assert (second["status-counts"]["RUNNING"], second["duration"]) == (2, 4_000)


def test_metrics_are_listed_asked_for_and_aggregated():
    values = flink_metrics.vertex_values(VERTEX)
    assert {"id": "1.orders.busyTimeMsPerSecond"} in flink_metrics.metric_query(values, "")
    assert flink_metrics.metric_query(values, "0.numRecordsOut,none") == [{"id": "0.numRecordsOut", "value": "10"}]
    each = [flink_metrics.subtask_values(VERTEX, view) for view in flink_metrics.chosen_subtasks(VERTEX, "0-1")]
    assert flink_metrics.aggregate_query(each, "numRecordsOut", "min,sum") == [
        {"id": "numRecordsOut", "min": 10.0, "sum": 30.0}
    ]
    (whole,) = flink_metrics.aggregate_query(each, "numRecordsOut")
    assert (whole["avg"], round(whole["skew"], 1)) == (15.0, 33.3)
    for call in (
        lambda: flink_metrics.aggregate_query(each, "", "median"),
        lambda: flink_metrics.chosen_subtasks(VERTEX, "1-x"),
        lambda: flink_metrics.chosen_subtasks(VERTEX, "0-999999999"),
    ):
        with pytest.raises(UsageError):
            call()


def test_a_jobs_own_metrics():
    values = flink_metrics.job_values(DETAIL, CHECKPOINTS, NOW)
    assert (values["uptime"], values["numRestarts"], values["lastCheckpointDuration"]) == (1_000, 2, 30)
    ended = msgspec.structs.replace
    over = ended(DETAIL, summary=ended(SUMMARY, state="FINISHED"))
    assert flink_metrics.job_values(over, CHECKPOINTS, NOW)["uptime"] == -1


def test_prometheus_finds_every_process():
    cluster = ClusterView(
        jobmanager_id="jm", generation=1, rpc_address="", taskmanagers=1, slots=2, free_slots=1, jobs=(SUMMARY,)
    )
    silent = msgspec.structs.replace(MANAGER, metrics_address="")
    found = flink_cluster.scrape_targets(cluster, "127.0.0.1:1", [MANAGER, silent], rest_scheme="https")
    assert [(e["targets"], e["labels"]["component"], e["labels"]["__scheme__"]) for e in found] == [
        (["127.0.0.1:1"], "jobmanager", "https"), (["127.0.0.1:9"], "taskmanager", "http"),
    ]  # fmt: skip
    assert flink_metrics.cluster_values(cluster)["numRunningJobs"] == 1


def test_the_last_failed_job_is_in_the_metrics_of_the_cluster():
    def last(*ended):
        jobs = tuple(msgspec.structs.replace(SUMMARY, state=state, end_ms=end_ms) for state, end_ms in ended)
        cluster = ClusterView(
            jobmanager_id="jm", generation=1, rpc_address="", taskmanagers=1, slots=2, free_slots=1, jobs=jobs
        )
        return flink_metrics.cluster_values(cluster)["lastFailedJobTimestamp"]

    assert last(("RUNNING", -1), ("CANCELED", 9)) == -1
    assert last(("FAILED", 5), ("FAILED", 7), ("FINISHED", 9)) == 7


class Jobs:
    """A dispatcher of one job for each of the states."""

    def __init__(self, *states):
        self._jobs = {
            state: msgspec.structs.replace(SUMMARY, job_id=state, name=f"job-{state}", state=state) for state in states
        }

    def jobs(self):
        return tuple(self._jobs.values())

    def cluster(self):
        return ClusterView(
            jobmanager_id="jm", generation=1, rpc_address="", taskmanagers=1, slots=2, free_slots=1, jobs=self.jobs()
        )

    def detail(self, job_id):
        return msgspec.structs.replace(DETAIL, summary=self._jobs[job_id])

    def checkpoints(self, job_id):
        return NO_CHECKPOINTS

    def metrics(self, job_id):
        return {"v/0": {"numRecordsOut": 10.0, "operator/u/busyTimeMsPerSecond": 7.0}}


def test_prometheus_is_told_of_jobs_that_have_not_ended():
    alive, ended = ("CREATED", "RUNNING", "RESTARTING", "FAILING", "CANCELLING"), ("FINISHED", "CANCELED", "FAILED")
    text = render(flink_metrics.MetricCollector(Jobs(*alive, *ended), ManualClock()).samples())
    for scope in ("flink_jobmanager_job_numRestarts", "flink_taskmanager_job_task_numRecordsOut",
                  "flink_taskmanager_job_task_operator_busyTimeMsPerSecond"):  # fmt: skip
        told = {line.split('job_id="')[1].split('"')[0] for line in text.splitlines() if line.startswith(f"{scope}{{")}
        assert told == set(alive), scope
    assert 'flink_jobmanager_numRunningJobs{host="jm"} 5' in text


def test_a_process_knows_what_it_uses():
    clock = ManualClock()
    meter = ProcessMeter(clock)
    values = meter.read()
    assert values["Status.JVM.Memory.Heap.Committed"] > 10 << 20
    assert values["Status.JVM.Threads.Count"] >= 1
    assert values["Status.JVM.CPU.Load"] == 0
    meter._before = (clock.monotonic_ms() - 2_000, meter._cpu_seconds() - 1.0)
    assert meter.read()["Status.JVM.CPU.Load"] == pytest.approx(0.5, abs=0.1)
    assert ProcessMeter(clock, pid=1 << 30).read() == {}


def test_unknown_processes_are_named():
    with pytest.raises(NotFoundError, match="no TaskManager 'x'"):
        flink_cluster.find_taskmanager([MANAGER], "x")
    with pytest.raises(NotFoundError, match="no vertex x"):
        flink_vertices.find_vertex(SimpleNamespace(vertices=(), summary=SUMMARY), "x")
