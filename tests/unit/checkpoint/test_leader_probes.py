"""When a standby takes over early: the leader answers no probe any longer, and a renewal of its lease is late."""

import pytest

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import LeaderLease, LeaseWatch
from penstock.checkpoint.leader_probes import PROBE_TICKS

#: A tick is 10 ms, a renewal is due after 80 ms and late after 10 more, silence lasts 50 ms.
TTL_MS = 240
TICK_MS = 10


class Standby:
    """One standby, which reads the lease in 1 ms; each step is a tick. It has heard the leader for a lifetime."""

    def __init__(self, rtt_ms=1.0, heard=12):
        self.watch, self.now_ms, self.rtt_ms = LeaseWatch(TTL_MS), 0.0, rtt_ms
        self.renewals, self.renewed_ms = 1, 0.0
        for _ in range(heard):
            self.probe()

    def lease(self):
        holder = LeaseHolder(id="root", host="a", machine="", pid=1)
        return LeaderLease(
            generation=1, jobmanager_id="a", holder=holder, ttl_ms=TTL_MS, rpc="a:1", renewals=self.renewals
        )

    def probe(self):
        age_ms = self.now_ms - self.rtt_ms - self.renewed_ms
        self.watch.probes.answered((1, self.renewals), age_ms, self.now_ms - self.rtt_ms, self.now_ms)

    def step(self, *, answers=False, renews=False):
        """Return whether this standby takes over."""
        self.now_ms += TICK_MS
        self.watch.probes.ticked(self.now_ms)
        if renews and self.now_ms - self.renewed_ms >= TTL_MS / 3:
            self.renewals, self.renewed_ms = self.renewals + 1, self.now_ms
        if answers and self.now_ms / TICK_MS % PROBE_TICKS == 0:
            self.probe()
        return self.watch.lapsed(self.lease(), self.now_ms, self.now_ms + 1, exited=False)

    def steps(self, count, **leader):
        """Return after how many steps this standby takes over; None: not in so many."""
        return next((number for number in range(1, count + 1) if self.step(**leader)), None)


def test_a_leader_that_answers_and_renews_is_kept():
    assert Standby().steps(500, answers=True, renews=True) is None


def test_a_leader_that_stops_is_replaced_when_its_next_renewal_is_late():
    standby = Standby()
    assert standby.steps(33, answers=True, renews=True) is None  # the last renewal at 320 ms, an answer at 320 ms
    assert standby.steps(100) == 9, "at 420 ms: 80 ms and 10 ms after the renewal was seen"


def test_silence_lasts_even_if_the_renewal_is_late_first():
    standby = Standby()
    standby.steps(40, answers=True, renews=True)
    standby.renewals, standby.renewed_ms = standby.renewals + 1, standby.now_ms
    standby.steps(8, answers=True)
    assert standby.steps(100) == 5, "50 ms after the last answer"


def test_the_lease_is_read_when_the_standby_may_take_over():
    standby = Standby()
    standby.steps(33, answers=True, renews=True)
    assert not standby.watch.suspects(standby.now_ms)
    standby.steps(8)
    assert standby.watch.suspects(standby.now_ms)
    assert standby.watch.pause_ms(standby.now_ms) == pytest.approx(1.0), "at 411 ms, not at 420 ms"


def test_a_path_that_breaks_changes_no_leader():
    standby = Standby()
    assert standby.steps(40, answers=True, renews=True) is None
    assert standby.steps(1_000, renews=True) is None
    assert not standby.watch.suspects(standby.now_ms), "the lease is read at the usual pace"
    assert standby.steps(100) == 25, "the whole lifetime decides from there"


def test_a_path_that_is_repaired_counts_again():
    standby = Standby()
    standby.steps(40, answers=True, renews=True)
    standby.steps(40, renews=True)
    standby.steps(40, answers=True, renews=True)
    assert standby.steps(100) < 11


def test_a_store_that_fails_changes_no_leader_that_answers_within_the_lifetime():
    standby = Standby()
    standby.steps(40, answers=True, renews=True)
    assert standby.steps(100, answers=True) == 25


def test_a_leader_that_has_never_answered_has_the_lifetime():
    assert Standby(heard=0).steps(100) == 26


def test_a_leader_that_has_answered_for_a_short_time_has_the_lifetime():
    """How slow it can be is not known yet."""
    standby = Standby(heard=0)
    standby.steps(17, answers=True, renews=True)
    assert standby.steps(100) == 24


def test_an_answer_of_an_earlier_generation_proves_nothing():
    standby = Standby()
    standby.steps(8, answers=True, renews=True)
    standby.watch.probes.answered((0, 7), 1.0, standby.now_ms - 1, standby.now_ms)
    assert standby.steps(100) >= 22


@pytest.mark.parametrize(("rtt_ms", "steps"), [(1.0, 9), (20.0, 9), (40.0, 17)])
def test_a_leader_that_was_slow_has_longer(rtt_ms, steps):
    standby = Standby(rtt_ms)
    standby.steps(33, answers=True, renews=True)
    assert standby.steps(100) == steps


def test_slow_reads_of_the_lease_delay():
    standby = Standby()
    standby.steps(33, answers=True, renews=True)
    standby.watch._took_ms.append(20.0)
    assert standby.steps(100) == 14, "60 ms late, not 10"


def test_a_standby_that_was_suspended_counts_from_its_end():
    """Nothing was read meanwhile: the leader answers the next probe, though its renewal is late."""
    standby = Standby()
    standby.steps(33, answers=True, renews=True)
    standby.now_ms += 200
    assert not standby.watch.probes.silent(1, standby.now_ms), "before the first tick"
    assert standby.steps(1) is None
    assert standby.steps(3, answers=True) == 3, "the lifetime has passed in any case"
    standby = Standby()
    standby.steps(33, answers=True, renews=True)
    standby.now_ms += 100
    assert standby.steps(4) is None, "silence of 40 ms, and the renewal is 50 ms late"
    assert standby.steps(4, answers=True) is None


def test_an_overloaded_standby_never_takes_over_early():
    standby = Standby()
    standby.steps(33, answers=True, renews=True)
    taken = []
    for _ in range(10):
        standby.now_ms += 2 * TICK_MS  # with the step's own: a tick each 30 ms
        taken.append(standby.step())
    assert taken.index(True) * 3 * TICK_MS >= TTL_MS - 90


def test_a_generation_that_another_standby_takes_is_not_taken_early():
    standby = Standby()
    standby.steps(33, answers=True, renews=True)
    standby.watch.lost(2, standby.now_ms)
    assert standby.steps(100) >= 24
