"""When cuts are taken, when they are complete, and what their failures mean."""

from __future__ import annotations

import itertools

import pytest

from penstock.checkpoint.coordinator import (
    AbortCheckpoint,
    Ack,
    AppendCheckpoint,
    CheckpointCoordinator,
    CoordinatorSettings,
    FailJob,
    LetOvertake,
    RefuseRequest,
    TriggerBarrier,
)
from penstock.core.elements import BarrierKind
from penstock.core.snapshot import CheckpointMetrics, SubtaskSnapshot
from penstock.graph.task_deployment import ExecutionId

ALL = [ExecutionId("v", 0, 1), ExecutionId("v", 1, 1)]


def make(processed=lambda _: 0.0, **settings):
    values = {"interval_ms": 100, "timeout_ms": 1000} | settings
    return CheckpointCoordinator(
        CoordinatorSettings(**values), ALL, 7, name_of=lambda e: f"{e.vertex_id} {e.subtask}", processed=processed
    )


def ack(execution, now=0):
    return Ack(SubtaskSnapshot(vertex_id=execution.vertex_id, subtask=execution.subtask), CheckpointMetrics(), now)


def only(commands, kind):
    found = [c for c in commands if isinstance(c, kind)]
    assert len(found) == 1, commands
    return found[0]


def complete(coordinator, number, now=0):
    assert coordinator.ack(number, ALL[0], ack(ALL[0])) == []
    only(coordinator.ack(number, ALL[1], ack(ALL[1])), AppendCheckpoint)
    return coordinator.appended(number, now)


def test_one_at_a_time_by_interval():
    coordinator = make()
    assert coordinator.start(0) == []
    assert coordinator.wake_ms() == 100
    assert coordinator.tick(99) == []
    assert only(coordinator.tick(100), TriggerBarrier).pending.checkpoint_id == 7
    assert coordinator.tick(250) == []
    assert only(complete(coordinator, 7, 300), TriggerBarrier).pending.checkpoint_id == 8


def test_after_a_failure_the_first_one_comes_sooner_and_the_next_ones_as_ever():
    coordinator = make()
    coordinator.start(0, resumed=True)
    assert coordinator.wake_ms() == 25
    only(coordinator.tick(25), TriggerBarrier)
    complete(coordinator, 7, 30)
    assert coordinator.wake_ms() == 125


def test_the_pause_counts_from_the_end():
    coordinator = make(min_pause_ms=500)
    coordinator.start(0)
    coordinator.tick(100)
    assert complete(coordinator, 7, 200) == []
    assert coordinator.wake_ms() == 700
    only(coordinator.tick(700), TriggerBarrier)


def test_nothing_is_complete_without_every_ack_of_this_deployment():
    coordinator = make()
    coordinator.start(0)
    coordinator.tick(100)
    assert coordinator.ack(7, ExecutionId("v", 1, 0), ack(ALL[1])) == []
    assert coordinator.ack(6, ALL[0], ack(ALL[0])) == []
    assert coordinator.ack(7, ALL[0], ack(ALL[0])) == []
    assert coordinator.ack(7, ALL[0], ack(ALL[0])) == []
    only(coordinator.ack(7, ALL[1], ack(ALL[1])), AppendCheckpoint)
    assert coordinator.ack(7, ALL[1], ack(ALL[1])) == []


def test_a_timeout_aborts_and_names_who_is_missing():
    coordinator = make(tolerated_failures=1)
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.ack(7, ALL[0], ack(ALL[0]))
    commands = coordinator.tick(1100)
    assert only(commands, AbortCheckpoint).reason == "not complete after 1000 ms: 1 subtask missing (v 1)"
    assert only(commands, TriggerBarrier).pending.checkpoint_id == 8


def test_a_timeout_counts_as_no_failure_while_a_missing_subtask_processes_rows():
    rows = dict.fromkeys(ALL, 10.0)
    coordinator = make(processed=rows.__getitem__)
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.ack(7, ALL[0], ack(ALL[0]))
    rows[ALL[1]] = 11.0
    commands = coordinator.tick(1100)
    assert only(commands, AbortCheckpoint).reason.endswith("1 subtask missing (v 1), but processing rows")
    assert only(commands, TriggerBarrier).pending.checkpoint_id == 8
    assert coordinator.consecutive_failures == 0
    rows[ALL[0]] = 20.0  # acknowledged: its rows do not say that the missing one moves
    coordinator.ack(8, ALL[0], ack(ALL[0]))
    only(coordinator.tick(2100), FailJob)


