"""What is done to a job when a user ends the task that waits for it."""

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import NotFoundError, UsageError
from penstock_airflow.kill_actions import Cancel, CancelSubmitted, RollBackUpgrade, decoded, encoded


class Cluster:
    """A REST client that does what was asked for after some looks."""

    def __init__(self, clock, *, after=0, phase="cut", request_id="mine"):
        self.clock, self.after, self.phase, self.request_id, self.did = clock, after, phase, request_id, []

    def _early(self):
        self.after -= 1
        self.clock.advance(1_000)
        return self.after >= 0

    def cancel(self, job_id):
        self.did.append(("cancel", job_id))

    def submitted(self, token):
        if self._early():
            raise NotFoundError("no job")
        return f"job-of-{token}"

    def newest_upgrade(self, _job_id):
        return {"request-id": self.request_id, "phase": self.phase}

    def judge_upgrade(self, job_id, *, healthy):
        if self._early():
            raise UsageError("none is on trial")
        self.did.append(("judge", job_id, healthy))


class Clock(ManualClock):
    def sleep_ms(self, duration_ms):
        self.advance(duration_ms)


@pytest.fixture
def clock():
    return Clock(0)


@pytest.mark.parametrize("deed", [None, Cancel("j"), CancelSubmitted("t"), RollBackUpgrade("j", "r")])
def test_travels_as_json(deed):
    assert decoded(encoded(deed)) == deed


def test_cancelled_at_once(clock):
    cluster = Cluster(clock)
    Cancel("j").do(cluster, clock, 0)
    assert cluster.did == [("cancel", "j")]


@pytest.mark.parametrize(("after", "did"), [(0, 1), (2, 1), (9, 0)])
def test_a_job_that_is_on_its_way_is_waited_for_a_little(clock, after, did):
    cluster = Cluster(clock, after=after)
    CancelSubmitted("t").do(cluster, clock, 3_000)
    assert cluster.did == [("cancel", "job-of-t")] * did


def test_an_upgrade_is_taken_back_as_soon_as_it_is_on_trial(clock):
    cluster = Cluster(clock, after=2)
    RollBackUpgrade("j", "mine").do(cluster, clock, 60_000)
    assert cluster.did == [("judge", "j", False)]


@pytest.mark.parametrize("end", [{"phase": "completed"}, {"phase": "rolled-back"}, {"request_id": "another's"}])
def test_nothing_is_done_to_an_upgrade_that_has_ended_or_is_anothers(clock, end):
    cluster = Cluster(clock, **end)
    RollBackUpgrade("j", "mine").do(cluster, clock, 60_000)
    assert cluster.did == []


def test_one_that_is_never_on_trial_is_told(clock):
    with pytest.raises(UsageError):
        RollBackUpgrade("j", "mine").do(Cluster(clock, after=99), clock, 3_000)
