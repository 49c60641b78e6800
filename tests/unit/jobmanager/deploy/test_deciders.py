"""The small deciders: states, restarts, splits, regions."""

from __future__ import annotations

import pytest
from tests.support.transitions import drawn_in

from penstock.config.settings import RestartStrategy
from penstock.core.errors import Cause, cause_of
from penstock.graph.execution_graph import PlanIds
from penstock.jobmanager.deploy import job_status as status
from penstock.jobmanager.deploy import job_steps
from penstock.jobmanager.deploy.deployment import Deployment, SplitAssigner
from penstock.jobmanager.deploy.failover import RestartPolicy, restart_decider
from penstock.jobmanager.deploy.job_status import TRANSITIONS, JobStatus, StatusMachine
from penstock.jobmanager.deploy.job_steps import Step, StepMachine
from penstock.jobmanager.messages.placement import Slot, place


@pytest.mark.parametrize("module", [status, job_steps])
def test_the_drawn_transitions_are_the_table(module):
    assert drawn_in(module) == {before.name: {s.name for s in after} for before, after in module.TRANSITIONS.items()}


def test_a_step_that_does_not_follow_is_refused():
    machine = StepMachine()
    machine.to(Step.WAITING)
    machine.to(Step.STARTING, 7)
    with pytest.raises(ValueError, match="a job in step STARTING cannot go to DONE"):
        machine.to(Step.DONE)
    assert (machine.step, machine.deadline_ms) == (Step.STARTING, 7)
    assert (machine.is_due(6), machine.is_due(7)) == (False, True)
    machine.to(Step.RUNNING)
    assert not machine.is_due(10_000)


def test_every_state_but_the_last_ones_can_end():
    for state in JobStatus:
        reached, todo = set(), [state]
        while todo:
            for following in TRANSITIONS[todo.pop()] - reached:
                reached.add(following)
                todo.append(following)
        assert state.terminal or any(s.terminal for s in reached)


def test_a_state_that_does_not_follow_changes_nothing():
    machine = StatusMachine(1)
    assert not machine.to(JobStatus.FAILED, 2)
    assert machine.state is JobStatus.CREATED
    assert machine.to(JobStatus.RUNNING, 3)
    assert machine.entered_ms == {JobStatus.CREATED: 1, JobStatus.RUNNING: 3}


def delays(strategy, times, chance=0.5):
    decider = restart_decider(strategy)
    return [decider.on_failure(now, chance) for now in times]


def test_fixed_delay():
    assert delays(RestartStrategy(kind="fixed-delay", attempts=2, delay_ms=7), [0, 1, 2]) == [7, 7, None]


def test_no_restart():
    assert delays(RestartStrategy(kind="none"), [0]) == [None]


def test_failure_rate_forgets_old_failures():
    strategy = RestartStrategy(kind="failure-rate", max_failures_per_interval=2, rate_interval_ms=100, delay_ms=5)
    assert delays(strategy, [0, 10, 105, 111, 112]) == [5, 5, 5, 5, None]


def test_exponential_delay_grows_to_its_limit_and_starts_anew_after_a_quiet_time():
    strategy = RestartStrategy(delay_ms=100, max_delay_ms=500, backoff_multiplier=2.0, reset_after_ms=1000)
    assert delays(strategy, [0, 100, 300, 700, 1200, 5000]) == [100, 200, 400, 500, 500, 100]
    assert delays(strategy, [0], chance=0.0) == [90]
    assert restart_decider(strategy).on_failure(0, 0.999) == 109


def test_exponential_delay_survives_any_number_of_failures_and_is_bounded_by_default():
    assert delays(RestartStrategy(jitter=0.0, attempts=3000), range(3000))[-1] == 60_000
    assert [delay is None for delay in delays(RestartStrategy(), range(1501))] == [*[False] * 1500, True]


def asked(policy, *causes, at=0):
    return [policy.on_failure(cause, at, 0.5) is not None for cause in causes]


@pytest.mark.parametrize("kind", ["fixed-delay", "exponential-delay", "failure-rate", "none"])
def test_no_strategy_retries_what_no_restart_can_help(kind):
    assert asked(RestartPolicy(RestartStrategy(kind=kind), proven=True), Cause.PERMANENT) == [False]


def test_an_error_of_user_code_is_retried_only_once_a_checkpoint_is_complete():
    policy = RestartPolicy(RestartStrategy())
    assert asked(policy, Cause.TRANSIENT, Cause.USER_CODE) == [True, False]
    policy.checkpointed()
    assert asked(policy, Cause.USER_CODE) == [True]


def test_errors_of_user_code_in_a_row_end_the_job_and_a_long_run_with_a_checkpoint_begins_a_new_row():
    policy = RestartPolicy(
        RestartStrategy(user_code_attempts=2, delay_ms=100, jitter=0.0, reset_after_ms=1000), proven=True
    )
    assert asked(policy, Cause.USER_CODE, Cause.TRANSIENT, Cause.USER_CODE) == [True, True, True]
    policy.checkpointed()  # it may be complete before the row that fails is read
    assert asked(policy, Cause.USER_CODE, at=1000) == [False]
    policy = RestartPolicy(
        RestartStrategy(user_code_attempts=1, delay_ms=100, jitter=0.0, reset_after_ms=1000), proven=True
    )
    assert asked(policy, Cause.USER_CODE) == [True]
    policy.checkpointed()
    assert asked(policy, Cause.USER_CODE, at=1100) == [True]
    assert asked(policy, Cause.USER_CODE, at=9000) == [False], "a long run without a checkpoint"


