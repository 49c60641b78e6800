"""The small deciders: states, restarts, slots, splits, regions."""

from __future__ import annotations

import msgspec
import pytest

from penstock.config.settings import JobSettings, ResourceProfile, RestartStrategy
from penstock.config.slot_resources import ANY, wanted_of
from penstock.core.errors import Cause, cause_of
from penstock.graph.execution_graph import PlanIds
from penstock.jobmanager.cluster.slot_pool import Grant, Refuse, SlotPool
from penstock.jobmanager.deploy import job_status as status
from penstock.jobmanager.deploy import job_steps
from penstock.jobmanager.deploy.deployment import Deployment, SplitAssigner, Worker
from penstock.jobmanager.deploy.failover import RestartPolicy, restart_decider
from penstock.jobmanager.deploy.held_slots import HeldSlots
from penstock.jobmanager.deploy.job_status import TRANSITIONS, JobStatus, StatusMachine
from penstock.jobmanager.deploy.job_steps import Step, StepMachine
from penstock.jobmanager.messages.commands import ReleaseSlots
from penstock.jobmanager.messages.placement import Slot, place


def drawn_in(module):
    """Return the transitions that are drawn in a module's docstring."""
    drawn = {}
    for line in (module.__doc__ or "").splitlines():
        left, arrow, right = line.partition("->")
        if arrow and left.strip().isupper():
            drawn[left.strip()] = set(right.split()) - {"."}
    return drawn


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


def test_slots_are_granted_whole_and_spread_and_a_large_request_holds_up_no_small_one():
    pool = SlotPool(timeout_ms=100)
    assert pool.request("a", 3, 0) == []
    late = "; after 0 s without them the start fails and the restart strategy decides"
    assert pool.waiting("a", {}) == f"3 slots, no TaskManager is registered{late}"
    assert pool.add("tm1", "h1", 2) == []
    (small,) = pool.request("b", 1, 0)
    assert (small.job_id, len(small.slots)) == ("b", 1)
    assert pool.waiting("a", {"b": "totals"}) == f"3 slots, 1 of 2 is free (totals holds 1){late}"
    assert pool.waiting("b", {}) == ""
    (grant,) = pool.add("tm2", "h2", 2)
    assert isinstance(grant, Grant)
    assert {s.taskmanager_id for s in grant.slots} == {"tm1", "tm2"}
    assert len(set(grant.slots)) == 3
    assert (pool.free, pool.total) == (0, 4)
    pool.release("a", grant.slots[:1])
    assert pool.free == 1
    pool.release("a")
    assert pool.free == 3


def managed(megabytes):
    return ResourceProfile(group="", managed_memory_bytes=megabytes << 20)


