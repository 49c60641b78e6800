"""Another version in the place of a running job, simulated: the same rows, or wrong ones nobody may ever see."""

from __future__ import annotations

from dataclasses import dataclass, fields

import polars as pl
from tests.sim.workload import Plan
from tests.sim.world import World

import penstock as ps
from penstock.checkpoint.ha_records import UpgradePolicy
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages import events as ev

#: More than any wrong sum could be by chance.
_FAR = 1_000_000


@dataclass
class _Version(Plan):
    """The job with one more step in front of its sink."""

    added: int = 0

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        """What the job computes, and something to it."""
        return super().totals(orders).with_columns(total=pl.col("total") + self.added)


def upgrade(world: World, *, wrong: bool, from_checkpoint: bool) -> None:
    """The user upgrades the running job; asked again while there is nobody to ask, or something stands against it."""
    run, leader = world.run, world.leader

    def again() -> None:
        world.scheduler.at(20, "upgrade", lambda: upgrade(world, wrong=wrong, from_checkpoint=from_checkpoint))

    if run is None or leader is None or leader.master is None or leader.master.step is not Step.RUNNING:
        again()
        return
    if run.upgrade is not None and not run.upgrade.ended:
        return
    plan = _Version(**{f.name: getattr(world.plan, f.name) for f in fields(Plan)}, added=_FAR if wrong else 0)
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
    request = ev.UpgradeRequested(name, f"{name}-new", f"{name}-back", graph, policy, uri)
    world.scheduler.at(0.1, "upgrade", lambda: leader.post(request), owner=leader.owner)