def test_a_strategy_that_counts_for_itself_counts_errors_of_user_code_too():
    policy = RestartPolicy(RestartStrategy(kind="fixed-delay", attempts=2))
    assert asked(policy, *[Cause.USER_CODE] * 3) == [True, True, False]


def sent(assigner):
    return {subtask: ([s["id"] for s in splits], end) for subtask, (splits, end) in assigner.take().items()}


def test_splits_are_balanced_and_every_subtask_of_a_bounded_source_is_told_the_end():
    assigner = SplitAssigner(3, bounded=True, restored=None)
    assert sent(assigner) == {}
    assigner.discovered([{"id": f"t-{i}"} for i in (10, 2, 1, 9)])
    assert sent(assigner) == {0: (["t-1", "t-10"], True), 1: (["t-2"], True), 2: (["t-9"], True)}
    assert sent(assigner) == {}


def test_a_subtask_without_splits_hears_the_end_too():
    assigner = SplitAssigner(2, bounded=True, restored=None)
    assigner.discovered([{"id": "t-0"}])
    assert sent(assigner) == {0: (["t-0"], True), 1: ([], True)}


def test_later_splits_go_to_whoever_has_fewest_and_nothing_is_given_twice():
    assigner = SplitAssigner(2, bounded=False, restored=[{"id": "t-0"}, {"id": "t-1"}, {"id": "t-2"}])
    assert sent(assigner) == {0: (["t-0", "t-2"], False), 1: (["t-1"], False)}
    assigner.discovered([{"id": "t-1"}, {"id": "t-3"}])
    assert sent(assigner) == {1: (["t-3"], False)}
    assert assigner.known == {"t-0", "t-1", "t-2", "t-3"}


def test_restored_splits_keep_their_positions_and_live_ones_are_spread_first():
    finished = [{"id": f"t-{i}", "finished": True} for i in range(3)]
    assigner = SplitAssigner(
        2, bounded=True, restored=[*finished, {"id": "t-8", "state": {"offset": 5}}, {"id": "t-9"}]
    )
    messages = assigner.take()
    where = {s["id"]: subtask for subtask, (splits, _) in messages.items() for s in splits if not s.get("finished")}
    assert where == {"t-8": 0, "t-9": 1}
    assert {"id": "t-8", "state": {"offset": 5}} in messages[0][0]


def test_every_subtask_has_a_worker_and_each_need_one_slot(graph_of):
    graph = graph_of(parallelism=2)
    placement = place(graph, ["w0", "w1"])
    assert {subtask for _, subtask in placement} == {0, 1}
    assert placement[graph.vertices[0].id, 1] == placement[graph.vertices[1].id, 1] == "w1"
    with pytest.raises(ValueError, match="1 workers for 2 slots"):
        place(graph, ["w0"])
    assert Slot("a", 1) < Slot("b", 0)


def test_worker_ids_which_name_files_are_never_repeated_however_often_a_job_restarts(graph_of):
    def ids(restarts):
        number = (3 << 16) + restarts
        plan = PlanIds(job_id="a" * 32, run_id="r", generation=3, attempt=number, epoch=number)
        made = Deployment(graph_of(), plan, "memory://root").slots_granted([Slot("tm", 0), Slot("tm", 1)])
        return {command.worker_id for command in made}

    assert len(ids(0) | ids(1) | ids(1 << 16) | ids((1 << 16) + 1)) == 8


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("BadRecordError: x", Cause.PERMANENT),
        ("NotFoundError: no job", Cause.PERMANENT),
        ("penstock.core.errors.StateMismatchError: x", Cause.PERMANENT),
        ("FunctionLoadError: map 'm': the function cannot be loaded", Cause.PERMANENT),
        ("StateTooLargeError: keyed state of n needs 5 bytes", Cause.PERMANENT),
        ("RequirementsError: the job has requirements", Cause.USER_CODE),
        ("UserFunctionError: map 'm': ValueError: x", Cause.USER_CODE),
        ("SystemExit: 3", Cause.USER_CODE),
        ("ValueError: BadRecordError: x", Cause.TRANSIENT),
        ("worker w was lost: killed", Cause.TRANSIENT),
        ("", Cause.TRANSIENT),
    ],
)
def test_the_cause_of_an_error(error, cause):
    assert cause_of(error) is cause


def test_a_subtask_without_splits_is_told_so_once_of_an_endless_source() -> None:
    assigner = SplitAssigner(2, bounded=False, restored=None)
    assert assigner.take() == {}
    assigner.discovered([{"id": "t-0"}])
    assert assigner.take() == {0: (({"id": "t-0"},), False), 1: ((), False)}
    assert assigner.take() == {}
    assigner.discovered([{"id": "t-0"}, {"id": "t-1"}])
    assert assigner.take() == {1: (({"id": "t-1"},), False)}


def test_the_delay_begins_anew_after_a_checkpoint_and_a_run_as_long_as_the_wait():
    settings = RestartStrategy(delay_ms=1_000, max_delay_ms=60_000, jitter=0.0)
    policy = RestartPolicy(settings)
    delays = [policy.on_failure(Cause.TRANSIENT, 0, 0.5) for _ in range(5)]
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000]
    assert policy.on_failure(Cause.TRANSIENT, 33_000, 0.5) == 32_000  # without a checkpoint
    policy.checkpointed()
    assert policy.on_failure(Cause.TRANSIENT, 66_000, 0.5) == 60_000  # after a short run
    policy.checkpointed()
    assert policy.on_failure(Cause.TRANSIENT, 186_000, 0.5) == 1_000