def test_a_slot_with_too_little_managed_memory_is_not_given_and_the_wait_says_what_to_raise():
    pool = SlotPool(timeout_ms=100)
    pool.add("small", "h", 4, resources=managed(64))
    assert "wants 65 MB of managed memory per slot, but a slot has 64 MB (" in pool.refusal(managed(65))
    assert pool.refusal(managed(64)) == ""
    assert pool.request("a", 2, 0, wanted=managed(100)) == []
    text = pool.waiting("a", {})
    small = "the job wants 100 MB of managed memory per slot, but a slot has 64 MB (lower"
    assert text.startswith(f"2 slots, 4 of 4 are free, 4 too small: {small}")
    assert "raise taskmanager.memory or taskmanager.managed_memory" in text
    assert pool.obtainable(managed(100)) == 0
    (other,) = pool.request("b", 3, 0, wanted=managed(64))
    assert {slot.taskmanager_id for slot in other.slots} == {"small"}
    (grant,) = pool.add("large", "h", 2, resources=managed(200))
    assert (grant.job_id, {slot.taskmanager_id for slot in grant.slots}) == ("a", {"large"})
    (refused,) = pool.request("c", 1, 0, wait=False, wanted=managed(65))
    assert "1 of 6 is free, 1 too small: the job wants 65 MB" in refused.reason
    pool.request("c", 1, 0, wanted=managed(65))
    (late,) = pool.tick(100)
    assert "1 too small: the job wants 65 MB of managed memory" in late.reason
    (unknown,) = pool.add("old", "h", 1) or pool.request("c", 1, 0, wanted=managed(1 << 20))
    assert ([slot.taskmanager_id for slot in unknown.slots], pool.refusal(managed(1 << 20))) == (["old"], "")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"cpu_cores": 1.5}, "the job wants 1.5 CPU cores per slot, but a slot has 1 (lower cpu_cores"),
        ({"task_memory_bytes": 3 << 30}, "3072 MB of task memory per slot, but a slot has 2048 MB (lower the job's sl"),
        ({"network_memory_bytes": 65 << 20}, "65 MB of network memory per slot, but a slot has 64 MB (lower"),
        ({"managed_memory_bytes": 513 << 20}, "513 MB of managed memory per slot, but a slot has 512 MB (lower"),
    ],
)
def test_a_slot_has_to_have_all_resources_that_a_job_wants(wanted, told):
    slot = ResourceProfile(
        cpu_cores=1.0, task_memory_bytes=2 << 30, network_memory_bytes=64 << 20, managed_memory_bytes=512 << 20
    )
    pool, needs = SlotPool(timeout_ms=100), ResourceProfile(group="", **wanted)
    pool.add("tm", "h", 2, resources=slot)
    assert told in pool.refusal(needs)
    assert pool.request("a", 1, 0, wanted=needs) == []
    assert f"2 of 2 are free, 2 too small: {pool.refusal(needs)}" in pool.waiting("a", {})
    (grant,) = pool.add("twice", "h", 1, resources=twice(slot))
    assert [slot.taskmanager_id for slot in grant.slots] == ["twice"]


def twice(slot):
    return msgspec.convert({k: v * 2 for k, v in msgspec.to_builtins(slot).items() if k != "group"}, ResourceProfile)


def test_a_slot_whose_cores_are_unknown_is_enough():
    pool = SlotPool(timeout_ms=100)
    pool.add("old", "h", 1, resources=ResourceProfile(task_memory_bytes=1 << 30))
    (grant,) = pool.request("a", 1, 0, wanted=ResourceProfile(cpu_cores=64.0))
    assert len(grant.slots) == 1


def test_the_slots_of_a_job_have_the_largest_resources_of_its_groups():
    groups = (ResourceProfile(cpu_cores=2.0, managed_memory_bytes=1), ResourceProfile(group="x", task_memory_bytes=7))
    wanted = wanted_of(JobSettings(slot_resources=groups, managed_memory_bytes=5))
    assert wanted == ResourceProfile(group="", cpu_cores=2.0, task_memory_bytes=7, managed_memory_bytes=5)
    assert wanted_of(JobSettings()) == ANY


def test_of_requests_that_fit_the_oldest_is_served_first():
    pool = SlotPool(timeout_ms=100)
    for job in ("a", "b", "c"):
        pool.request(job, 1, 0)
    assert [grant.job_id for grant in pool.add("tm", "h", 2)] == ["a", "b"]


def test_a_request_of_a_higher_priority_is_served_first_and_holds_back_the_others():
    pool = SlotPool(timeout_ms=100)
    pool.add("tm1", "h", 2)
    pool.request("a", 2, 0)
    assert pool.request("low", 1, 10) == []
    assert pool.request("high", 2, 20, priority=5) == []
    assert "higher" not in pool.waiting("high", {})
    assert ", a job with a higher slot_priority comes first; after" in pool.waiting("low", {})
    assert pool.release("a", (Slot("tm1", 0, "h"),)) == [], "one slot is free, and kept for the higher priority"
    (refused,) = pool.request("grows", 1, 30, wait=False)
    assert (refused.job_id, refused.reason) == ("grows", "1 slot needed, a job with a higher slot_priority comes first")
    assert [grant.job_id for grant in pool.add("tm2", "h", 2)] == ["high", "low"]