def test_a_stop_that_times_out_fails_the_job_also_while_it_processes_rows():
    rows = dict.fromkeys(ALL, 10.0)
    coordinator = make(processed=rows.__getitem__)
    coordinator.start(0)
    coordinator.request(BarrierKind.STOP, "r", 10)
    rows[ALL[0]] = rows[ALL[1]] = 11.0
    only(coordinator.tick(1010), FailJob)


def test_an_append_under_way_is_not_timed_out_or_declined():
    coordinator = make()
    coordinator.start(0)
    coordinator.tick(100)
    for execution in ALL:
        coordinator.ack(7, execution, ack(execution))
    assert coordinator.tick(5000) == []
    assert coordinator.decline(7, ALL[0], "late", 5000) == []
    assert coordinator.wake_ms() is None


@pytest.mark.parametrize("tolerated", [0, 2])
def test_failures_in_a_row_beyond_the_tolerated_fail_the_job(tolerated):
    coordinator = make(tolerated_failures=tolerated, interval_ms=10)
    coordinator.start(0)
    now, number = 10, 7
    coordinator.tick(now)
    for _ in range(tolerated):
        now += 10
        commands = coordinator.decline(number, ALL[0], "no", now)
        assert not [c for c in commands if isinstance(c, FailJob)]
        number += 1
    only(coordinator.decline(number, ALL[0], "no", now), FailJob)


def test_a_success_starts_the_count_anew():
    coordinator = make(tolerated_failures=1, interval_ms=10)
    coordinator.start(0)
    coordinator.tick(10)
    assert only(coordinator.decline(7, ALL[0], "no", 20), AbortCheckpoint).reason == "declined by v 0: no"
    complete(coordinator, 8, 30)
    assert coordinator.consecutive_failures == 0


def test_failure_is_judged_by_time_too():
    coordinator = make(tolerated_failures=10**9, max_age_ms=3000, timeout_ms=500)
    coordinator.start(0)
    failed = [c for now in range(0, 3001, 100) for c in coordinator.tick(now) if isinstance(c, FailJob)]
    assert len(failed) == 1
    assert "3000 ms" in failed[0].reason


def test_savepoints_wait_their_turn_and_their_failure_is_only_theirs():
    coordinator = make()
    coordinator.start(0)
    coordinator.tick(100)
    assert coordinator.request(BarrierKind.SAVEPOINT, "sp", 110) == []
    trigger = only(complete(coordinator, 7, 120), TriggerBarrier)
    assert (trigger.pending.kind, trigger.pending.request_id) == (BarrierKind.SAVEPOINT, "sp")
    commands = coordinator.decline(8, ALL[0], "no", 130)
    assert only(commands, AbortCheckpoint).pending.request_id == "sp"
    assert not [c for c in commands if isinstance(c, FailJob)]


def test_whoever_joins_a_checkpoint_does_not_come_before_who_waits_behind_it():
    coordinator = make()
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.request(BarrierKind.SAVEPOINT, "sp", 110)
    assert coordinator.join("mine", 111) == []
    assert coordinator.requested == ((BarrierKind.SAVEPOINT, "sp"), (BarrierKind.CHECKPOINT, "mine"))
    assert only(complete(coordinator, 7, 120), TriggerBarrier).pending.request_id == "sp"
    assert only(complete(coordinator, 8, 130), TriggerBarrier).pending.request_id == "mine"


