"""An upgrade's cut when things go wrong around it: a leader between two steps, a user's stop, a copy that fails."""

import msgspec
import pytest
from tests.unit.jobmanager.change.test_upgrade import ask, assert_exact, cut_of, phase, running, successor

from penstock.core.snapshot import FileRef, InFlightRows
from penstock.jobmanager.change.upgrading import UpgradeStage
from penstock.jobmanager.messages import events as ev
from penstock.rpc import messages as msg


def sealed_twice(world_of, graph_of, *, fingerprint, **options):
    """A new version that a leader has sealed and not recorded; the next one took another cut and recorded that."""
    world = world_of(graph_of(retained_checkpoints=1)).start().pass_time(1500)
    world.dies_sealed = True
    request = ask(world.graph, from_checkpoint=True, deadline_ms=60_000, **options)
    graph = msgspec.structs.replace(request.graph, fingerprint=fingerprint)
    world.post(ev.UpgradeRequested("t", "new-t", "back-t", graph, request.policy, "")).pass_time(2000)
    assert world.lost
    first = world.manifests()[-1]
    world = successor(world_of, world, 2).pass_time(3000)
    assert cut_of(world).sequence > first.sequence
    return world


@pytest.mark.parametrize("rollback", [True, False])
def test_a_run_sealed_for_two_cuts_goes_on_from_the_recorded_one(world_of, graph_of, rollback):
    world = sealed_twice(world_of, graph_of, fingerprint="new", checkpoints=90, rollback=rollback)
    assert (phase(world), world.terminal) == (UpgradeStage.TRIAL, None)
    assert running(world) == ({"new-t"}, {cut_of(world).checkpoint_id})
    assert_exact(world)


def test_the_recorded_one_is_what_is_kept_to_go_back_to(world_of, graph_of):
    world = sealed_twice(world_of, graph_of, fingerprint="f", checkpoints=90)
    world.pass_time(3000)
    cut = cut_of(world)
    kept = {m.sequence: len(m.subtasks) for m in world.master.checkpointing._manifests}
    assert kept[cut.sequence] == len(cut.subtasks) > 0
    world.post(ev.UpgradeJudged(healthy=False)).pass_time(3000)
    assert running(world)[0] == {"back-t"}
    assert_exact(world)


def test_a_leader_that_comes_late_to_a_stop_runs_the_old_version_on(world_of, graph_of):
    world = world_of(graph_of()).start().pass_time(1500)
    world._record_upgrade, record = (
        lambda command: setattr(world, "lost", True) if command.graph is not None else record(command),
        world._record_upgrade,
    )
    world.post(ask(world.graph, deadline_ms=10_000)).pass_time(2000)
    assert world.lost
    world.clock.advance(60_000)
    world = successor(world_of, world, 2).pass_time(5000)
    assert "not in time" in world.operations["t"].error
    assert world.terminal is None
    assert running(world)[0] == {"back-t"}
    assert_exact(world)


@pytest.mark.parametrize("held", [msg.TriggerCheckpoint, msg.SealSavepoint])
def test_a_users_stop_stays_the_users(world_of, graph_of, held):
    """An upgrade is refused from the moment it was asked for."""
    world = world_of(graph_of()).start().pass_time(1500)
    send = world._send
    orders_held = []
    world._send = lambda w, m: orders_held.append((w, m)) if isinstance(m, held) else send(w, m)
    world.post(ev.StopRequested("user", "memory://sp/user")).post(ask(world.graph))
    assert world.operations["t"].error in ("a stop of the job was requested", "the job is about to end")
    world._send = send
    for worker_id, order in orders_held:
        world._send(worker_id, order)
    world.post(ev.Tick()).pass_time(2000)
    assert world.operations["user"].uri == "memory://sp/user"
    assert world.terminal.state == "FINISHED"
    assert world.savepoints == ["memory://sp/user"]
    assert world.upgrades == []
    assert_exact(world)


