"""Another version in the place of a running job, simulated: the same rows, or wrong ones nobody may ever see."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import polars as pl
from tests.sim.workload import FAR, Plan

import penstock as ps
from penstock.checkpoint.ha_records import UpgradePolicy
from penstock.graph.rescale import keeping_parallelism
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages import events as ev

if TYPE_CHECKING:
    from tests.sim.world import World


@dataclass
class _Version(Plan):
    """The job with one more step in front of its sink."""

    added: int = 0

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        """What the job computes, and something to it."""
        return super().totals(orders).with_columns(total=pl.col("total") + self.added)


class WrongVersions:
    """Versions of the job with wrong rows. None of them may see the end of the input: it would be kept."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Requests that may not be decided yet -> the leader that was asked.
        self._asked: dict[str, str] = {}

    def asked(self, token: str, leader: str) -> None:
        """Note the request for one."""
        self._asked[token] = leader

    def answered(self, token: str) -> None:
        """Note that a request has failed: it never runs again."""
        self._asked.pop(token, None)

    @property
    def may_run(self) -> bool:
        """Whether one runs, or may run later."""
        return any(self._is_open(token, leader) for token, leader in self._asked.items())

    def _is_open(self, token: str, leader: str) -> bool:
        run = self._world.run
        if run is not None and run.upgrade is not None and run.upgrade.token == token:
            return not run.upgrade.ended
        return not self._world.scheduler.is_dead(leader)  # which alone knows of the request


def upgrade(world: World, *, wrong: bool, from_checkpoint: bool) -> None:
    """The user upgrades the running job; asked again while there is nobody to ask, or something stands against it."""
    if not upgrade_now(world, wrong=wrong, from_checkpoint=from_checkpoint):
        world.scheduler.at(20, "upgrade", lambda: upgrade(world, wrong=wrong, from_checkpoint=from_checkpoint))


def upgrade_now(world: World, *, wrong: bool, from_checkpoint: bool) -> bool:
    """The user upgrades the job; return whether it runs."""
    run, leader = world.run, world.leader
    if run is None or leader is None or leader.master is None or leader.master.step is not Step.RUNNING:
        return False
    if run.upgrade is not None and not run.upgrade.ended:
        return True
    plan = _Version(**{f.name: getattr(world.plan, f.name) for f in fields(Plan)}, added=FAR if wrong else 0)
    name = world.next_name("upgrade")
    policy = UpgradePolicy(
        from_checkpoint=from_checkpoint,
        native=world.native,
        checkpoints=100_000 if wrong else 4,
        max_restarts=100_000,
        deadline_ms=250 if wrong else 60_000,
    )
    uri = "" if from_checkpoint else f"{world.root}/sim/savepoints/{name}"
    graph = plan.graph(run.phase, world.root)
    graph = keeping_parallelism(leader.master.graph, graph, keep="adaptive_scheduler" in world.plan.settings).graph
    request = ev.UpgradeRequested(name, f"{name}-new", f"{name}-back", graph, policy, uri)
    if wrong:
        world.wrong_versions.asked(name, leader.owner)
    world.scheduler.at(0.1, "upgrade", lambda: leader.post(request), owner=leader.owner)
    return True


def strike(world: World) -> bool:
    """The user upgrades the job to a version that is drawn: a wrong one only before the end of the input."""
    wrong = bool(world.unproduced) and world.random.random() < 0.5
    return upgrade_now(world, wrong=wrong, from_checkpoint=world.random.random() < 0.5)
