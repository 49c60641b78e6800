"""The steps of a whole job: histories take every transition of the table, and no other one."""

import msgspec
import pytest
from tests.unit.jobmanager.change import test_rescale, test_upgrade

from penstock.checkpoint.ha_records import UpgradePolicy, UpgradeRecord
from penstock.graph.job_graph import encode_graph
from penstock.jobmanager.deploy.job_steps import TRANSITIONS, Step, StepMachine
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.rpc import messages as msg

CANCEL = ev.CancelRequested()


@pytest.fixture
def taken(monkeypatch):
    """Return the set of transitions that jobs have taken."""
    found, to = set(), StepMachine.to

    def recorded(self, step, deadline_ms=None):
        before = self.step
        to(self, step, deadline_ms)
        found.add((before, step))

    monkeypatch.setattr(StepMachine, "to", recorded)
    return found


def running(world_of):
    return world_of().start().pass_time(1500)


def kill_one(world):
    return world.kill(next(iter(world.workers)))


def without_exits(world):
    """Let killed workers report no end; return the reports."""
    held, execute = [], world._execute

    def keep(command):
        execute(command)
        if isinstance(command, cmd.KillWorker):
            held.append(world.queue.pop())

    world._execute = keep
    return held


def starting(world_of):
    world = world_of()
    world.deaf.add(msg.DeployTasks)
    return world.start()


def cancelled(world_of):
    """Cancel a job in each of its steps; one history after the other."""
    yield world_of().post(CANCEL)
    first = running(world_of)
    yield world_of(generation=2).take_over(first).post(CANCEL)
    yield kill_one(running(world_of)).post(CANCEL)
    yield running(world_of).post(CANCEL)
    yield starting(world_of).post(CANCEL)
    changing = running(world_of)
    changing._record = lambda _: None
    yield changing.post(test_rescale.ask(changing, 3)).post(CANCEL)
    assert changing.terminal is None, "the record decides which run ends"


def failed(world_of):
    """Fail before and after the start; the job restarts, or must not."""
    yield kill_one(running(world_of)).pass_time(5000).post(ev.StopRequested("s", "memory://sp"))
    yield kill_one(starting(world_of))
    for world in (running(world_of), starting(lambda: world_of(generation=2))):
        yield world.kill(next(iter(world.workers)), "GraphError: no restart helps")


def taken_over(world_of):
    """Another leader adopts the workers, waits for them in vain, or finds that the run has ended."""
    first = running(world_of)
    world_of(generation=2).take_over(first).register()
    yield world_of(generation=3).take_over(first).pass_time(5000)
    ended = world_of().start().post(CANCEL)
    yield world_of(generation=2).post(ev.Start(ended.attempts, 2_000))


def changed(world_of, graph_of):
    """Rescale; take a new version back after its failure, while it starts, and before it can start."""
    world = running(world_of)
    yield world.post(test_rescale.ask(world, 3))
    yield kill_one(test_upgrade.trying(world_of, graph_of, checkpoints=9))
    late = running(world_of)
    late.deaf.add(msg.DeployTasks)
    yield late.post(test_upgrade.ask(late.graph, deadline_ms=4000)).pass_time(4000)
    world = running(world_of)
    exits = without_exits(world)
    world.post(test_upgrade.ask(world.graph, deadline_ms=4000)).pass_time(4000)
    assert world.master.step is Step.CHANGING
    assert world.upgrades[-1].phase == "rolled-back"
    for lost in exits:
        world.post(lost)
    assert world.master.step is Step.RUNNING
    assert test_upgrade.running(world)[0] == {"back-t"}
    yield world


def upgraded_at_the_end(world_of, graph_of):
    """The checkpoint of the upgrade is the last one of the job too, and leaves no output to publish."""
    world = world_of(graph_of(bounded=True)).start()
    world.auto_ack = False
    world.end_input().post(test_upgrade.ask(world.graph, from_checkpoint=True))
    trigger = next(m for _, m in reversed(world.sent) if isinstance(m, msg.TriggerCheckpoint))
    for worker in list(world.workers.values()):
        for report in worker.acks(trigger):
            bare = tuple(
                msgspec.structs.replace(ack, snapshot=msgspec.structs.replace(ack.snapshot, committables=()))
                for ack in report.acks
            )
            world.post(ev.WorkerReported(worker.worker_id, msgspec.structs.replace(report, acks=bare)))
    assert test_upgrade.running(world) == ({"new-t"}, {trigger.checkpoint_id})
    yield world


def test_every_transition_is_taken_by_some_history(world_of, graph_of, store, taken):
    histories = (cancelled(world_of), failed(world_of), taken_over(world_of), changed(world_of, graph_of))
    for history in (*histories, upgraded_at_the_end(world_of, graph_of)):
        for _ in history:
            for key in store.list(""):
                store.delete(key)
    assert taken == {(before, after) for before, following in TRANSITIONS.items() for after in following}


def test_an_overdue_trial_is_not_judged_before_the_job_starts(world_of, graph_of):
    """A request that arrived before the start must not change a job that is not deployed yet."""
    record = UpgradeRecord(
        token="t", phase="trial", policy=UpgradePolicy(deadline_ms=1), run_id="r", back_run_id="back-t",
        other=encode_graph(graph_of()), savepoint="", deadline_ms=0, parallelism={}, begun_ms=0,
    )  # fmt: skip
    world = world_of(upgrade=record)
    world.clock.advance(1000)
    world.post(ev.CheckpointRequested("c"))
    assert world.master.step is Step.IDLE
    assert world.upgrades == []
    world.start()
    assert world.upgrades[-1].phase == "rolled-back"
    assert test_upgrade.running(world)[0] == {"back-t"}