def test_what_is_withdrawn_is_told_to_nobody_but_an_append_under_way_is():
    coordinator = make()
    coordinator.start(0)
    coordinator.request(BarrierKind.SAVEPOINT, "sp", 1)
    coordinator.request(BarrierKind.DRAIN, "d", 2)
    assert coordinator.withdraw() == ((BarrierKind.SAVEPOINT, "sp"), (BarrierKind.DRAIN, "d"))
    assert [c.pending.request_id for c in coordinator.stop("over")] == [""]
    coordinator = make()
    coordinator.start(0)
    coordinator.request(BarrierKind.DRAIN, "d", 1)
    coordinator.ack(7, ALL[0], ack(ALL[0]))
    coordinator.ack(7, ALL[1], ack(ALL[1]))
    assert coordinator.withdraw() == ()
    assert [c.pending.request_id for c in coordinator.stop("over")] == ["d"]


def test_a_failed_stop_restarts_the_job():
    coordinator = make(tolerated_failures=99)
    coordinator.start(0)
    coordinator.request(BarrierKind.STOP, "s", 1)
    only(coordinator.decline(7, ALL[0], "no", 2), FailJob)


def test_nothing_follows_a_stop():
    coordinator = make()
    coordinator.start(0)
    only(coordinator.request(BarrierKind.DRAIN, "d", 1), TriggerBarrier)
    assert coordinator.request(BarrierKind.SAVEPOINT, "sp", 2) == []
    assert only(complete(coordinator, 7, 3), RefuseRequest).request_id == "sp"
    assert coordinator.tick(10_000) == []
    assert coordinator.wake_ms() is None
    only(coordinator.request(BarrierKind.SAVEPOINT, "sp2", 4), RefuseRequest)


def test_the_final_checkpoint_comes_when_all_input_has_ended_even_without_an_interval():
    coordinator = make(interval_ms=None)
    assert coordinator.start(0) == []
    assert coordinator.input_ended(ALL[0], 1) == []
    pending = only(coordinator.input_ended(ALL[1], 2), TriggerBarrier).pending
    assert pending.label == "final"
    assert complete(coordinator, 7, 3) == []
    assert coordinator.tick(10_000) == []


def test_a_checkpoint_under_way_at_the_end_is_not_the_final_one():
    coordinator = make()
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.input_ended(ALL[0], 110)
    assert coordinator.input_ended(ALL[1], 111) == []
    assert only(complete(coordinator, 7, 120), TriggerBarrier).pending.label == "final"


def test_a_failed_final_checkpoint_is_tried_again_after_a_pause():
    coordinator = make(tolerated_failures=1)
    coordinator.start(0)
    for execution in ALL:
        commands = coordinator.input_ended(execution, 1)
    only(commands, TriggerBarrier)
    commands = coordinator.decline(7, ALL[0], "no", 10)
    assert not [c for c in commands if isinstance(c, TriggerBarrier)]
    assert coordinator.wake_ms() == 1010
    assert only(coordinator.tick(1010), TriggerBarrier).pending.checkpoint_id == 8


def test_stopping_aborts_and_refuses():
    coordinator = make()
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.request(BarrierKind.SAVEPOINT, "sp", 110)
    commands = coordinator.stop("a task failed")
    only(commands, AbortCheckpoint)
    assert only(commands, RefuseRequest).request_id == "sp"
    assert coordinator.appended(7, 120) == []
    assert coordinator.tick(500) == []
    assert coordinator.next_id == 8


def test_barriers_overtake_from_the_trigger_on():
    coordinator = make(overtake_after_ms=0)
    coordinator.start(0)
    assert only(coordinator.tick(100), TriggerBarrier).pending.overtakes
    assert coordinator.tick(150) == []


def test_barriers_overtake_when_the_checkpoint_is_not_complete_in_time():
    coordinator = make(overtake_after_ms=200)
    coordinator.start(0)
    assert not only(coordinator.tick(100), TriggerBarrier).pending.overtakes
    assert coordinator.wake_ms() == 300
    assert coordinator.tick(299) == []
    assert only(coordinator.tick(300), LetOvertake).pending.overtakes
    assert coordinator.tick(301) == []
    assert coordinator.wake_ms() == 1100