def test_a_request_of_a_higher_priority_that_the_cluster_is_too_small_for_or_that_ends_holds_back_nobody():
    pool = SlotPool(timeout_ms=100)
    pool.add("tm", "h", 2)
    pool.request("huge", 3, 0, priority=5)
    (grant,) = pool.request("a", 1, 0)
    assert grant.job_id == "a"
    assert pool.request("high", 2, 10, priority=5) == []
    assert pool.request("b", 1, 20) == []
    refused, granted = pool.tick(110)[-2:]
    assert (refused.job_id, granted.job_id) == ("high", "b")


def test_a_request_that_waits_too_long_is_refused_and_a_new_one_replaces_the_old():
    pool = SlotPool(timeout_ms=100)
    pool.request("a", 3, 0)
    pool.request("a", 2, 50)
    assert pool.tick(149) == []
    (refused,) = pool.tick(150)
    assert isinstance(refused, Refuse)
    assert "2 slots" in refused.reason
    assert pool.add("tm", "h", 2) == []


def test_slots_that_become_free_while_the_jobmanager_ends_go_to_no_waiting_job():
    pool = SlotPool(timeout_ms=100)
    pool.add("a", "h", 2)
    pool.request("running", 2, 0, wait=True)
    assert pool.request("waiting", 1, 0, wait=True) == []
    pool.close()
    assert pool.release("running") == []
    assert pool.free == 2


def test_slots_of_a_dead_taskmanager_are_nobodys():
    pool = SlotPool(timeout_ms=100)
    pool.add("tm", "h", 2)
    pool.request("a", 2, 0)
    pool.remove("tm")
    pool.release("a")
    assert pool.total == 0
    pool.add("tm", "h", 2)
    assert pool.free == 2


def test_a_request_without_waiting_waits_where_the_cluster_can_grow_so_far():
    pool = SlotPool(timeout_ms=100, most=4)
    pool.add("tm1", "h", 1)
    assert pool.obtainable() == 4
    assert pool.request("a", 4, 0, wait=False) == []
    assert pool.pending == 4
    (refused,) = pool.request("b", 5, 0, wait=False)
    assert isinstance(refused, Refuse)
    (grant,) = pool.add("tm2", "h", 3)
    assert grant.job_id == "a"
    assert pool.obtainable() == 0


def test_a_request_for_nothing_withdraws_the_one_that_waits():
    pool = SlotPool(timeout_ms=100, most=4)
    pool.request("a", 2, 0, wait=False)
    assert pool.request("a", 0, 50, wait=False) == []
    assert pool.pending == 0
    assert pool.tick(1_000) == []


def test_declared_slots_are_pending_until_the_job_has_them_and_are_granted_to_nobody():
    pool = SlotPool(timeout_ms=100, most=8)
    pool.declare("a", 6)
    assert pool.add("tm1", "h", 2) == []
    assert (pool.pending, pool.free) == (6, 2)
    pool.request("a", 2, 0, wait=False)
    assert (pool.pending, pool.free) == (4, 0)
    pool.request("a", 3, 0, wait=False)
    pool.request("b", 1, 0)
    assert pool.pending == 3 + 1 + 1
    assert pool.waiting("b", {}).startswith("1 slot, 0 of 2 are free")
    pool.declare("a", 0)
    assert pool.pending == 3 + 1
    pool.declare("a", 6)
    pool.release("a")
    assert pool.pending == 0
    assert pool.free == 1


def test_slots_of_a_drained_taskmanager_are_given_to_nobody():
    pool = SlotPool(timeout_ms=100, most=4)
    pool.add("tm1", "h", 2)
    (grant,) = pool.request("a", 1, 0)
    assert pool.drain("tm1") == {"a"}
    assert (pool.free, pool.total, pool.obtainable(), pool.drained) == (0, 0, 4, ("tm1",))
    assert pool.request("b", 1, 0) == []
    assert pool.release("a", grant.slots) == []
    assert pool.drain("tm1") == frozenset()
    assert pool.free == 0
    (other,) = pool.add("tm2", "h", 2)
    assert {slot.taskmanager_id for slot in other.slots} == {"tm2"}
    pool.remove("tm1")
    assert (pool.free, pool.total, pool.drained) == (1, 2, ())


