"""What the autoscaler looks at, logs and does of jobs that want it, and what restarts have cost."""

from types import SimpleNamespace

import msgspec
import pytest

from penstock.config.settings import AutoscalerSettings, JobSettings
from penstock.core.errors import UsageError
from penstock.core.event_log import EventLog
from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex, KeyGroup
from penstock.jobmanager.change.vertex_scaling import RestartCost
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.jobs.autoscaler import Autoscaler
from penstock.jobmanager.jobs.known_jobs import Operations
from penstock.jobmanager.master.worker_reports import OngoingCall

SETTINGS = AutoscalerSettings(
    enabled=True, dry_run=False, metrics_window_ms=4_000, stabilization_interval_ms=2_000, restart_time_ms=1_000
)
GRAPH = JobGraph(
    name="j",
    vertices=(
        JobVertex(id="in", name="in", parallelism=1, operators=()),
        JobVertex(id="work", name="work", parallelism=1, operators=()),
    ),
    edges=(JobEdge(source="in", target="work", partitioner=KeyGroup(columns=("k",)), schema=""),),
    settings=JobSettings(autoscaler=SETTINGS),
)
FAST = {"numRecordsOutPerSecond": 100.0, "busyTimeMsPerSecond": 100.0, "backPressuredTimeMsPerSecond": 500.0}
SLOW = {"numRecordsInPerSecond": 100.0, "busyTimeMsPerSecond": 1000.0, "backPressuredTimeMsPerSecond": 0.0}


class Stage:
    """One job of two vertices, the second of which is at its limit; time goes by in seconds."""

    def __init__(self, settings=SETTINGS, slots=3):
        graph = msgspec.structs.replace(GRAPH, settings=JobSettings(autoscaler=settings))
        self.master = SimpleNamespace(
            status=SimpleNamespace(state=JobStatus.RUNNING, entered_ms={JobStatus.RUNNING: 0}),
            step=Step.RUNNING,
            metrics={"in/0": FAST, "work/0": SLOW},
            slow_call_tracker=SimpleNamespace(ongoing=()),
            checkpointing=SimpleNamespace(history=SimpleNamespace(completed=0), busy="", savepoint_obstacle=""),
            job_change=SimpleNamespace(
                rescaling=SimpleNamespace(phase=None, retry_soon=False), upgrading=SimpleNamespace(phase=None)
            ),
            event_log=EventLog(),
        )
        record = SimpleNamespace(job_id="1", name="j", ended="")
        self.job = SimpleNamespace(record=record, graph=graph, driver=SimpleNamespace(master=self.master))
        self.operations, self.asked, self.refusal = Operations(), [], None
        self.scaler = Autoscaler({"1": self.job}, self.operations, lambda _job: slots, self.rescale)
        self.second = 0

    def rescale(self, _job, to):
        if self.refusal:
            raise UsageError(self.refusal)
        self.asked.append(dict(to.vertices))
        self.operations.begin(f"r{len(self.asked)}", "1")
        return f"r{len(self.asked)}"

    def seconds(self, count):
        for _ in range(count):
            self.second += 1
            self.scaler.sample(self.second * 1000)

    @property
    def log(self):
        return self.scaler.document(self.job)["decisions"]


def end(stage, error=""):
    from penstock.jobmanager.messages.commands import OperationEnded

    stage.operations.end(OperationEnded("r1", error=error), "1")


def test_it_waits_looks_and_widens_what_is_at_its_limit_as_far_as_there_are_slots():
    stage = Stage()
    stage.seconds(4)
    assert [entry["kind"] for entry in stage.log] == ["wait"]
    stage.seconds(4)
    assert stage.asked == [{"work": 3}]
    (decision, _) = stage.log
    assert decision["outcome"] == "under way"
    assert decision["vertices"]["work"] == {
        "name": "work", "parallelism": 1, "wanted": 3, "true-rate": 100.0, "wanted-rate": 200.0, "utilization": 2.0,
    }  # fmt: skip
    assert [entry.kind for entry in stage.master.event_log.entries()] == ["autoscaler"]
    end(stage)
    stage.seconds(1)
    assert stage.log[1]["outcome"] == "done"
    assert len(stage.asked) == 1


@pytest.mark.parametrize("what", ["busy", "savepoint_obstacle"])
def test_what_users_want_of_the_job_comes_first(what):
    stage = Stage()
    setattr(stage.master.checkpointing, what, "a savepoint")
    stage.seconds(30)
    assert stage.asked == []
    setattr(stage.master.checkpointing, what, "")
    stage.seconds(1)
    assert len(stage.asked) == 1


def test_a_dry_run_logs_one_entry_and_asks_for_nothing():
    stage = Stage(msgspec.structs.replace(SETTINGS, dry_run=True))
    stage.seconds(30)
    assert stage.asked == []
    decision = stage.log[0]
    assert (decision["kind"], decision["outcome"]) == ("rescale", "")
    assert decision["until"] - decision["at"] > 10_000
    (told,) = stage.master.event_log.entries()
    assert told.text.startswith("would do: work 1 -> 3")