@pytest.mark.parametrize("after_ms", [0, 200])
def test_a_requested_checkpoint_overtakes_or_not_whatever_the_settings(after_ms):
    coordinator = make(interval_ms=None, overtake_after_ms=after_ms)
    coordinator.start(0)
    requested = coordinator.request(BarrierKind.CHECKPOINT, "at once", 10, unaligned=True)
    assert only(requested, TriggerBarrier).pending.overtakes
    complete(coordinator, 7, 20)
    requested = coordinator.request(BarrierKind.CHECKPOINT, "aligned", 30, unaligned=False)
    assert not only(requested, TriggerBarrier).pending.overtakes
    assert coordinator.tick(900) == []
    complete(coordinator, 8, 910)
    requested = coordinator.request(BarrierKind.CHECKPOINT, "as configured", 920)
    assert only(requested, TriggerBarrier).pending.overtakes == (after_ms == 0)


def test_a_requested_checkpoint_of_a_job_with_aligned_ones_is_aligned():
    coordinator = make()
    coordinator.start(0)
    requested = coordinator.request(BarrierKind.CHECKPOINT, "r", 10, unaligned=True)
    assert not only(requested, TriggerBarrier).pending.overtakes


@pytest.mark.parametrize("kind", [BarrierKind.SAVEPOINT, BarrierKind.STOP, BarrierKind.DRAIN])
def test_savepoints_and_stops_never_overtake(kind):
    coordinator = make(overtake_after_ms=0)
    coordinator.start(0)
    assert not only(coordinator.request(kind, "r", 10), TriggerBarrier).pending.overtakes
    assert coordinator.tick(500) == []


def test_the_final_checkpoint_never_overtakes():
    coordinator = make(overtake_after_ms=0)
    coordinator.start(0)
    coordinator.input_ended(ALL[0], 10)
    assert not only(coordinator.input_ended(ALL[1], 10), TriggerBarrier).pending.overtakes


NEXT = [ExecutionId("v", 0, 2), ALL[1]]


def test_a_pause_aborts_the_checkpoint_under_way_and_the_next_one_needs_the_present_attempts():
    coordinator = make()
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.ack(7, ALL[0], ack(ALL[0]))
    assert only(coordinator.pause(NEXT, "lost"), AbortCheckpoint).reason == "lost"
    assert coordinator.wake_ms() is None
    assert coordinator.tick(10_000) == []
    assert coordinator.ack(7, ALL[1], ack(ALL[1])) == []
    assert coordinator.start(10_000, resumed=True) == []
    assert only(coordinator.tick(10_025), TriggerBarrier).pending.checkpoint_id == 8
    assert coordinator.ack(8, ALL[1], ack(ALL[1])) == []
    assert coordinator.ack(8, ALL[0], ack(ALL[0])) == [], "of the attempt before"
    only(coordinator.ack(8, NEXT[0], ack(NEXT[0])), AppendCheckpoint)
    assert coordinator.consecutive_failures == 0


def test_an_append_under_way_at_a_pause_is_answered_and_nothing_is_triggered_after_it():
    coordinator = make()
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.ack(7, ALL[0], ack(ALL[0]))
    coordinator.ack(7, ALL[1], ack(ALL[1]))
    assert coordinator.pause(NEXT, "lost") == []
    assert coordinator.under_way(7) is not None
    assert coordinator.appended(7, 10_000) == []
    assert coordinator.under_way(7) is None
    only(coordinator.start(20_000, resumed=True) or coordinator.tick(20_025), TriggerBarrier)


@pytest.mark.parametrize("answered", ["appended", "failed"])
def test_a_pause_aborts_all_but_the_append_under_way_and_no_other_follows(answered):
    coordinator = make(max_concurrent=4, tolerated_failures=1)
    coordinator.start(0)
    for now in (100, 200, 300):
        coordinator.tick(now)
    only(all_acked(coordinator, 7), AppendCheckpoint)
    assert all_acked(coordinator, 8) == [], "complete, waits for the append of 7"
    coordinator.ack(9, ALL[1], ack(ALL[1]))
    assert [command.pending.checkpoint_id for command in coordinator.pause(NEXT, "lost")] == [8, 9]
    assert coordinator.ack(9, ALL[0], ack(ALL[0])) == []
    assert coordinator.decline(9, ALL[0], "late", 350) == []
    commands = coordinator.appended(7, 400) if answered == "appended" else coordinator.append_failed(7, "no", 400)
    assert [type(command) for command in commands] == ([] if answered == "appended" else [AbortCheckpoint])
    assert coordinator.oldest_id == coordinator.next_id == 10
    assert coordinator.start(500, resumed=True) == []
    assert only(coordinator.tick(525), TriggerBarrier).pending.expected == frozenset(NEXT)


