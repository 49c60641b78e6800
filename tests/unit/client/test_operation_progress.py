"""Lines about a stop or savepoint that lasts, and the error when the time to wait for it is over."""

import pytest

from penstock.client.handle import JobHandle
from penstock.client.operation_progress import OperationProgress, cancelling_text, request_lines, waiting_text
from penstock.core.clock import ManualClock
from penstock.core.errors import UnansweredError

MISSING = [
    {"name": "orders", "subtask": 0, "parallelism": 2, "back-pressured": False},
    {"name": "out", "subtask": 1, "parallelism": 2, "back-pressured": True},
]
STOP = {"id": 12, "kind": "stop", "acknowledged": 2, "total": 4, "missing": MISSING}
CALL = {"what": "S3 at 127.0.0.1:9000: put data/1", "since": 0}


def summary(entry=STOP, state="RUNNING", calls=()):
    return {"state": state, "checkpoint-in-progress": entry, "sources-unreachable": {}, "slow-calls": list(calls)}


def test_a_line_has_the_subtasks_that_are_missing_and_what_they_wait_for():
    acknowledged = "waiting for stop, checkpoint 12: 2 of 4 subtasks acknowledged; missing: "
    assert waiting_text(summary()) == acknowledged + "orders 1/2, out 2/2 (back-pressured)"
    assert waiting_text(summary(calls=[CALL])).endswith(
        "(back-pressured); slow call since 1970-01-01 00:00:00 UTC: " + CALL["what"]
    )
    assert waiting_text(summary({**STOP, "missing": MISSING * 3})).endswith("out 2/2 (back-pressured) and 2 more")
    done = {**STOP, "kind": "checkpoint", "acknowledged": 4, "missing": []}
    assert waiting_text(summary(done)) == (
        "waiting for checkpoint 12: 4 of 4 subtasks acknowledged; its manifest is not written yet"
    )
    assert (
        waiting_text(summary(None, "RESTARTING")) == "waiting for the next checkpoint of the job, which is RESTARTING"
    )


def test_a_complete_checkpoint_waits_for_the_sinks_and_then_for_its_copy():
    ended = {**summary(None), "rows-unpublished": {"out": 1_200}}
    stop = {"what": "stop", "since": 0, "phase": "publish"}
    assert waiting_text({**ended, "open-requests": [stop]}) == (
        "its checkpoint is complete; waiting for the sinks to publish: 1,200 rows of out left"
    )
    assert waiting_text({**ended, "open-requests": [{**stop, "phase": "copy"}]}) == (
        "its checkpoint is complete; waiting for the copy of it in the savepoint's folder"
    )


def test_open_requests_are_named_with_their_time_and_the_first_with_its_reason():
    asked = [{"what": what, "since": 0, "phase": "checkpoint"} for what in ("savepoint", "stop")]
    assert request_lines(summary()) == []
    first, second = request_lines({**summary(), "open-requests": asked})
    begin = "savepoint requested at 1970-01-01 00:00:00 UTC is not complete: waiting for stop, checkpoint 12: 2 of 4"
    assert first.startswith(begin)
    assert second == "stop requested at 1970-01-01 00:00:00 UTC is not complete"


def test_a_cancelled_job_waits_for_its_workers():
    assert cancelling_text(summary(), 1) == "waiting for 1 worker to end; they are killed after 10 s"
    slow = f"slow call since 1970-01-01 00:00:00 UTC: {CALL['what']}"
    assert cancelling_text(summary(calls=[CALL]), 2).endswith(slow)


class Waits:
    """A cluster whose job stops never."""

    url = "http://127.0.0.1:1"

    def __init__(self):
        self.asked, self.summaries = [], iter([summary(), summary(), summary(calls=[CALL])])

    def stop(self, job_id, *, drain, target, token, native):
        self.asked.append(token)

    def savepoint_status(self, job_id, request_id):
        return {"status": {"id": "IN_PROGRESS"}}

    def summary(self, job_id):
        return next(self.summaries, summary(calls=[CALL]))


def test_a_stop_that_lasts_prints_each_change_and_tells_in_the_end_that_it_goes_on():
    clock, said = ManualClock(), []
    job = JobHandle(Waits(), "1", "live", clock)
    with pytest.raises(UnansweredError) as raised:
        job.stop(
            timeout_ms=50_000, progress=OperationProgress(lambda text: said.append((clock.monotonic_ms(), text)), clock)
        )
    first, last = waiting_text(summary()), waiting_text(summary(calls=[CALL]))
    assert [text for _, text in said[:2]] == [first, last]
    assert said[0][0] >= 2_000
    ((repeated_ms, repeated),) = said[2:]
    assert repeated_ms - said[1][0] <= 31_000
    assert repeated == f"after {repeated_ms / 1000:.0f} s still {last}"
    assert raised.value.message.startswith(
        "the stop of live is still under way after 50 s: waiting for stop, checkpoint 12"
    )
    assert raised.value.hint == (
        "it continues: `penstock show live` shows it, `penstock cancel live` ends the job without a savepoint"
    )
