"""Sources of a group wait for each other: who is told which limit, and when."""

from types import SimpleNamespace

import pytest

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.eventtime.strategy import ALIGNMENT_METRIC, WatermarkStrategy, strategy_to_builtins
from penstock.jobmanager.deploy.watermark_alignment import WatermarkAlignment

DRIFT_US = 10_000_000
FIRST = MIN_TIMESTAMP


def source(vertex_id, group="orders", drift="10s"):
    strategy = WatermarkStrategy.monotonic(timestamp="ts")
    if group:
        strategy = strategy.with_watermark_alignment(group, drift)
    operator = SimpleNamespace(config={"watermarks": strategy_to_builtins(strategy)})
    return SimpleNamespace(id=vertex_id, is_source=True, operators=[operator])


class World:
    """Two sources, `a` with two subtasks, and a vertex that is none; two TaskManagers."""

    def __init__(self, *sources):
        plain = SimpleNamespace(id="w", is_source=False, operators=[])
        self.alignment = WatermarkAlignment(SimpleNamespace(vertices=[*sources, plain]))
        subtasks = [("a", 0), ("a", 1), ("b", 0), ("w", 0)]
        workers = {
            name: SimpleNamespace(worker_id=name, slot=SimpleNamespace(taskmanager_id=name[:2]))
            for name in ("t1x", "t1y", "t2z")
        }
        self.deployment = SimpleNamespace(
            ids=SimpleNamespace(job_id="job", generation=1),
            executions={w: SimpleNamespace(input_ended=False, id=SimpleNamespace(attempt=7)) for w in subtasks},
            workers=workers,
            running=True,
        )
        self.metrics = {}
        self.now = 0

    def report(self, **watermarks):
        """Report watermarks in seconds, a second later; return the limits that are sent, in seconds."""
        self.now += 1000
        for name, value in watermarks.items():
            own = value if value in (FIRST, MAX_TIMESTAMP) else value * 1_000_000
            self.metrics[f"{name[0]}/{name[1]}"] = {ALIGNMENT_METRIC: float(own)}
        return self.limits()

    def limits(self):
        commands = self.alignment.limits(self.metrics, self.deployment, self.now)
        self.addressed = [(command.taskmanager_id, command.worker_ids) for command in commands]
        found = [{name: limit / 1e6 for name, limit in command.command.limits.items()} for command in commands]
        assert all(limits == found[0] for limits in found)
        return found[0] if found else None


@pytest.fixture
def world():
    return World(source("a"), source("b"))


def test_nobody_is_limited_before_all_have_reported(world):
    assert world.report(a0=100, a1=200) is None
    assert world.report(b0=50) == {"a/0": 60, "a/1": 60, "b/0": 110}
    assert world.addressed == [("t1", ("t1x", "t1y")), ("t2", ("t2z",))]


def test_the_last_one_waits_only_for_the_last_but_one(world):
    assert world.report(a0=100, a1=50, b0=50) == {"a/0": 60, "a/1": 60, "b/0": 60}
    assert world.report(a1=51) == {"a/0": 60, "a/1": 60, "b/0": 61}


def test_what_has_not_changed_is_not_sent_again_and_not_more_than_once_a_second(world):
    world.report(a0=100, a1=100, b0=50)
    assert world.report() is None
    world.report(b0=55)
    world.metrics["b/0"] = {ALIGNMENT_METRIC: 70e6}
    world.now += 999
    assert world.limits() is None
    world.now += 1
    assert world.limits() == {"a/0": 80, "a/1": 80, "b/0": 110}


def test_a_source_without_a_row_yet_holds_the_others_and_an_idle_one_nobody(world):
    limits = world.report(a0=100, a1=100, b0=FIRST)
    assert limits["a/0"] < -9e12
    limits = world.report(b0=MAX_TIMESTAMP)
    assert limits["a/0"] == 110
    assert limits["b/0"] == 110, "so that it does not run away when it has rows again"


def test_one_that_has_ended_counts_no_longer_whatever_it_said_last(world):
    world.report(a0=100, a1=100, b0=50)
    world.deployment.executions["b", 0].input_ended = True
    assert world.report() == {"a/0": 110, "a/1": 110}
    world.deployment.executions["a", 0].input_ended = True
    assert world.report()["a/1"] > 9e12, "the only one left waits for nobody"


def test_every_source_has_its_own_drift_and_every_group_its_own_last():
    world = World(source("a", "x", "1s"), source("b", "y"))
    limits = world.report(a0=100, a1=200, b0=5)
    assert (limits["a/0"], limits["a/1"]) == (201, 101)
    assert limits["b/0"] > 9e12


def test_the_subtasks_of_a_new_attempt_are_told_again_under_it(world):
    world.report(a0=100, a1=100, b0=50)
    world.deployment.executions["b", 0].id.attempt = 8
    world.now += 1000
    sent = world.alignment.limits(world.metrics, world.deployment, world.now)
    assert {(c.command.attempt, *c.command.limits) for c in sent} == {(7, "a/0", "a/1"), (8, "b/0")}


def test_while_a_region_restarts_no_limit_changes(world):
    world.report(a0=100, a1=100, b0=50)
    world.deployment.running = False
    assert world.report(b0=60) is None
    world.deployment.running = True
    assert world.report() == {"a/0": 70, "a/1": 70, "b/0": 110}


def test_without_groups_nothing_is_sent():
    assert World(source("a", ""), source("b", "")).report(a0=1, a1=2, b0=3) is None