def test_a_pause_keeps_what_is_asked_for_and_ended():
    coordinator = make(max_concurrent=2)
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.request(BarrierKind.CHECKPOINT, "asked", 110)
    assert not coordinator.is_ending
    assert coordinator.withdraw() == ((BarrierKind.CHECKPOINT, "asked"),)
    assert [command.pending.request_id for command in coordinator.pause(NEXT, "lost")] == ["", ""]
    coordinator.request(BarrierKind.STOP, "stop", 120)
    assert coordinator.is_ending


def test_requests_wait_for_the_end_of_a_pause():
    coordinator = make()
    coordinator.start(0)
    coordinator.pause(NEXT, "lost")
    assert coordinator.request(BarrierKind.SAVEPOINT, "r", 50) == []
    assert only(coordinator.start(60, resumed=True), TriggerBarrier).pending.request_id == "r"


def test_an_attempt_that_begins_again_has_its_input_before_it():
    coordinator = make(interval_ms=None)
    coordinator.start(0)
    coordinator.input_ended(ALL[0], 1)
    coordinator.pause(NEXT, "lost")
    coordinator.start(10, resumed=True)
    assert coordinator.input_ended(ALL[1], 11) == []
    assert only(coordinator.input_ended(NEXT[0], 12), TriggerBarrier).pending.final


def all_acked(coordinator, number):
    """Acknowledge a checkpoint by every subtask; return the commands of the last."""
    coordinator.ack(number, ALL[0], ack(ALL[0]))
    return coordinator.ack(number, ALL[1], ack(ALL[1]))


def test_several_are_under_way_up_to_the_limit():
    coordinator = make(max_concurrent=2)
    coordinator.start(0)
    assert only(coordinator.tick(100), TriggerBarrier).pending.checkpoint_id == 7
    assert coordinator.wake_ms() == 200
    assert only(coordinator.tick(200), TriggerBarrier).pending.checkpoint_id == 8
    assert coordinator.tick(300) == []
    assert coordinator.wake_ms() == 1100
    assert only(complete(coordinator, 7, 310), TriggerBarrier).pending.checkpoint_id == 9
    assert coordinator.oldest_id == 8


def test_manifests_are_appended_one_after_another_in_order():
    coordinator = make(max_concurrent=2)
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.tick(200)
    assert only(all_acked(coordinator, 7), AppendCheckpoint).pending.checkpoint_id == 7
    assert all_acked(coordinator, 8) == []
    assert coordinator.tick(5000) == []  # complete ones do not time out
    assert only(coordinator.appended(7, 5001), AppendCheckpoint).pending.checkpoint_id == 8


def test_a_complete_checkpoint_subsumes_those_before_it():
    coordinator = make(max_concurrent=3)
    coordinator.start(0)
    for now in (100, 200, 300):
        coordinator.tick(now)
    coordinator.ack(7, ALL[0], ack(ALL[0]))
    abort, append = all_acked(coordinator, 8)
    assert (abort.pending.checkpoint_id, abort.reason) == (7, "subsumed by checkpoint 8")
    assert append.pending.checkpoint_id == 8
    assert coordinator.ack(7, ALL[1], ack(ALL[1])) == []
    assert coordinator.consecutive_failures == 0
    assert coordinator.oldest_id == 8


def test_the_request_of_a_subsumed_checkpoint_is_answered_by_a_later_one():
    coordinator = make(max_concurrent=2)
    coordinator.start(0)
    coordinator.request(BarrierKind.CHECKPOINT, "mine", 0, unaligned=False)
    coordinator.tick(100)
    abort, _append = all_acked(coordinator, 8)
    assert abort.pending.request_id == ""
    assert coordinator.requested == ((BarrierKind.CHECKPOINT, "mine"),)
    again = only(coordinator.appended(8, 110), TriggerBarrier).pending
    assert (again.request_id, again.unaligned) == ("mine", False)


