"""Questions: what an answer of the REST API means to a task that waits."""

import pytest

from penstock.core.errors import NotFoundError
from penstock_airflow.conditions import (
    CheckpointAfter,
    InState,
    LagAtMost,
    Operation,
    Started,
    WatermarkAt,
    decoded,
    encoded,
)


class Cluster:
    """A REST client that shows one job."""

    def __init__(self, state="RUNNING", **facts):
        self.state, self.facts = state, {"completed": 0, "interval": 1000, "ran_ms": 0, **facts}

    def job(self, job_id):
        times = {"RUNNING": 5_000}
        return {
            "jid": job_id,
            "name": "n",
            "state": self.state,
            "now": 5_000 + self.facts["ran_ms"],
            "timestamps": times,
        }

    def summary(self, job_id):
        facts = self.facts
        shown = {"checkpoints-completed": facts["completed"], "checkpoint-interval": facts["interval"]}
        return {**shown, "watermark": facts.get("watermark"), "rows-unread": facts.get("unread", {})}

    def checkpoints(self, job_id):
        return {"latest": {"completed": self.facts.get("checkpoint"), "savepoint": self.facts.get("savepoint")}}

    def exceptions(self, job_id):
        newest = {"failureLabels": {"cause": self.facts.get("cause", "transient")}}
        return {
            "root-exception": "Traceback\n  File x\nValueError: why\n",
            "exceptionHistory": {"entries": [newest, {"failureLabels": {"cause": "permanent"}}]},
        }

    def savepoint_status(self, job_id, request_id):
        if self.facts["operation"] is None:
            raise NotFoundError("no request")
        done = self.facts["operation"] != {}
        return {"status": {"id": "COMPLETED" if done else "IN_PROGRESS"}, "operation": self.facts["operation"] or None}

    rescaling_status = upgrade_status = savepoint_status

    def newest_upgrade(self, job_id):
        done, restarts = {"completed": 2, "wanted": 5}, {"seen": 1, "allowed": 3}
        return {"phase": "trial", "checkpoints": done, "restarts": restarts, "held": {"rows": 40}}


STARTED = Started("j", 10_000)
TAKEN = {"id": 3, "external_path": "p", "trigger_timestamp": 70, "end_to_end_duration": 1, "state_size": 2}