def test_off_is_off():
    stage = Stage(msgspec.structs.replace(SETTINGS, enabled=False))
    stage.seconds(30)
    assert (stage.asked, stage.log) == ([], [])


@pytest.mark.parametrize("where", ["state", "rescaling", "upgrading", "metrics"])
def test_nothing_is_decided_while_the_job_changes_or_is_not_measured(where):
    stage = Stage()
    if where == "state":
        stage.master.status.state = JobStatus.RESTARTING
    elif where == "metrics":
        del stage.master.metrics["in/0"]
    else:
        getattr(stage.master.job_change, where).phase = object()
    stage.seconds(30)
    assert (stage.asked, stage.log) == ([], [])


@pytest.mark.parametrize(("at", "asked"), [("job.py:3 in f", 0), ("", 1)])
def test_a_function_that_does_not_return_is_not_widened(at, asked):
    stage = Stage()
    stage.master.slow_call_tracker.ongoing = (OngoingCall("operator 'm' (0)", 0, at),)
    stage.seconds(8)
    assert len(stage.asked) == asked


def test_what_failed_or_was_refused_is_not_tried_again_soon():
    failed, refused = Stage(), Stage()
    refused.refusal = "no slots"
    refused.seconds(60)
    failed.seconds(8)
    end(failed, "no slots: two are gone")
    failed.seconds(60)
    assert len(failed.asked) == 1
    assert [entry["outcome"] for entry in failed.log if entry["kind"] == "rescale"] == ["no slots: two are gone"]
    assert [entry["outcome"] for entry in refused.log if entry["kind"] == "rescale"] == ["no slots"]
    assert {failed.log[0]["kind"], refused.log[0]["kind"]} == {"wait"}


@pytest.mark.parametrize(("retry_soon", "asked"), [(True, 2), (False, 1)])
def test_what_was_refused_for_something_that_passes_is_tried_again_soon(retry_soon, asked):
    stage = Stage()
    stage.seconds(8)
    stage.master.job_change.rescaling.retry_soon = retry_soon
    end(stage, "a savepoint is being written")
    stage.seconds(60)
    assert len(stage.asked) == asked


def test_no_slots_to_be_had_leave_it_as_it_is():
    stage = Stage(slots=1)
    stage.seconds(30)
    assert stage.asked == []
    assert stage.log[0]["kind"] == "keep"


@pytest.mark.parametrize("figure", [float("inf"), float("nan"), 1e300])
def test_figures_beyond_belief_are_left_out(figure):
    stage = Stage()
    stage.master.metrics["in/0"] = FAST | {"recordsLag": figure}
    stage.seconds(8)
    assert stage.asked == [{"work": 3}], "as without a lag"


def test_a_job_that_cannot_be_looked_at_leaves_the_others_be(caplog):
    broken, stage = Stage(msgspec.structs.replace(SETTINGS, target_utilization=0.0)), Stage()
    broken.job.record.job_id = "0"
    both = Autoscaler({"0": broken.job, "1": stage.job}, stage.operations, lambda _job: 3, stage.rescale)
    for second in range(60):
        both.sample(second * 1000)
    assert stage.asked == [{"work": 3}]
    assert "ZeroDivisionError" in caplog.text
    assert caplog.text.count("the autoscaler failed on job 0") == 1, "it is not tried again at once"
    assert both.document(broken.job)["decisions"][0]["text"] == "pausing after the last change failed"


def test_a_rescale_that_nobody_knows_any_more_is_not_waited_for():
    stage = Stage()
    stage.seconds(8)
    for n in range(1001):
        stage.operations.begin(f"other {n}", "2")
    stage.seconds(1)
    assert stage.log[1]["outcome"].startswith("unknown: the request was evicted")
    stage.seconds(30)
    assert len(stage.asked) == 2


def test_a_restart_between_two_looks_is_seen():
    cost = RestartCost(9_000)
    for at, since, done in ((1_000, 900, 1), (2_000, 900, 2), (3_000, 2_600, 3)):
        cost.sample(at, running_since_ms=since, checkpoints=done, periodic=True)
    assert cost.pending
    cost.sample(4_000, running_since_ms=2_600, checkpoints=4, periodic=True)
    assert (cost.cost_ms, cost.measured) == (2_000, 1)


def test_a_restart_costs_until_its_first_checkpoint():
    cost = RestartCost(9_000)
    sample = lambda at, since, done, periodic=True: cost.sample(
        at, running_since_ms=since, checkpoints=done, periodic=periodic
    )
    sample(0, None, 0)
    sample(1_000, 900, 1)
    assert (cost.cost_ms, cost.measured) == (9_000, 0), "the first start is no restart"
    sample(5_000, None, 4)
    sample(6_000, None, 4)
    sample(7_000, 6_500, 4)
    assert cost.pending
    sample(8_000, 6_500, 5)
    assert (cost.cost_ms, cost.measured, cost.pending) == (3_000, 1, False)
    sample(20_000, None, 5, periodic=False)
    sample(22_000, 21_000, 5, periodic=False)
    assert (cost.cost_ms, cost.measured) == (2_000, 2)