def test_an_append_that_fails_leaves_the_next_one():
    coordinator = make(max_concurrent=2, tolerated_failures=1)
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.tick(200)
    all_acked(coordinator, 7)
    all_acked(coordinator, 8)
    commands = coordinator.append_failed(7, "no answer", 210)
    assert only(commands, AbortCheckpoint).pending.checkpoint_id == 7
    assert only(commands, AppendCheckpoint).pending.checkpoint_id == 8


def test_one_that_fails_or_times_out_leaves_the_others():
    coordinator = make(max_concurrent=3, tolerated_failures=2)
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.tick(200)
    only(coordinator.decline(8, ALL[0], "no", 250), AbortCheckpoint)
    assert only(coordinator.tick(300), TriggerBarrier).pending.checkpoint_id == 9
    assert only(coordinator.tick(1100), AbortCheckpoint).pending.checkpoint_id == 7
    assert only(all_acked(coordinator, 9), AppendCheckpoint).pending.checkpoint_id == 9


@pytest.mark.parametrize("kind", [BarrierKind.SAVEPOINT, BarrierKind.STOP, BarrierKind.DRAIN])
def test_savepoints_and_stops_are_alone(kind):
    coordinator = make(max_concurrent=3)
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.tick(200)
    assert coordinator.request(kind, "r", 210) == []
    assert coordinator.tick(300) == []
    assert complete(coordinator, 7, 310) == []
    assert only(complete(coordinator, 8, 320), TriggerBarrier).pending.kind is kind
    assert coordinator.tick(500) == []


def test_the_final_checkpoint_waits_for_those_under_way():
    coordinator = make(max_concurrent=3)
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.tick(200)
    for execution in ALL:
        assert coordinator.input_ended(execution, 210) == []
    assert complete(coordinator, 7, 220) == []
    assert only(complete(coordinator, 8, 230), TriggerBarrier).pending.label == "final"


def test_who_joins_gets_the_newest_under_way():
    coordinator = make(max_concurrent=2)
    coordinator.start(0)
    coordinator.tick(100)
    coordinator.tick(200)
    assert coordinator.join("mine", 210) == []
    assert coordinator.join("other", 211) == []
    assert coordinator.under_way(8).request_id == "mine"
    assert coordinator.under_way(7).request_id == "other"


@pytest.mark.parametrize("fails", [(), (7,), (8,), (7, 8), (9,)])
@pytest.mark.parametrize("answers", [1, 2, 6])
def test_in_every_order_of_acks_the_log_has_complete_checkpoints_with_growing_ids(fails, answers):
    """The append is answered after so many further acks."""
    for order in itertools.permutations((number, execution) for number in (7, 8, 9) for execution in ALL):
        coordinator = make(max_concurrent=3, tolerated_failures=9, interval_ms=None)
        coordinator.start(0)
        for number in (7, 8, 9):
            trigger = only(coordinator.request(BarrierKind.CHECKPOINT, "", 0), TriggerBarrier)
            assert trigger.pending.checkpoint_id == number
        log, acked, appending = [], set(), []
        for number, execution in order:
            acked.add((number, execution))
            commands = coordinator.ack(number, execution, ack(execution))
            appending += [[c.pending, answers] for c in commands if is_append(c)]
            settle(coordinator, appending, log, acked, fails)
        while appending:
            settle(coordinator, appending, log, acked, fails)
        assert log == sorted(log)
        assert log or fails
        assert 9 in log or 9 in fails
        assert coordinator.oldest_id == 10


def is_append(command):
    return isinstance(command, AppendCheckpoint)


def settle(coordinator, appending, log, acked, fails):
    """Let time pass for the append under way, and answer it when it is over."""
    assert len(appending) <= 1
    if not appending:
        return
    appending[0][1] -= 1
    pending, left = appending[0]
    if left:
        return
    appending.clear()
    number = pending.checkpoint_id
    assert {(number, execution) for execution in ALL} <= acked
    if number in fails:
        commands = coordinator.append_failed(number, "no answer", 0)
    else:
        log.append(number)
        commands = coordinator.appended(number, 0)
    appending += [[c.pending, 1] for c in commands if is_append(c)]
