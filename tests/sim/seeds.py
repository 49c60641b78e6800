"""From a seed to a simulated history."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from tests.sim.faults import Swarm
from tests.sim.runs import Result
from tests.sim.workload import Plan
from tests.sim.world import World

#: Seeds that once failed; they are run for ever.
KNOWN = Path(__file__).with_name("seeds.txt")


def world_of(seed: int) -> World:
    """The world of a seed, not run yet."""
    plan = Plan.drawn(random.Random(f"plan {seed}"))
    plan.draw_state(random.Random(f"state {seed}"))
    plan.draw_barriers(random.Random(f"barriers {seed}"))
    plan.draw_fetches(random.Random(f"fetches {seed}"))
    plan.draw_regions(random.Random(f"regions {seed}"))
    plan.draw_checkpoints(random.Random(f"checkpoints {seed}"))
    plan.draw_scheduler(random.Random(f"scheduler {seed}"))
    plan.draw_copies(random.Random(f"copies {seed}"))
    plan.draw_preparation(random.Random(f"preparation {seed}"))
    plan.draw_probes(random.Random(f"probes {seed}"))
    plan.draw_exits(random.Random(f"exits {seed}"))
    plan.draw_spread(random.Random(f"spread {seed}"))
    swarm = Swarm.drawn(random.Random(f"faults {seed}"))
    swarm.damage_copies(random.Random(f"damaged copies {seed}"))
    swarm.refuse_slots(random.Random(f"refused slots {seed}"))
    if "adaptive_scheduler" not in plan.settings:  # its parallelism follows the slots
        swarm.rescale(random.Random(f"rescales {seed}"))
    swarm.upgrade(random.Random(f"upgrades {seed}"))
    swarm.request_checkpoints(random.Random(f"requests {seed}"))
    swarm.hand_over(random.Random(f"hand-overs {seed}"))
    if plan.probes:
        swarm.break_paths(random.Random(f"paths {seed}"))
    return World(seed, plan, swarm)


def run_seed(seed: int) -> Result:
    """Run one seed; raises SimulationError."""
    return world_of(seed).execute()


def known_seeds() -> Iterable[int]:
    """Seeds that once failed."""
    lines = KNOWN.read_text(encoding="utf-8").splitlines()
    return [int(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]
