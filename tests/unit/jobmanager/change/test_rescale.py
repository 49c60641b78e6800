"""A running job goes on with another parallelism, or as before: nothing is published twice, nothing is left out."""

import pytest
from tests.unit.jobmanager.conftest import acknowledge
from tests.unit.jobmanager.strikes import kill_one, lose_all

from penstock.checkpoint.recovery import plan_recovery
from penstock.graph.rescale import rescaled
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.commands import RequestSlots
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc import messages as msg

NO_SLOTS = "no slots: 7 are needed, 6 are free (start another TaskManager, or ask for less)"


def ask(world, parallelism, token="t"):
    graph = rescaled(world.master.graph, parallelism, {})
    return ev.RescaleRequested(token, f"run-{token}", graph)


def widths(world):
    tasks = [task for worker in world.workers.values() for task in worker.tasks]
    return {t.parallelism for t in tasks}, {t.run_id for t in tasks}, len(tasks)


def assert_published_once(world):
    owed = {c.id for manifest in world.manifests() for c in manifest.pending}
    left = {c.id for c in plan_recovery(world.log.read(), "the next").pending} if world.terminal is not None else set()
    assert owed - left <= set(world.output)
    assert set(world.output.values()) <= {1}


def test_more_subtasks_start_from_exactly_that_checkpoint_under_ids_of_their_own(world_of):
    world = world_of().start().pass_time(1500)
    cut = len(world.manifests()) + 1
    world.post(ask(world, 3))
    assert world.operations["t"].error == ""
    assert widths(world) == ({3}, {"run-t"}, 6)
    assert {t.restored_checkpoint for w in world.workers.values() for t in w.tasks} == {cut}
    assert world.master.status.state is JobStatus.RUNNING
    assert world.resolved[-1].prefixes["out"] == ("job.out.r.", "job.out.run-t.")
    assert (len(world.free), world.master.restarts) == (5, 0)
    world.pass_time(5000)
    assert world.manifests()[-1].run_id == "run-t"
    assert_published_once(world)


def test_fewer_subtasks_give_their_slots_back_when_their_workers_are_gone(world_of, graph_of):
    world = world_of(graph_of(parallelism=3)).start().pass_time(1500)
    world.post(ask(world, 1))
    assert widths(world) == ({1}, {"run-t"}, 2)
    assert len(world.free) == 7
    assert sorted(i for _, ids, _ in world.assigned[-1:] for i in ids) == ["t-0", "t-1", "t-2"]
    assert_published_once(world.pass_time(3000))


def test_without_slots_the_job_never_notices(world_of):
    world = world_of().start().pass_time(1500)
    before, checkpoints = set(world.workers), len(world.manifests())
    world.post(ask(world, 9))
    assert world.operations["t"].error == NO_SLOTS
    assert (set(world.workers), len(world.manifests())) == (before, checkpoints)
    world.post(ask(world, 3, "u"))
    assert world.operations["u"].error == ""


def test_the_checkpoint_under_way_is_used(world_of):
    world = world_of().start()
    world.auto_ack = False
    world.pass_time(1000)
    world.post(ask(world, 3))
    assert widths(world)[1] == {"r"}
    acknowledge(world)
    assert widths(world)[1] == {"run-t"}
    assert len(world.manifests()) == 1


def story(world):
    """Return the event log entries of rescales."""
    return [entry.text for entry in world.master.event_log.entries() if entry.kind == "rescale"]


def test_a_refusal_for_want_of_slots_is_in_the_event_log_with_the_way_out(world_of):
    world = world_of().start().pass_time(1500)
    world.post(ask(world, 9))
    requested, abandoned = story(world)
    assert requested == "requested: orders x9, totals x9"
    assert abandoned == f"abandoned: {NO_SLOTS}"


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (lambda _: ev.StopRequested("s", "memory://sp"), "a stop of the job was requested"),
        (lambda world: ask(world, 4, "u"), "another rescale of the job is under way"),
    ],
)
def test_a_refusal_while_something_else_changes_the_job_is_in_the_event_log(world_of, before, why):
    world = world_of().start()
    world.auto_ack = False
    world.post(before(world)).post(ask(world, 3))
    assert world.operations["t"].error.startswith(why)
    assert world.operations["t"].error.endswith("(ask again when it has ended)")
    assert story(world)[-2:] == ["requested: orders x3, totals x3", f"refused: {world.operations['t'].error}"]


