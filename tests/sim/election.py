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
from penstock.core.errors import LeadershipLostError

if TYPE_CHECKING:
    from tests.sim.leader import Leader
    from tests.sim.world import World

TTL_MS = 90


class Candidate:
    """One standby."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.owner = f"jm:{number}"
        holder = LeaseHolder(id="sim", host="sim", machine="", pid=number)
        self._mine = LeaderLease(generation=0, jobmanager_id=self.owner, holder=holder, ttl_ms=TTL_MS)
        self._watch = LeaseWatch(TTL_MS)
        self._look_later()

    def _look_later(self) -> None:
        def read() -> tuple[float, LeaderLease | None]:
            return self.world.clock.monotonic_ms(), leader_lease.read_lease(self.world.store)

        self.world.spawn(self.owner, "look", read, self._seen, self.world.random.uniform(TTL_MS / 12, TTL_MS / 6))

    def _seen(self, result: tuple[float, LeaderLease | None] | None, error: BaseException | None) -> None:
        if error is not None or result is None:
            self._look_later()
            return
        asked_ms, lease = result
        exited = lease is not None and self.world.exit_is_known(f"jm:{lease.holder.pid}")
        if not self._watch.lapsed(lease, asked_ms, self.world.clock.monotonic_ms(), exited=exited):
            self._look_later()
            return
        if not exited and lease is not None and not lease.released and lease.generation >= self._watch.taken:
            self.world.checks.lapsed(lease, asked_ms, TTL_MS)
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
