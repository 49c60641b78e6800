"""The election of the JobManager that leads: standbys that watch the lease, over the simulated store.

A `Candidate` is one process: it does what `jobmanager.leadership` does, with the engine's `LeaseWatch`, `take_lead` and
`write_lease`, until it leads (`tests.sim.leader`) or is killed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import leader_lease
from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import LeaderLease, LeaseWatch
from penstock.checkpoint.leader_probes import PROBE_TICKS
from penstock.core.errors import LeadershipLostError

if TYPE_CHECKING:
    from tests.sim.leader import Leader
    from tests.sim.world import World

TTL_MS = 90
#: Leaders are replaced often: few answer for a lifetime.
_LEAST_ANSWERS = 1


class Candidate:
    """One standby."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.owner = f"jm:{number}"
        holder = LeaseHolder(id="sim", host="sim", machine="", pid=number)
        self._mine = LeaderLease(generation=0, jobmanager_id=self.owner, holder=holder, ttl_ms=TTL_MS)
        self._watch = LeaseWatch(TTL_MS, _LEAST_ANSWERS)
        #: The leader to probe, as its lease names it; the question without an answer; asked since the last answer.
        self._leader = ""
        self._asked_ms: float | None = None
        self._look_later()
        if world.plan.probes:
            self._tick()

    def _look_later(self) -> None:
        def read() -> tuple[float, LeaderLease | None]:
            return self.world.clock.monotonic_ms(), leader_lease.read_lease(self.world.store)

        chance, tick_ms = self.world.random, self._watch.probes.tick_ms
        pause_ms = chance.uniform(TTL_MS / 12, TTL_MS / 6)
        if self._watch.suspects(self.world.clock.monotonic_ms()):
            pause_ms = chance.uniform(0.5, 1.5) * tick_ms
        self.world.spawn(self.owner, "look", read, self._seen, pause_ms)

    def _tick(self) -> None:
        """Probe the leader, one question at a time; one without an answer for a lifetime is given up."""
        if self.owner not in self.world.standbys and self.world.leader_owner == self.owner:
            return
        now_ms, tick_ms = self.world.clock.monotonic_ms(), self._watch.probes.tick_ms
        self._watch.probes.ticked(now_ms)
        if self._leader and (self._asked_ms is None or now_ms - self._asked_ms >= TTL_MS):
            self._asked_ms = now_ms
            self.world.checks.asked(self.owner, self._leader)
            self.world.probe(self._leader, partial(self._answered, self._leader, now_ms), self.owner)
        pause_ms = tick_ms * self.world.random.uniform(1, PROBE_TICKS)
        self.world.scheduler.at(pause_ms, "tick", self._tick, owner=self.owner)

    def _answered(self, leader: str, asked_ms: float, lead: tuple[int, int], age_ms: float) -> None:
        """A late answer to a question that was given up counts as well as any."""
        now_ms = self.world.clock.monotonic_ms()
        self._watch.probes.answered(lead, age_ms, asked_ms, now_ms)
        self.world.checks.answered(self.owner, leader, lead[0])
        if self._asked_ms == asked_ms:
            self._asked_ms = None

    def _seen(self, result: tuple[float, LeaderLease | None] | None, error: BaseException | None) -> None:
        if error is not None or result is None:
            self._look_later()
            return
        asked_ms, lease = result
        self._leader = "" if lease is None else lease.jobmanager_id
        exited = lease is not None and self.world.exit_is_known(f"jm:{lease.holder.pid}")
        if not self._watch.lapsed(lease, asked_ms, self.world.clock.monotonic_ms(), exited=exited):
            self._look_later()
            return
        if not exited and lease is not None and not lease.released and lease.generation >= self._watch.taken:
            self.world.checks.lapsed(self.owner, lease, asked_ms)
        lead = lambda: leader_lease.take_lead(self.world.store, self._mine, self._watch.above)
        self.world.spawn(self.owner, "take the lead", lead, self._taken, 0.1)

    def _taken(self, result: tuple[LeaderLease | None, int] | None, error: BaseException | None) -> None:
        if error is not None or result is None:
            self._look_later()
            return
        held, newest = result
        if held is None:
            self._watch.lost(newest, self.world.clock.monotonic_ms())
            self._look_later()
        else:
            self.world.elected(self, held)


def keep_lease(world: World, leader: Leader, held: LeaderLease) -> None:
    """Renew the lease of a leader until it is lost."""

    world.leads[leader.owner] = held, world.clock.elapsed_ms

    def renewed(wanted: LeaderLease, _result: Any, error: BaseException | None) -> None:
        if isinstance(error, LeadershipLostError):
            world.stepped_down(leader)
        else:
            keep_lease(world, leader, held if error is not None else wanted)

    wanted = leader_lease.renewed(held)
    world.spawn(
        leader.owner, "renew the lead", lambda: leader_lease.write_lease(world.store, wanted),
        partial(renewed, wanted), TTL_MS / 3,
    )  # fmt: skip