def test_a_refusal_of_a_job_that_does_not_run_is_in_the_event_log(world_of):
    world = world_of().start().pass_time(1500)
    world.kill(next(iter(world.workers)))
    world.post(ask(world, 3))
    assert world.operations["t"].error.startswith("the job is RESTARTING (")
    assert story(world)[-1] == f"refused: {world.operations['t'].error}"


def test_a_request_that_waited_in_vain_for_the_start_is_in_the_event_log(world_of):
    world = world_of()
    world.deaf.add(msg.DeployTasks)
    world.start().post(ask(world, 3)).pass_time(31_000)
    assert world.operations["t"].error.startswith("the job is not running (")
    assert story(world) == [f"refused: {world.operations['t'].error}"]


def begun(world_of, graph_of, **settings):
    """A job that waits for the checkpoint of its rescale."""
    world = world_of(graph_of(**settings)).start().pass_time(1500)
    world.auto_ack = False
    return world.post(ask(world, 3))


def test_a_checkpoint_that_fails_leaves_the_job_as_it_is(world_of, graph_of):
    world = begun(world_of, graph_of, checkpoint_tolerated_failures=1)
    trigger = next(m for _, m in reversed(world.sent) if isinstance(m, msg.TriggerCheckpoint))
    worker = next(w for w in world.workers.values() if w.tasks)
    e = worker.tasks[0].execution
    report = msg.CheckpointDeclined(
        job_id=trigger.job_id, run_id="r", generation=1, checkpoint_id=trigger.checkpoint_id,
        vertex_id=e.vertex_id, subtask=e.subtask, attempt=e.attempt, reason="disk full",
    )  # fmt: skip
    world.post(ev.WorkerReported(worker.worker_id, report))
    assert "disk full" in world.operations["t"].error
    assert world.operations["t"].error.endswith("(remove the cause, then ask again)")
    assert story(world)[-1] == f"abandoned: {world.operations['t'].error}"
    assert (widths(world), len(world.free), world.master.restarts) == (({2}, {"r"}, 4), 6, 0)


def test_a_worker_that_dies_before_the_checkpoint_ends_the_rescale_and_not_the_job(world_of, graph_of):
    world = begun(world_of, graph_of)
    world.kill(next(iter(world.workers)))
    world.auto_ack = True
    world.pass_time(5000)
    assert "SIGKILL" in world.operations["t"].error
    assert story(world)[-1] == f"abandoned: {world.operations['t'].error}"
    assert (widths(world), len(world.free), world.master.restarts) == (({2}, {"r"}, 4), 6, 1)


def test_one_rescale_at_a_time_and_the_same_one_is_asked_for_twice(world_of, graph_of):
    world = begun(world_of, graph_of)
    world.post(ask(world, 3)).post(ask(world, 4, "u"))
    assert world.operations["u"].error == "another rescale of the job is under way (ask again when it has ended)"
    acknowledge(world)
    assert world.operations["t"].error == ""
    assert widths(world)[0] == {3}


def test_the_parallelism_it_has_is_no_rescale(world_of):
    world = world_of().start().pass_time(1500)
    world.post(ask(world, 2))
    assert world.operations["t"].error == ""
    assert widths(world) == ({2}, {"r"}, 4)