def test_a_taskmanager_that_registers_again_is_drained_no_longer():
    pool = SlotPool(timeout_ms=100)
    pool.add("tm", "h", 2)
    pool.drain("tm")
    pool.add("tm", "h", 2)
    assert (pool.free, pool.drained) == (2, ())


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


def slots_of(text):
    """Slots of TaskManagers, named by their letters."""
    return [Slot(letter, text[:place].count(letter)) for place, letter in enumerate(text)]


def named(slots):
    return "".join(slot.taskmanager_id for slot in slots)


@pytest.mark.parametrize(
    ("lost", "granted", "order"),
    [
        ("a", "dd", "dbcdbc"),
        ("b", "dc", "adcacc"),
        ("c", "d", "abdab"),
        ("ac", "dddd", "dbddbd"),
        ("ca", "de", "dbeb"),
        ("abc", "defgh", "defgh"),
    ],
)
def test_new_slots_take_the_places_of_lost_ones(lost, granted, order):
    held = HeldSlots()
    held.add(slots_of("abcabc"))
    for taskmanager_id in lost:
        held.taskmanager_lost(taskmanager_id)
    held.add(slots_of(granted))
    assert named(held.slots) == order


def test_places_are_forgotten_when_the_job_gets_smaller_or_changes():
    held = HeldSlots()
    held.add(slots_of("abcd"))
    held.taskmanager_lost("d")
    assert held.trim(2) == [ReleaseSlots(tuple(slots_of("abc")[2:]))]
    held.add(slots_of("e"))
    assert named(held.slots) == "abe"
    held.taskmanager_lost("b")
    held.adopt(slots_of("ea"), (), 2)
    held.add(slots_of("f"))
    assert named(held.slots) == "eaf"


def replaced(prepared, needed):
    """Return held slots whose two workers are killed, with so many prepared workers of those needed."""
    held, slots = HeldSlots(), slots_of("abc")
    held.add(slots)
    held.halt([Worker("old-0", slots[0]), Worker("old-1", slots[1])], 0)
    held.adopt(slots, [Worker(f"new-{n}", slot) for n, slot in enumerate(slots[:prepared])], needed)
    return held


@pytest.mark.parametrize(("prepared", "needed"), [(1, 1), (3, 3)])
def test_prepared_workers_wait_for_the_stop_of_the_old_ones(prepared, needed):
    held = replaced(prepared, needed)
    held.worker_stopped("old-0")
    assert not held.may_start(1)
    held.worker_stopped("old-1")
    assert held.may_start(1)


def test_a_stop_and_an_exit_are_enough():
    held = replaced(3, 3)
    held.worker_exited("old-1")
    held.worker_stopped("old-0")
    assert held.may_start(1)


@pytest.mark.parametrize("lost", [True, False])
def test_workers_that_are_yet_to_start_wait_for_the_exit_of_the_old_ones(lost):
    held = replaced(2, 2) if lost else replaced(0, 2)
    if lost:
        held.worker_exited("new-1")
    for name in ("old-0", "old-1"):
        held.worker_stopped(name)
    assert not held.may_start(1)
    held.worker_exited("old-0")
    assert not held.may_start(1)
    held.worker_exited("old-1")
    assert held.may_start(1)


def test_a_restart_waits_for_the_exit_of_workers_that_had_stopped():
    held = replaced(3, 3)
    for name in ("old-0", "old-1"):
        held.worker_stopped(name)
    prepared, _ = held.take_prepared(3)
    held.halt(prepared, 10)
    for worker in prepared:
        held.worker_stopped(worker.worker_id)
        held.worker_exited(worker.worker_id)
    assert not held.may_start(11)
    held.worker_exited("old-0")
    held.worker_exited("old-1")
    assert held.may_start(11)


def test_a_stop_that_nobody_waits_for_is_ignored():
    held = HeldSlots()
    held.worker_stopped("of an earlier leader")
    assert held.may_start(1)


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