@pytest.mark.parametrize(
    ("question", "cluster", "kind"),
    [
        (STARTED, Cluster(completed=1), "done"),
        (STARTED, Cluster(), "wait"),
        (STARTED, Cluster(ran_ms=60_000), "wait"),
        (STARTED, Cluster(interval=None, ran_ms=9_999), "wait"),
        (STARTED, Cluster(interval=None, ran_ms=10_000), "done"),
        (STARTED, Cluster("RESTARTING", completed=4), "wait"),
        (STARTED, Cluster("SUSPENDED", completed=4), "wait"),
        (InState("j", ("RUNNING",)), Cluster("SUSPENDED"), "wait"),
        (CheckpointAfter("j", 90), Cluster("SUSPENDED", checkpoint=TAKEN), "wait"),
        (WatermarkAt("j", 9), Cluster("SUSPENDED"), "wait"),
        (LagAtMost("j", 9), Cluster("SUSPENDED"), "wait"),
        (Operation("j", "r", "stop"), Cluster("SUSPENDED", operation={"location": "s"}), "wait"),
        (STARTED, Cluster("FINISHED"), "done"),
        (STARTED, Cluster("FAILED"), "failed"),
        (STARTED, Cluster("CANCELED"), "failed"),
        (Operation("j", "r", "savepoint"), Cluster(operation={}), "wait"),
        (Operation("j", "r", "savepoint"), Cluster(operation={"location": "s"}), "done"),
        (Operation("j", "r", "stop"), Cluster(operation={"location": "s"}), "wait"),
        (Operation("j", "r", "stop"), Cluster("FINISHED", operation={"location": "s"}), "done"),
        (Operation("j", "r", "stop"), Cluster(operation={"failure-cause": {"stack-trace": "x"}}), "failed"),
        (Operation("j", "r", "rescale"), Cluster(operation={"location": ""}), "done"),
        (Operation("j", "r", "rescale"), Cluster(operation=None), "lost"),
        (Operation("j", "r", "upgrade"), Cluster(operation={"location": "s"}), "done"),
        (Operation("j", "r", "upgrade"), Cluster(operation=None), "lost"),
        (InState("j", ("CANCELED",)), Cluster(), "wait"),
        (InState("j", ("CANCELED",)), Cluster("CANCELED"), "done"),
        (InState("j", ("CANCELED",)), Cluster("FINISHED"), "failed"),
        (CheckpointAfter("j", 71), Cluster(), "wait"),
        (CheckpointAfter("j", 71), Cluster(checkpoint=TAKEN), "wait"),
        (CheckpointAfter("j", 70), Cluster(checkpoint=TAKEN), "done"),
        (CheckpointAfter("j", 70, "savepoint"), Cluster(checkpoint=TAKEN), "wait"),
        (CheckpointAfter("j", 70), Cluster("FINISHED"), "failed"),
        (WatermarkAt("j", 1_000), Cluster(watermark=999), "wait"),
        (WatermarkAt("j", 1_000), Cluster(watermark=1_000), "done"),
        (WatermarkAt("j", 1_000), Cluster("FINISHED"), "done"),
        (WatermarkAt("j", 1_000), Cluster("CANCELED"), "failed"),
        (LagAtMost("j", 10), Cluster(unread={"a": 6, "b": 5}), "wait"),
        (LagAtMost("j", 11), Cluster(unread={"a": 6, "b": 5}), "done"),
        (LagAtMost("j", 11), Cluster(unread={"a": 6, "b": None}), "wait"),
        (LagAtMost("j", 11), Cluster(unread={}), "wait"),
        (LagAtMost("j", 0), Cluster("FINISHED"), "done"),
    ],
)
def test_answers(question, cluster, kind):
    answer = decoded(encoded(question)).ask(cluster)
    assert answer.kind == kind, answer
    assert answer.value if kind == "done" else answer.text


@pytest.mark.parametrize(("cause", "final"), [("transient", False), ("permanent", True), ("user code", True)])
def test_a_job_that_would_fail_again_is_a_final_answer(cause, final):
    assert STARTED.ask(Cluster("FAILED", cause=cause)).final is final


@pytest.mark.parametrize("found", [False, True])
def test_a_canceled_job_does_not_start_again_unless_the_end_of_an_earlier_try_has_canceled_it(found):
    answer = Started("j", 10_000, found).ask(Cluster("CANCELED"))
    assert (answer.kind, answer.final) == ("failed", not found)


def test_a_failed_job_is_told_with_the_last_line_of_its_cause():
    assert STARTED.ask(Cluster("FAILED")).text == "job 'n' (j) is FAILED: ValueError: why"


def test_an_upgrade_tells_how_far_it_is_and_why_it_failed_in_one_line():
    asked = Operation("j", "r", "upgrade")
    assert (
        asked.ask(Cluster(operation={})).text == "trial: 2 of 5 checkpoints, restarts: 1 of 3 allowed, 40 rows withheld"
    )
    answer = asked.ask(
        Cluster(operation={"failure-cause": {"stack-trace": "the old version is running again:\n  why\n"}})
    )
    assert (answer.kind, answer.text) == ("failed", "upgrade failed: the old version is running again: why")


@pytest.mark.parametrize(
    ("state", "text", "final"),
    [
        ("RUNNING", "stop failed: not now", False),
        ("RESTARTING", "stop failed: not now; the job is RESTARTING: ValueError: why", False),
        ("FAILED", "stop failed: not now; the job is FAILED: ValueError: why", True),
        ("CANCELED", "stop failed: not now", True),
    ],
)
def test_a_request_that_a_job_does_not_take_is_told_with_the_jobs_failure(state, text, final):
    cluster = Cluster(state, operation={"failure-cause": {"stack-trace": "not now"}})
    answer = Operation("j", "r", "stop").ask(cluster)
    assert (answer.kind, answer.text, answer.final) == ("failed", text, final)