def test_what_cannot_be_recorded_goes_on_as_before(world_of):
    world = world_of().start().pass_time(1500)
    world.record_error = "the store is down"
    world.post(ask(world, 3)).pass_time(3000)
    told = "it could not be recorded: the store is down (remove the cause, then ask again)"
    assert world.operations["t"].error == told
    assert not world.master.job_change.rescaling.retry_soon
    assert (widths(world), len(world.free), world.master.restarts) == (({2}, {"r"}, 4), 6, 0)
    assert_published_once(world)


def test_a_savepoint_that_is_being_written_is_not_cut_off(world_of):
    world = world_of().start().pass_time(1500)
    world.deaf.add(msg.WriteSavepoint)
    world.post(ev.SavepointRequested("p", "memory://sp")).post(ask(world, 3))
    assert world.operations["t"].error == "a savepoint is being written (ask again when it has ended)"
    assert world.master.job_change.rescaling.retry_soon


@pytest.mark.parametrize(
    ("request_of", "obstacle"),
    [
        (lambda: ev.StopRequested("s", "memory://sp"), "a stop of the job was requested"),
        (lambda: ev.SavepointRequested("s", "memory://sp"), "a savepoint of the job, requested at "),
    ],
)
@pytest.mark.parametrize("queued", [False, True])
def test_what_was_asked_for_first_comes_first(world_of, request_of, obstacle, queued):
    world = world_of().start()
    world.auto_ack = False
    if queued:
        world.pass_time(1000)  # behind the checkpoint under way, which a rescale would take for its own
    world.post(request_of()).post(ask(world, 3))
    assert world.operations["t"].error.startswith(obstacle)
    assert world.operations["t"].error.endswith(" (ask again when it has ended)")
    for _ in range(1 + queued):
        acknowledge(world)
    assert world.operations["s"].uri == "memory://sp"
    assert world.operations["s"].error == ""


def test_a_stop_behind_it_ends_the_rescale_and_the_job(world_of, graph_of):
    world = begun(world_of, graph_of).post(ev.StopRequested("s", "memory://sp"))
    acknowledge(world)
    assert world.operations["t"].error == "a stop of the job was requested (ask again when it has ended)"
    acknowledge(world)
    assert (world.operations["s"].error, world.savepoints) == ("", ["memory://sp"])
    assert world.terminal.state == "FINISHED"
    assert_published_once(world)


def test_a_savepoint_and_a_checkpoint_behind_it_wait_for_the_new_run(world_of, graph_of):
    world = begun(world_of, graph_of)
    world.post(ev.SavepointRequested("p", "memory://sp")).post(ev.CheckpointRequested("c"))
    acknowledge(world)
    assert (world.operations["t"].error, widths(world)[:2]) == ("", ({3}, {"run-t"}))
    assert set(world.operations) == {"t"}
    acknowledge(world)
    acknowledge(world)
    assert (world.operations["p"].uri, world.savepoints) == ("memory://sp", ["memory://sp"])
    assert (world.operations["p"].error, world.operations["c"].error) == ("", "")
    assert world.manifests()[-1].run_id == "run-t"


@pytest.mark.parametrize("recorded", [False, True])
def test_a_stop_while_the_workers_change_is_carried_out_behind_it(world_of, recorded):
    world = world_of().start().pass_time(1500)
    record = world._record

    def late(command):
        losses = list(world.queue)
        world.queue.clear()
        if not recorded:
            world.queue.append(ev.StopRequested("s", "memory://sp"))
        record(command)
        if recorded:
            world.queue.append(ev.StopRequested("s", "memory://sp"))  # the old workers have not left yet
        world.queue.extend(losses)

    world._record = late
    world.post(ask(world, 3))
    assert (world.operations["t"].error, world.operations["s"].error) == ("", "")
    assert world.terminal.state == "FINISHED"
    assert world.manifests()[-1].run_id == "run-t"
    assert_published_once(world)


def test_a_cancelled_rescale_keeps_no_request_waiting(world_of, graph_of):
    world = begun(world_of, graph_of).post(ev.SavepointRequested("p", "memory://sp"))
    world._record = lambda _: world.queue.extend([ev.CancelRequested(), ev.StopRequested("s", "memory://sp")])
    acknowledge(world)
    assert world.operations["s"].error.startswith("the job is not running (cancel it;")
    world.post(ev.ChangeNotRecorded("the store is down"))
    assert world.operations["p"].error == "the job is CANCELED"
    assert world.terminal.state == "CANCELED"


