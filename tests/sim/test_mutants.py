"""The simulation sees: every planted fault is caught by some seed, which passes without it (looked at nightly)."""

from __future__ import annotations

import pytest
from tests.sim.adoption_mutants import ADOPTION
from tests.sim.election_mutants import ELECTION
from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.network_memory_mutants import NETWORK_MEMORY
from tests.sim.preparation_mutants import PREPARATION
from tests.sim.region_mutants import REGIONS
from tests.sim.request_mutants import REQUESTS
from tests.sim.scheduler import SimulationError
from tests.sim.scheduling_mutants import SCHEDULING
from tests.sim.seeds import world_of
from tests.support.depth import depth


def caught_by(mutant: Mutant) -> tuple[int, str] | None:
    for seed in mutant.tried:
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            world = mutant.world(seed)
            try:
                world.execute()
            except SimulationError as error:
                misfits = [line for line in world.scheduler.journal if "TypeError" in line]
                assert not misfits, f"the planted fault does not fit the engine: {misfits[0]}"
                return seed, str(error).partition("\n")[0]
    return None


@pytest.mark.parametrize(
    "mutant",
    [*MUTANTS, *ELECTION, *ADOPTION, *REGIONS, *SCHEDULING, *PREPARATION, *NETWORK_MEMORY, *REQUESTS],
    ids=lambda mutant: mutant.name,
)
def test_a_planted_fault_is_caught(mutant):
    found = caught_by(mutant)
    assert found is not None, f"{mutant.seeds} seeds passed with it"
    seed, verdict = found
    print(f"{mutant.name}: {verdict}")
    if depth() == "nightly":
        mutant.world(seed).execute()


def test_the_oracle_can_fail():
    """A canary: one row of the input withheld from the oracle."""
    world = world_of(5)
    expected = world.plan.expected
    world.plan.expected = lambda: expected() - type(expected())([next(iter(expected()))])
    with pytest.raises(SimulationError, match="output differs"):
        world.execute()


def test_an_invariant_cannot_be_swallowed():
    """The engine may catch what a check raises inside of it: the run fails all the same."""
    world = world_of(5)
    world.kafka.on_commit = None
    world.checks.committing = lambda _transaction: world.scheduler.fail("the canary")
    with pytest.raises(SimulationError, match="the canary"):
        world.execute()
