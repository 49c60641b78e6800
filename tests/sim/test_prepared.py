"""State of every kind that the next workers load before a rescale: each result comes out once."""

from __future__ import annotations

import random

import pytest
from tests.sim.faults import RESCALE, Swarm
from tests.sim.test_process import Brief, ProcessPlan
from tests.sim.test_window_rows import RowsPlan
from tests.sim.workload import Phase, Plan, SessionsPlan
from tests.sim.world import World
from tests.support.sizes import sizes

from penstock.state.store import KeyedState


class BriefPlan(ProcessPlan):
    """Windows by lists and maps with a time-to-live."""

    function = Brief


@pytest.fixture
def added(monkeypatch):
    """Whether a later checkpoint was added, of each state that was loaded before."""
    found, advance = [], KeyedState.advance

    def noted(self, *arguments):
        found.append(advance(self, *arguments))
        return found[-1]

    monkeypatch.setattr(KeyedState, "advance", noted)
    return found


def run(kind: type[Plan], backend: str) -> int:
    plan = kind.drawn(random.Random("plan 1"))
    plan.size_ms = plan.slide_ms = 100
    plan.limits = sizes().changed(whole_rows=0)  # checkpoints of small tables have changes alone
    plan.phases, plan.input_ms, plan.inline_bytes = [Phase(2)], 1500.0, 0
    plan.settings |= {"checkpoint_tolerated_failures": 100, "state_backend": backend, "prepare_state_bytes": 0}
    swarm = Swarm(random.Random(1), strikes_={RESCALE: 1.0}, every_ms=400.0)
    return World(1, plan, swarm).execute().counts["rescaled-in-place"]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("kind", [SessionsPlan, RowsPlan, BriefPlan])
def test_a_running_job_is_rescaled(kind, backend, added):
    assert run(kind, backend) > 0
    assert any(added)