def test_slots_that_vanish_before_the_checkpoint_end_the_rescale(world_of, graph_of):
    world = world_of(graph_of()).start().pass_time(1500)
    world.free, world.auto_ack = [Slot("other", 0)], False
    world.post(ask(world, 3)).post(ev.TaskManagerLost("other", "silent"))
    acknowledge(world)
    assert "other" in world.operations["t"].error
    assert story(world)[-1] == f"abandoned: {world.operations['t'].error}"
    assert (widths(world), world.free) == (({2}, {"r"}, 4), [])


def test_the_checkpoint_of_an_abandoned_rescale_is_not_that_of_the_next(world_of, graph_of):
    world = world_of(graph_of()).start().pass_time(1500)
    world.free, world.auto_ack = [Slot("other", 0)], False
    world.post(ask(world, 3)).post(ev.TaskManagerLost("other", "silent"))
    assert "other" in world.operations["t"].error
    world.free = [Slot("tm", 7)]
    world.post(ask(world, 3, "u"))
    acknowledge(world)
    assert ("u" in world.operations, widths(world)[1]) == (False, {"r"})
    acknowledge(world)
    assert (world.operations["u"].error, widths(world)[:2]) == ("", ({3}, {"run-u"}))
    assert set(world.operations) == {"t", "u"}
    assert_published_once(world)


def test_a_job_at_its_end_is_not_rescaled(world_of, graph_of):
    world = world_of(graph_of(bounded=True)).start()
    world.auto_ack = False
    world.end_input().post(ask(world, 3))
    acknowledge(world)
    assert world.operations["t"].error
    assert world.terminal.state == "FINISHED"
    assert_published_once(world)


@pytest.mark.parametrize("recorded", [False, True])
def test_the_next_leader_finishes_it_if_it_was_recorded_and_else_goes_on_as_before(world_of, graph_of, recorded):
    first = begun(world_of, graph_of)
    graph = ask(first, 3).graph
    if recorded:
        first._execute = keep_until_recorded(first)
    else:
        first.record_error = "killed"
    acknowledge(first)
    first.lost = True
    second = world_of(graph if recorded else graph_of(), generation=2, run_id="run-t" if recorded else "r")
    second.output = first.output
    second.start().pass_time(3000)
    assert widths(second)[:2] == (({3}, {"run-t"}) if recorded else ({2}, {"r"}))
    assert_published_once(second)


def keep_until_recorded(world):
    execute = type(world)._execute

    def go(command):
        if world.recorded is None:
            execute(world, command)

    return go


STRIKES = {
    "worker": kill_one,
    "taskmanager": lose_all,
    "cancel": lambda world: world.queue.append(ev.CancelRequested()),
    "cancel-now": lambda world: world.queue.appendleft(ev.CancelRequested()),
    "second": lambda world: world.queue.append(ask(world, 1, "second")),
    "stop": lambda world: world.queue.append(ev.StopRequested("s", "memory://sp")),
    "savepoint": lambda world: world.queue.appendleft(ev.SavepointRequested("p", "memory://sp")),
    "checkpoint-fails": lambda world: setattr(world, "append_error", "store is down"),
}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("name", STRIKES)
def test_whatever_happens_in_between_at_any_step(world_of, graph_of, store, name, parallelism):
    """The strike comes behind event 0, 1, 2... of the rescale, until there are no more events."""
    ends = set()
    for step in range(100):
        for key in store.list(""):
            store.delete(key)
        world = world_of(graph_of(checkpoint_tolerated_failures=3)).start().pass_time(1500)
        world.behind[world.handled + step] = STRIKES[name]
        world.post(ask(world, parallelism))
        if world.behind:
            break
        world.append_error = None
        world.pass_time(20_000)
        assert "t" in world.operations or world.terminal is not None
        told = world.operations["t"].error if "t" in world.operations else "the job has ended"
        run = world.recorded.run_id if world.recorded is not None else "r"
        if world.terminal is None:
            expected = 1 if world.operations.get("second") and not world.operations["second"].error else parallelism
            assert widths(world)[0] == ({2} if told and not world.operations.get("second") else {expected})
            alive = "tm2" if name == "taskmanager" else "tm"
            assert sum(s.taskmanager_id == alive for s in world.free) == 8 - next(iter(widths(world)[0]))
        else:
            assert world.manifests("end")[-1].run_id == run
            assert len(world.terminal.state) > 0
        assert_published_once(world)
        ends.add((told == "", world.terminal is None))
    assert step > 5
    assert ends


