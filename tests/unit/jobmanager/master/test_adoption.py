"""A new leader and the workers of the leader before it: the whole newest attempt goes on, or the job restarts."""

import msgspec
import pytest

from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.rpc import messages as msg


@pytest.fixture
def taken_over(world_of, graph_of):
    """Return a leader and its successor, before any TaskManager has registered with it."""

    def make(checkpoints=2, **options):
        first = world_of(graph_of(**options)).start()
        first.pass_time(1_000 * checkpoints)
        return first, world_of(graph_of(**options), generation=2).take_over(first)

    return make


def restarted(world):
    return world.master.status.state is JobStatus.RUNNING and world.master.deployment.ids.attempt >= 2 << 16


def adopted(world):
    return world.master.status.state is JobStatus.RUNNING and world.master.deployment.ids.attempt < 2 << 16


def test_a_job_waits_for_its_workers_and_goes_on_with_them(taken_over):
    _first, second = taken_over()
    assert second.master.status.state is JobStatus.RECONCILING
    one, other = second.workers
    second.register(one)
    assert second.master.status.state is JobStatus.RECONCILING
    second.register(other)
    assert adopted(second)
    assert second.resolved == [], "nothing is fenced: the sinks go on"
    assert not any(isinstance(message, msg.DeployTasks) for _, message in second.sent)
    second.pass_time(3_000)
    ids = [manifest.checkpoint_id for manifest in second.manifests()]
    assert ids == sorted(set(ids))
    assert ids[0] > 1_000, "an id of the leader before may be used again"
    assert set(second.output.values()) == {1}


@pytest.mark.parametrize("lost", [False, True])
def test_no_id_of_the_leader_before_is_used_again_however_many_checkpoints_failed(taken_over, lost):
    _first, second = taken_over()
    one, other = second.workers
    second.workers[one].newest_checkpoint = 5_000
    second.register(one)
    if lost:
        second.kill(one)
    second.register(other).pass_time(3_000)
    assert restarted(second) if lost else adopted(second)
    assert second.manifests()[-1].checkpoint_id > 5_000


def test_the_permit_that_the_leader_before_could_not_send_is_sent_again(world_of, graph_of):
    first = world_of(graph_of()).start()
    first.deaf.add(msg.CheckpointCompleted)
    first.pass_time(1_000)
    assert first.manifests()
    assert not first.output
    second = world_of(graph_of(), generation=2)
    second.auto_ack = False
    second.take_over(first).register()
    assert adopted(second)
    assert {permit.generation for permit in second.permits} == {2}
    assert len(second.output) == 2


def test_the_first_checkpoint_of_a_new_leader_is_taken_at_once(taken_over):
    """Its barrier replaces one of the leader before that may not have reached all sources."""
    _first, second = taken_over(checkpoint_interval_ms=600_000, checkpoints=700)
    second.register()
    assert adopted(second)
    assert second.manifests()[-1].checkpoint_id > 1_000


def test_splits_stay_where_they_are_and_new_ones_are_found(taken_over):
    first, second = taken_over()
    before = {subtask: list(splits) for subtask, splits in first.splits.items()}
    second.discovered = (*first.discovered, {"id": "t-3"})
    second.register()
    assert adopted(second)
    assert [(splits, no_more) for _, splits, no_more in second.assigned] == [(("t-3",), False)]
    assert all(second.splits[subtask][: len(splits)] == splits for subtask, splits in before.items())


def test_a_bounded_job_goes_on_to_its_end(taken_over):
    _first, second = taken_over(bounded=True)
    second.register()
    assert adopted(second)
    assert second.assigned == []
    second.end_input().pass_time(5_000)
    assert second.terminal.state == "FINISHED"


def test_an_input_that_ended_before_is_not_waited_for(taken_over):
    _first, second = taken_over(bounded=True)
    for worker in second.workers.values():
        answer = worker.told(2)
        tasks = tuple(msgspec.structs.replace(task, input_ended=True) for task in answer.tasks)
        answer = msgspec.structs.replace(answer, tasks=tasks)
        worker.told = lambda _generation, answer=answer: answer
    second.register().pass_time(5_000)
    assert second.terminal.state == "FINISHED"


def test_a_failure_after_the_adoption_restarts_the_job_from_its_newest_checkpoint(taken_over):
    _first, second = taken_over()
    second.register().pass_time(1_000)
    newest = second.manifests()[-1].checkpoint_id
    second.kill(next(iter(second.workers))).pass_time(10_000)
    assert restarted(second)
    assert second.attempts == Attempts(second.master.deployment.ids.attempt)
    assert second.master.deployment.recovered.plan.restored.checkpoint_id >= newest
    assert set(second.output.values()) == {1}