def test_the_stop_of_an_upgrade_is_no_stop_of_the_job(world_of, graph_of):
    """A job that a user cancels later has no savepoint of a stop, and no answer to one."""
    world = world_of(graph_of()).start().pass_time(1500)
    world.post(ask(world.graph)).pass_time(5000)
    assert (phase(world), world.operations["t"].uri) == (None, "memory://sp/t")
    world.post(ev.CancelRequested())
    assert world.terminal.state == "CANCELED"
    assert world.master.checkpointing.stopped is None
    assert set(world.operations) == {"t"}


def test_a_savepoint_that_cannot_be_written_leaves_the_old_version_running(world_of, graph_of):
    world = world_of(graph_of()).start().pass_time(1500)
    world.copy_error = "AccessDenied"
    world.post(ask(world.graph, deadline_ms=300_000)).pass_time(30_000)
    assert "AccessDenied" in world.operations["t"].error
    assert (world.operations["t"].uri, phase(world)) == ("", None)
    assert running(world)[0] == {"back-t"}
    assert world.upgrades[-1].phase == "refused"
    assert_exact(world)


def test_one_that_is_written_the_second_time_will_do(world_of, graph_of):
    world = world_of(graph_of()).start().pass_time(1500)
    world.copy_error = "SlowDown"
    world.post(ask(world.graph, deadline_ms=60_000))
    assert world.master.restarts == 1
    world.copy_error = ""
    world.pass_time(10_000)
    assert world.operations["t"].error == ""
    assert running(world)[0] == {"new-t"}
    assert_exact(world)


def test_one_that_hangs_is_given_up_at_the_deadline(world_of, graph_of):
    world = world_of(graph_of()).start().pass_time(1500)
    world.deaf.add(msg.SealSavepoint)
    world.post(ask(world.graph, deadline_ms=10_000)).pass_time(9900)
    assert phase(world) is UpgradeStage.CHECKPOINT
    world.pass_time(3000)
    assert "not in time" in world.operations["t"].error
    assert running(world)[0] == {"back-t"}
    assert_exact(world)


@pytest.mark.parametrize("healthy", [True, False])
def test_the_next_upgrade_is_judged_by_itself_alone(world_of, graph_of, healthy):
    world = world_of(graph_of()).start().pass_time(1500)
    world.post(ask(world.graph, checkpoints=9, max_restarts=1)).pass_time(2500)
    world.kill(next(iter(world.workers)))
    world.pass_time(2500)
    world.post(ev.UpgradeJudged(healthy)).pass_time(1500)
    assert phase(world) is None
    world.post(ask(world.graph, "u", checkpoints=2))
    assert phase(world) is UpgradeStage.TRIAL
    assert (world.master.job_change.upgrading.restarts, world.master.job_change.upgrading.checkpoints) == (0, 0)
    world.pass_time(3000)
    assert world.operations["u"].error == ""
    assert running(world)[0] == {"new-u"}


def test_a_failure_for_good_under_the_release_does_not_end_the_job(world_of, graph_of):
    world = world_of(graph_of()).start().pass_time(1500)
    world.post(ask(world.graph, checkpoints=9)).pass_time(1500)
    world.append_error = "the store is down"
    world.post(ev.UpgradeJudged(healthy=True))
    assert phase(world) is UpgradeStage.RELEASE
    world.kill(next(iter(world.workers)), "GraphError: no restart helps")
    world.pass_time(500)
    assert world.terminal is None
    world.append_error = None
    world.pass_time(5000)
    assert world.operations["t"].error == ""
    assert running(world)[0] == {"new-t"}
    assert_exact(world)


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_rows_in_flight_on_a_removed_edge_hinder_only_a_cut_that_holds_them(world_of, graph_of, from_checkpoint):
    world = world_of(graph_of()).start().pass_time(1500)
    newest = world.master.checkpointing._manifests[-1]
    rows = InFlightRows(edge="removed", receiver=0, hash_low=0, hash_high=1, at_sender=True, file=FileRef(path="x"))
    parts = tuple(msgspec.structs.replace(part, in_flight=(rows,)) for part in newest.subtasks)
    world.master.checkpointing._manifests = (msgspec.structs.replace(newest, subtasks=parts),)
    world.post(ask(world.graph, from_checkpoint=from_checkpoint, checkpoints=0)).pass_time(3000)
    assert ("rows in flight" in world.operations["t"].error) is from_checkpoint