def leaving(world, *taskmanagers, token="t"):
    return ev.RescaleRequested(token, f"run-{token}", world.master.graph, taskmanagers)


def places(world):
    return {slot.taskmanager_id for slot in (w.slot for w in world.master.deployment.workers.values())}


def test_a_job_leaves_a_taskmanager_from_a_checkpoint_and_gives_its_slots_back(world_of):
    world = world_of().start().pass_time(1500)
    held = set(world.master._held.slots)
    world.free = [Slot("tm2", i) for i in range(8)]
    cut = len(world.manifests()) + 1
    world.post(leaving(world, "tm"))
    assert world.operations["t"].error == ""
    assert widths(world)[1] == {"run-t"}
    assert places(world) == {"tm2"}
    assert {t.restored_checkpoint for w in world.workers.values() for t in w.tasks} == {cut}
    assert held <= set(world.free)
    assert world.master.restarts == 0
    assert "away from tm" in story(world)[0]
    assert_published_once(world.pass_time(5000))


def test_a_job_is_asked_to_leave_only_when_that_can_begin(world_of):
    world = world_of()

    def may_rescale():
        return world.master.may_rescale(world.clock.now_ms())

    assert not may_rescale()
    world.start().pass_time(1500)
    assert may_rescale()
    world.auto_ack = False
    world.post(ask(world, 3))
    assert not may_rescale(), "another rescale is under way"
    acknowledge(world)
    assert may_rescale()
    world.post(ev.SavepointRequested("sp", "memory://sp"))
    assert not may_rescale(), "its savepoint is not complete"


def test_a_job_that_holds_nothing_there_stays(world_of):
    world = world_of().start().pass_time(1500)
    before = set(world.workers)
    world.post(leaving(world, "other"))
    assert world.operations["t"].error == ""
    assert set(world.workers) == before


def asked_slots(world, *, answered=True):
    """Return the list that collects the counts of all requests for slots; `answered`: whether the world sees them."""
    counts, handle = [], world.master.handle

    def handled(*given):
        commands = handle(*given)
        counts.extend(c.count for c in commands if isinstance(c, RequestSlots))
        return [c for c in commands if answered or not isinstance(c, RequestSlots)]

    world.master.handle = handled
    return counts


def test_a_job_that_finds_no_other_slots_stays(world_of):
    world = world_of().start().pass_time(1500)
    before, world.free, counts = set(world.workers), [], asked_slots(world)
    world.post(leaving(world, "tm"))
    assert world.operations["t"].error.startswith("no slots: ")
    assert set(world.workers) == before
    assert counts == [len(before), 0]


def test_a_rescale_that_waits_for_slots_withdraws_its_request_when_the_deployment_ends(world_of):
    """A refusal that came later would fail the job, which runs again."""
    world = world_of().start().pass_time(1500)
    counts = asked_slots(world, answered=False)
    world.post(ask(world, 3))
    kill_one(world)
    world.post(ev.Tick())
    assert world.operations["t"].error
    assert counts == [1, 0]
    world.pass_time(5000)
    assert world.master.status.state is JobStatus.RUNNING