def test_subtasks_keep_their_slots_when_the_workers_are_found_in_another_order(taken_over):
    def slots(world):
        deployment = world.master.deployment
        return {e.id.subtask: deployment.workers[e.worker_id].slot for e in deployment.executions.values()}

    first, second = taken_over()
    before = slots(first)
    one, other = second.workers
    second.register(other)
    second.register(one)
    assert adopted(second)
    second.kill(one).pass_time(3_000)
    assert restarted(second)
    assert slots(second) == before


def test_a_job_cancelled_before_a_checkpoint_of_its_new_leader_leaves_its_output_open(world_of, graph_of):
    first = world_of(graph_of()).start()
    first.deaf.add(msg.CheckpointCompleted)
    first.pass_time(1_000)
    second = world_of(graph_of(), generation=2)
    second.deaf.add(msg.CheckpointCompleted)
    second.auto_ack = False
    second.take_over(first).register().post(ev.CancelRequested()).pass_time(1_000)
    assert second.terminal.state == "CANCELED"
    third = world_of(graph_of(), generation=3, run_id="r2").start()
    assert len(third.resolved[0].committables) == 2, "nobody publishes it"


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: msgspec.structs.replace(answer, run_id="other"),
        lambda answer: msgspec.structs.replace(answer, attempt=answer.attempt + 1),
        lambda answer: msgspec.structs.replace(answer, stopping=True),
        lambda answer: msgspec.structs.replace(answer, tasks=answer.tasks[:-1]),
        lambda answer: msgspec.structs.replace(answer, tasks=()),
        lambda answer: msgspec.structs.replace(
            answer, tasks=tuple(msgspec.structs.replace(task, subtask=0) for task in answer.tasks)
        ),
        lambda answer: msgspec.structs.replace(
            answer, tasks=tuple(msgspec.structs.replace(task, state="FAILED") for task in answer.tasks)
        ),
        lambda answer: msgspec.structs.replace(
            answer, tasks=tuple(msgspec.structs.replace(task, splits=None) for task in answer.tasks)
        ),
        lambda answer: msgspec.structs.replace(
            answer, tasks=tuple(msgspec.structs.replace(task, splits=("t-0", "t-1", "t-2")) for task in answer.tasks)
        ),
    ],
    ids=[
        "run",
        "attempt",
        "stop",
        "subtask missing",
        "no task",
        "subtask twice",
        "failed",
        "unassigned",
        "split twice",
    ],
)
def test_whatever_is_not_the_whole_newest_attempt_is_killed(taken_over, change):
    _first, second = taken_over()
    last = list(second.workers.values())[-1]
    answer = change(last.told(2))
    last.told = lambda _generation: answer
    old = set(second.workers)
    second.register().pass_time(3_000)
    assert restarted(second)
    assert not old & set(second.workers)
    assert len(second.free) == 6, "slots were lost"
    second.pass_time(3_000)
    assert set(second.output.values()) == {1}


def test_a_job_whose_workers_do_not_come_restarts_after_a_while(taken_over):
    _first, second = taken_over()
    one, late = second.workers
    second.register(one).pass_time(1_900)
    assert second.master.status.state is JobStatus.RECONCILING
    second.pass_time(200)
    assert restarted(second)
    second.register(late)
    assert late not in second.workers, "its tasks would write beside those of the new attempt"


def test_a_worker_lost_meanwhile_restarts_the_job_at_once(taken_over):
    _first, second = taken_over()
    one, other = second.workers
    second.register(one).kill(one)
    assert second.master.status.state is not JobStatus.RECONCILING
    assert other in second.workers
    second.register(other).pass_time(3_000)
    assert restarted(second)
    assert len(second.free) == 6, "the slot of the lost worker is nobody's"


def test_without_an_attempt_in_the_lease_nothing_is_waited_for(world_of, graph_of):
    first = world_of(graph_of()).start()
    first.attempts = Attempts()
    second = world_of(graph_of(), generation=2).take_over(first)
    assert restarted(second)


def test_tasks_are_sent_once_their_attempt_is_in_the_lease(world_of):
    world = world_of()
    execute, held = world._execute, []
    world._execute = lambda command: (
        held.append(command) if isinstance(command, cmd.RecordAttempt) else execute(command)
    )
    world.start()
    assert not any(isinstance(message, msg.DeployTasks) for _, message in world.sent)
    assert world.master.deployment.waiting_for() == "the job's lease"
    execute(held[0])
    world.post(ev.Tick())
    assert world.master.status.state is JobStatus.RUNNING


def test_a_job_is_cancelled_while_it_waits(taken_over):
    _first, second = taken_over()
    second.register(next(iter(second.workers))).post(ev.CancelRequested()).pass_time(1_000)
    assert second.terminal.state == "CANCELED"


def test_requests_wait_for_the_adoption(taken_over):
    _first, second = taken_over()
    second.post(ev.SavepointRequested("s", "memory://root/s"))
    assert "s" not in second.operations
    second.register().pass_time(1_000)
    assert second.operations["s"].error == ""
