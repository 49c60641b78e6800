"""A job goes on as another version, or as the old one: exactly one of the two publishes what follows the cut."""

import msgspec
import pytest
from tests.unit.jobmanager.strikes import kill_one, lose_all

from penstock.checkpoint.ha_records import JobRecord, UpgradePolicy
from penstock.checkpoint.manifest_log import Manifest, decode_manifest
from penstock.checkpoint.recovery import plan_recovery, runs_on_trial
from penstock.core.errors import UsageError
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.change.upgrading import UpgradeStage, require_upgradable, under_name_of
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.jobs.job_views import exceptions_of
from penstock.jobmanager.messages import events as ev
from penstock.rpc import messages as msg

MODES = {"savepoint": False, "checkpoint": True}


def ask(graph: JobGraph, token="t", *, from_checkpoint=False, **policy):
    policy = {"checkpoints": 2, "deadline_ms": 10_000} | policy
    graph = msgspec.structs.replace(graph, fingerprint="new")
    uri = "" if from_checkpoint else f"memory://sp/{token}"
    of = UpgradePolicy(from_checkpoint=from_checkpoint, **policy)
    return ev.UpgradeRequested(token, f"new-{token}", f"back-{token}", graph, of, uri)


def running(world):
    """Run ids, fingerprints and restored checkpoints of what is deployed."""
    tasks = [task for worker in world.workers.values() for task in worker.tasks]
    return {task.run_id for task in tasks}, {task.restored_checkpoint for task in tasks}


def phase(world):
    return world.master.job_change.upgrading.phase


def cut_of(world) -> Manifest | None:
    base = world.master.job_change.upgrading.record.base
    return next((e.manifest for e in world.log.read() if e.manifest.sequence == base), None)


def published(world, run):
    return {committable for committable in world.output if committable.split("/")[1] == run}


def assert_exact(world):
    """Nothing twice; nothing of a trial that was not released; all that is owed, or named still."""
    assert set(world.output.values()) <= {1}
    live = [entry.manifest for entry in world.log.read()]
    for run in runs_on_trial(live):
        assert not published(world, run)
    counting = [m for m in live if m.kind == "checkpoint" and m.run_id not in runs_on_trial(live)]
    owed = {c.id for manifest in counting for c in manifest.pending}
    over = world.terminal is not None or world.lost
    left = {c.id for c in plan_recovery(world.log.read(), "the next").pending} if over else set()
    assert owed - left <= set(world.output)
    base = world.master.job_change.upgrading.record
    if base is not None and base.base and base.phase != "refused" and cut_of(world) is not None:
        # what the old run published behind the cut would be published by whoever goes on from it once more
        behind = [c for c in published(world, "r") if int(c.split("/")[3]) > (cut_of(world).checkpoint_id or 0)]
        assert not behind


def trying(world_of, graph_of, **options):
    """A job whose new version is on trial."""
    settings = options.pop("settings", {})
    world = world_of(graph_of(**settings)).start().pass_time(1500)
    world.post(ask(world.graph, **options))
    return world


@pytest.mark.parametrize("mode", MODES)
def test_a_healthy_version_takes_over_and_its_output_waits_for_the_verdict(world_of, graph_of, mode):
    world = trying(world_of, graph_of, from_checkpoint=MODES[mode])
    assert phase(world) is UpgradeStage.TRIAL
    assert running(world)[0] == {"new-t"}
    assert running(world)[1] == {cut_of(world).checkpoint_id}
    world.pass_time(1200)
    assert world.manifests()[-1].run_id == "new-t"
    assert world.manifests()[-1].held == ("out",)
    assert not published(world, "new-t")
    world.pass_time(1000)
    assert world.operations["t"].error == ""
    assert world.operations["t"].uri == ("" if MODES[mode] else "memory://sp/t")
    assert len(published(world, "new-t")) == 4
    assert [u.phase for u in world.upgrades] == ["cut", "trial", "completed"]
    assert world.savepoints == ([] if MODES[mode] else ["memory://sp/t"])
    world.pass_time(3000)
    assert world.manifests()[-1].held == ()
    assert (world.master.restarts, world.master.status.state) == (0, JobStatus.RUNNING)
    assert_exact(world)


@pytest.mark.parametrize("given", [{}, {"native": True}, {"native": False}])
def test_the_savepoint_of_the_old_version_is_native_unless_asked_otherwise(world_of, graph_of, given):
    world = trying(world_of, graph_of, **given).pass_time(2200)
    assert world.operations["t"].error == ""
    assert [decode_manifest(m.manifest).native for _, m in world.sent if isinstance(m, msg.SealSavepoint)] == [
        given.get("native", True)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_one_that_fails_is_taken_back_with_nothing_published(world_of, graph_of, mode):
    world = trying(world_of, graph_of, from_checkpoint=MODES[mode], checkpoints=9)
    world.pass_time(5500)
    assert len([m for m in world.manifests() if m.run_id == "new-t"]) >= 3
    world.kill(next(iter(world.workers)))
    world.pass_time(1)
    assert "it failed once (0 restarts allowed)" in world.operations["t"].error
    assert running(world) == ({"back-t"}, {cut_of(world).checkpoint_id})
    assert not published(world, "new-t")
    assert "job.out.new-t." in world.resolved[-1].prefixes["out"]
    world.pass_time(3000)
    assert world.manifests()[-1].run_id == "back-t"
    assert published(world, "back-t")
    assert_exact(world)


def test_failures_of_a_rejected_version_are_told_from_those_of_the_version_that_runs(world_of, graph_of):
    world = trying(world_of, graph_of, checkpoints=9).pass_time(2500)
    world.kill(next(iter(world.workers)))
    world.pass_time(3000)
    rejected_ms = world.upgrades[-1].ended_ms
    assert rejected_ms == 4000
    world.kill(next(iter(world.workers)))
    record = JobRecord(job_id="a", name="job", run_id="r", token="", submitted_ms=0, graph=b"")
    told = exceptions_of(record, world.master)
    assert [(view.at_ms, view.rolled_back_ms) for view in told] == [(7000, -1), (4000, rejected_ms)]


@pytest.mark.parametrize(("healthy", "ended_ms"), [(True, 3500), (False, 3500), (None, -1)])
def test_the_record_says_when_it_began_and_ended_and_what_it_is(world_of, graph_of, healthy, ended_ms):
    world = trying(world_of, graph_of, checkpoints=9, file="new.py").pass_time(2000)
    if healthy is not None:
        world.post(ev.UpgradeJudged(healthy))
    record = world.upgrades[-1]
    assert (record.begun_ms, record.ended_ms, record.policy.file) == (1500, ended_ms, "new.py")


def test_the_version_that_runs_is_known_by_its_file(world_of, graph_of):
    world = trying(world_of, graph_of, checkpoints=9, file="better.py").pass_time(2000)
    assert [u.running_file for u in world.upgrades] == ["", "better.py"]
    world.post(ev.UpgradeJudged(healthy=True))
    world.pass_time(3000)
    world.post(ask(world.graph, "u", checkpoints=9, file="worse.py"))
    world.pass_time(2000)
    world.post(ev.UpgradeJudged(healthy=False))
    files = [(u.phase, u.running_file) for u in world.upgrades[2:]]
    assert files == [
        ("completed", "better.py"), ("cut", "better.py"), ("trial", "worse.py"), ("rolled-back", "better.py")
    ]  # fmt: skip


def test_restarts_within_the_limit_hold_the_output_of_earlier_attempts_too(world_of, graph_of):
    world = trying(world_of, graph_of, checkpoints=8, max_restarts=2)
    world.pass_time(2500)
    for _ in range(2):
        world.kill(next(iter(world.workers)))
        world.pass_time(1500)
    assert phase(world) is UpgradeStage.TRIAL
    assert not published(world, "new-t")
    assert all(not c.id.startswith("out/new-t") for c in world.resolved[-1].committables)
    named = {c.id for c in world.manifests()[-1].pending}
    world.pass_time(6000)
    assert world.operations["t"].error == ""
    assert named <= published(world, "new-t")
    assert_exact(world)


def test_the_checkpoint_to_go_back_to_outlives_all_others(world_of, graph_of):
    world = trying(world_of, graph_of, checkpoints=9, deadline_ms=60_000, settings={"retained_checkpoints": 1})
    world.pass_time(6500)
    sequences = [m.sequence for m in world.manifests()]
    assert sequences == [cut_of(world).sequence, max(sequences)]
    world.post(ev.UpgradeJudged(healthy=False)).pass_time(5000)
    assert running(world)[0] == {"back-t"}
    assert not [m for m in world.manifests() if m.run_id == "new-t"]
    assert [m.run_id for m in world.manifests("fence")] == ["r", "new-t"], "they keep their places before a seal"
    assert_exact(world)


@pytest.mark.parametrize(("healthy", "run"), [(True, "new-t"), (False, "back-t")])
def test_a_users_word_counts_at_once(world_of, graph_of, healthy, run):
    world = trying(world_of, graph_of, checkpoints=1, confirm=True)
    world.pass_time(5000)
    assert phase(world) is UpgradeStage.TRIAL
    world.post(ev.UpgradeJudged(healthy))
    assert running(world)[0] == {run}
    assert (world.operations["t"].error == "") == healthy
    assert_exact(world.pass_time(3000))


def test_neither_healthy_nor_failed_it_is_taken_back_at_the_deadline(world_of, graph_of):
    world = trying(world_of, graph_of, checkpoints=99, deadline_ms=4000)
    world.pass_time(3900)
    assert phase(world) is UpgradeStage.TRIAL
    world.pass_time(200)
    assert "not healthy within 4 s: 4 of 99 checkpoints" in world.operations["t"].error
    assert running(world)[0] == {"back-t"}
    assert_exact(world.pass_time(3000))


def test_the_reason_of_the_verdict_names_a_call_that_does_not_return(world_of, graph_of):
    world = trying(world_of, graph_of, checkpoints=99, deadline_ms=4000).pass_time(3900)
    call = msg.SlowCall(number=1, what="operator 'map-2' (0)", for_ms=3000, at="new.py:3 in f")
    (worker_id, *_) = world.master.deployment.workers
    job_id = world.master.identity.job_id
    report = msg.WorkerMetrics(worker_id=worker_id, job_id=job_id, tasks={}, worker={}, slow=(call,))
    world.post(ev.WorkerReported(worker_id, report)).pass_time(200)
    assert world.operations["t"].error.endswith("operator 'map-2' (0) has been in one call for 3 s, at new.py:3 in f")


def test_a_version_under_the_name_in_the_file_takes_the_name_of_the_submission(graph_of):
    running, new = graph_of(), msgspec.structs.replace(graph_of(), name="file")
    assert under_name_of(running, new) is new
    named = msgspec.structs.replace(running, file_name="file")
    assert under_name_of(named, new) == named
    with pytest.raises(UsageError, match=r"the new version is named 'other'.*keep the name: env.execute\('file'\)"):
        require_upgradable(named, msgspec.structs.replace(new, name="other"), UpgradePolicy())
    settings = msgspec.structs.replace(running.settings, checkpoint_root="/elsewhere")
    with pytest.raises(UsageError, match=f"keep it: --set checkpoint_root={running.settings.checkpoint_root};"):
        require_upgradable(running, msgspec.structs.replace(running, settings=settings), UpgradePolicy())


def test_a_version_that_cannot_start_is_taken_back(world_of, graph_of):
    world = world_of(graph_of()).start().pass_time(1500)
    world.deaf.add(msg.DeployTasks)
    world.post(ask(world.graph, deadline_ms=700_000)).pass_time(650_000)
    assert "did not start in time" in world.operations["t"].error
    world.deaf.clear()
    world.pass_time(700_000)
    assert running(world)[0] == {"back-t"}
    assert_exact(world)


def test_without_a_roll_back_it_publishes_at_once_and_stays(world_of, graph_of):
    world = trying(world_of, graph_of, rollback=False, checkpoints=9, deadline_ms=4000)
    world.pass_time(1500)
    assert published(world, "new-t")
    world.pass_time(3000)
    assert "kept, as requested" in world.operations["t"].error
    assert world.upgrades[-1].phase == "kept"
    assert running(world)[0] == {"new-t"}
    assert_exact(world)


def test_sinks_that_cannot_hold_are_not_held_and_the_others_are(world_of, graph_of):
    world = trying(world_of, graph_of, accept=("out",), settings={"delivery": "exactly-once-2pc"}, checkpoints=3)
    world.pass_time(1500)
    assert published(world, "new-t")
    world.post(ev.UpgradeJudged(healthy=False)).pass_time(3000)
    assert running(world)[0] == {"back-t"}


def test_what_stands_against_it_leaves_the_job_alone(world_of, graph_of):
    world = world_of(graph_of()).start()
    world.auto_ack = False
    world.pass_time(1500)
    workers = set(world.workers)
    world.post(ask(world.graph)).post(ask(world.graph, "u"))
    assert world.operations["u"].error == "another upgrade of the job is under way"
    world.post(ev.SavepointRequested("p", "memory://p"))
    assert world.operations["p"].error == "an upgrade of the job is under way"
    assert set(world.workers) == workers


def test_the_end_of_its_input_is_health_and_the_last_output_is_published(world_of, graph_of):
    world = world_of(graph_of(bounded=True)).start().pass_time(1500)
    world.post(ask(world.graph, from_checkpoint=True, checkpoints=50))
    world.pass_time(1500)
    world.end_input()
    world.pass_time(1500)
    assert world.operations["t"].error == ""
    assert world.terminal.state == "FINISHED"
    assert published(world, "new-t")
    assert_exact(world)


def test_a_record_that_cannot_be_written_is_tried_again(world_of, graph_of):
    world = world_of(graph_of()).start().pass_time(1500)
    world.record_error = "the store is down"
    world.post(ask(world.graph, checkpoints=9)).pass_time(2500)
    assert running(world)[0] == {"r"}
    world.record_error = ""
    world.pass_time(1500)
    assert phase(world) is UpgradeStage.TRIAL
    world.record_error = "the store is down"
    world.post(ev.UpgradeJudged(healthy=False)).pass_time(2500)
    assert not world.workers
    world.record_error = ""
    world.pass_time(3000)
    assert running(world)[0] == {"back-t"}
    assert_exact(world)


@pytest.mark.parametrize("rollback", [False, True])
@pytest.mark.parametrize("closes", [False, True])
def test_an_end_is_told_when_no_later_leader_says_otherwise(world_of, graph_of, rollback, closes):
    world = trying(world_of, graph_of, rollback=rollback, checkpoints=9)
    world.record_error = "the store is down"
    world.post(ev.UpgradeJudged(healthy=True)).pass_time(2500)
    assert "t" not in world.operations
    assert world.upgrades[-1].phase == "trial"
    if closes:
        world.post(ev.CancelRequested())
        assert "cancelled" in world.operations["t"].error
        return
    world.record_error = ""
    world.pass_time(3000)
    assert (world.operations["t"].error, world.upgrades[-1].phase) == ("", "completed")


STRIKES = {
    "worker": kill_one,
    "taskmanager": lose_all,
    "cancel": lambda world: world.queue.append(ev.CancelRequested()),
    "cancel-now": lambda world: world.queue.appendleft(ev.CancelRequested()),
    "stop": lambda world: world.queue.append(ev.StopRequested("s", "memory://stopped")),
    "savepoint": lambda world: world.queue.appendleft(ev.SavepointRequested("p", "memory://sp")),
    "unhealthy": lambda world: world.queue.append(ev.UpgradeJudged(healthy=False)),
    "healthy": lambda world: world.queue.append(ev.UpgradeJudged(healthy=True)),
    "log-fails": lambda world: setattr(world, "append_error", "store is down"),
    "record-fails": lambda world: setattr(world, "record_error", "store is down"),
    "leader": lambda world: setattr(world, "lost", True),
}


def mended(world):
    world.append_error, world.record_error = None, ""
    return world


def successor(world_of, world, generation):
    """The next leader: it has the record and the log."""
    run, record = world.run_id, world.upgrades[-1] if world.upgrades else None
    after = world_of(world.graph, generation=generation, run_id=run, upgrade=record)
    after.output, after.upgrades, after.operations = world.output, world.upgrades, world.operations
    after.clock.advance(world.clock.now_ms())
    return after.start()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", STRIKES)
def test_whatever_happens_in_between_at_any_step(world_of, graph_of, store, name, mode):
    """The strike comes behind event 0, 1, 2... of the upgrade, until there are no more events."""
    ends = set()
    for step in range(250):
        for key in store.list(""):
            store.delete(key)
        world = world_of(graph_of(checkpoint_tolerated_failures=3)).start().pass_time(1500)
        world.behind[world.handled + step] = STRIKES[name]
        restarts = 3 if name == "worker" else 0
        world.post(ask(world.graph, from_checkpoint=MODES[mode], max_restarts=restarts, deadline_ms=8000))
        world.pass_time(3000)
        if world.behind:
            break
        if world.lost:
            world = successor(world_of, world, 2)
        mended(world).pass_time(12_000)
        runs = running(world)[0]
        told = world.operations.get("t")
        if world.terminal is None:
            record = world.master.job_change.upgrading.record
            expected = {"completed": "new-t", "rolled-back": "back-t", "refused": "r"}
            assert record is None or record.phase in expected, (step, record)
            assert runs == {expected[record.phase] if record is not None else "r"}, (step, record)
            ends.add(record.phase if record is not None else "forgotten")
            if told is not None:
                assert (told.error == "") == (record is not None and record.phase == "completed"), (step, told)
        else:
            ends.add(world.terminal.state)
        assert_exact(world)
    assert step > 20
    assert ends


@pytest.mark.parametrize("mode", MODES)
def test_two_leaders_die_at_any_step(world_of, graph_of, store, mode):
    ends = set()
    for step in range(0, 250, 3):
        for key in store.list(""):
            store.delete(key)
        world = world_of(graph_of()).start().pass_time(1500)
        world.behind[world.handled + step] = STRIKES["leader"]
        world.post(ask(world.graph, from_checkpoint=MODES[mode])).pass_time(3000)
        if world.behind:
            break
        for generation, more in ((2, step // 2 + 3), (3, 10_000)):
            world = successor(world_of, world, generation)
            world.behind[world.handled + more] = STRIKES["leader"]
            world.pass_time(500 if generation == 2 else 15_000)
        record = world.master.job_change.upgrading.record
        ends.add(record.phase if record is not None else "forgotten")
        assert_exact(world)
    assert "completed" in ends
