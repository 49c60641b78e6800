"""The slot pool of a cluster: slots granted to jobs, notifications to jobs, and slots kept through restarts."""

from __future__ import annotations

import msgspec
import pytest

from penstock.config.settings import JobSettings, ResourceProfile
from penstock.config.slot_resources import ANY, wanted_of
from penstock.jobmanager.cluster.slots import HeldSlots, SlotPool
from penstock.jobmanager.deploy.deployment import Worker
from penstock.jobmanager.messages.commands import ReleaseSlots
from penstock.jobmanager.messages.events import SlotsAvailable, SlotsAwaited, SlotsGranted, SlotsRefused
from penstock.jobmanager.messages.placement import Slot


def pool_of(*jobs, most=0):
    """Return a pool, and a function that returns the answers which these jobs got since its last call."""
    pool, told = SlotPool(timeout_ms=100, most=most), []

    def hear(job):
        def post(event):
            if isinstance(event, SlotsGranted | SlotsRefused):
                told.append((job, event))

        return post

    def heard():
        answers = told[:]
        told.clear()
        return answers

    for job in jobs:
        pool.attach(job, hear(job), f"the {job}")
    return pool, heard


def managers_of(granted):
    return {slot.taskmanager_id for slot in granted.slots}


def test_slots_are_granted_whole_and_spread_and_a_large_request_holds_up_no_small_one():
    pool, heard = pool_of("a", "b")
    pool.request("a", 3, 0)
    late = "; after 0 s without them the start fails and the restart strategy decides"
    assert pool.waiting("a") == f"3 slots, no TaskManager is registered{late}"
    pool.add("tm1", "h1", 2)
    assert heard() == []
    pool.request("b", 1, 0)
    ((job, small),) = heard()
    assert (job, len(small.slots)) == ("b", 1)
    assert pool.waiting("a") == f"3 slots, 1 of 2 is free (the b holds 1){late}"
    assert pool.waiting("b") == ""
    pool.add("tm2", "h2", 2)
    ((job, granted),) = heard()
    assert (job, managers_of(granted)) == ("a", {"tm1", "tm2"})
    assert len(set(granted.slots)) == 3
    assert (pool.free, pool.total) == (0, 4)
    pool.release("a", granted.slots[:1])
    assert pool.free == 1
    pool.release("a")
    assert pool.free == 3


def test_all_jobs_are_told_the_number_of_free_slots_before_an_answer():
    pool, told = SlotPool(timeout_ms=100), []
    for job in ("a", "b"):
        pool.attach(job, lambda event, job=job: told.append((job, event)), job)
    pool.add("tm", "h", 2)
    pool.request("a", 1, 0)
    pool.request("b", 2, 0)
    pool.detach("a")
    pool.remove("tm")
    one, two = Slot("tm", 0, "h"), Slot("tm", 1, "h")
    waits = "2 slots, 1 of 2 is free (a holds 1); after 0 s without them the start fails"
    texts = [(job, event) for job, event in told if isinstance(event, SlotsAwaited)]
    assert [(job, event.text.startswith(waits)) for job, event in texts] == [("b", True)]
    assert [entry for entry in told if entry not in texts] == [
        ("a", SlotsAvailable(0)),
        ("b", SlotsAvailable(0)),
        ("a", SlotsAvailable(2)),
        ("b", SlotsAvailable(2)),
        ("a", SlotsAvailable(1)),
        ("b", SlotsAvailable(1)),
        ("a", SlotsGranted((one,))),
        ("b", SlotsAvailable(0)),
        ("b", SlotsGranted((one, two))),
    ]


def test_a_refused_slot_is_given_to_no_job_until_its_taskmanager_reports_it_as_free():
    pool, heard = pool_of("a", "b")
    pool.add("tm", "h", 2)
    pool.request("a", 1, 0)
    ((_, granted),) = heard()
    (slot,) = granted.slots
    pool.refused("b", slot)  # has no effect: it is of another job
    assert pool.held_of("tm") == 1
    pool.refused("a", slot)
    pool.refused("a", Slot("gone", 0, "h"))
    assert (pool.free, pool.held_of("tm")) == (1, 0)
    pool.release("a", (slot,))
    pool.request("b", 2, 0)
    pool.reported("tm", {slot.index})
    assert heard() == []
    pool.reported("tm", ())
    ((job, granted),) = heard()
    assert (job, {slot.index for slot in granted.slots}, pool.free) == ("b", {0, 1}, 0)
    pool.refused("b", slot)
    pool.drain("tm")
    pool.reported("tm", ())
    assert (pool.free, pool.held_of("tm")) == (0, 1)


def managed(megabytes):
    return ResourceProfile(group="", managed_memory_bytes=megabytes << 20)


def test_a_slot_with_too_little_managed_memory_is_not_given_and_the_wait_says_what_to_raise():
    pool, heard = pool_of("a", "b", "c")
    pool.add("small", "h", 4, resources=managed(64))
    assert "wants 65 MB of managed memory per slot, but a slot has 64 MB (" in pool.refusal(managed(65))
    assert pool.refusal(managed(64)) == ""
    pool.request("a", 2, 0, wanted=managed(100))
    assert heard() == []
    text = pool.waiting("a")
    small = "the job wants 100 MB of managed memory per slot, but a slot has 64 MB (lower"
    assert text.startswith(f"2 slots, 4 of 4 are free, 4 too small: {small}")
    assert "raise taskmanager.memory or taskmanager.managed_memory" in text
    assert pool.obtainable(managed(100)) == 0
    pool.request("b", 3, 0, wanted=managed(64))
    ((_, other),) = heard()
    assert managers_of(other) == {"small"}
    pool.add("large", "h", 2, resources=managed(200))
    ((job, granted),) = heard()
    assert (job, managers_of(granted)) == ("a", {"large"})
    pool.request("c", 1, 0, wait=False, wanted=managed(65))
    ((_, refused),) = heard()
    assert "1 of 6 is free, 1 too small: the job wants 65 MB" in refused.reason
    pool.request("c", 1, 0, wanted=managed(65))
    pool.tick(100)
    ((_, late),) = heard()
    assert "1 too small: the job wants 65 MB of managed memory" in late.reason
    pool.add("old", "h", 1)
    pool.request("c", 1, 0, wanted=managed(1 << 20))
    ((_, unknown),) = heard()
    assert (managers_of(unknown), pool.refusal(managed(1 << 20))) == ({"old"}, "")


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
    (pool, heard), needs = pool_of("a"), ResourceProfile(group="", **wanted)
    pool.add("tm", "h", 2, resources=slot)
    assert told in pool.refusal(needs)
    pool.request("a", 1, 0, wanted=needs)
    assert heard() == []
    assert f"2 of 2 are free, 2 too small: {pool.refusal(needs)}" in pool.waiting("a")
    pool.add("twice", "h", 1, resources=twice(slot))
    ((_, granted),) = heard()
    assert managers_of(granted) == {"twice"}


def twice(slot):
    return msgspec.convert({k: v * 2 for k, v in msgspec.to_builtins(slot).items() if k != "group"}, ResourceProfile)


def test_a_slot_whose_cores_are_unknown_is_enough():
    pool, heard = pool_of("a")
    pool.add("old", "h", 1, resources=ResourceProfile(task_memory_bytes=1 << 30))
    pool.request("a", 1, 0, wanted=ResourceProfile(cpu_cores=64.0))
    ((_, granted),) = heard()
    assert len(granted.slots) == 1


def test_the_slots_of_a_job_have_the_largest_resources_of_its_groups():
    groups = (ResourceProfile(cpu_cores=2.0, managed_memory_bytes=1), ResourceProfile(group="x", task_memory_bytes=7))
    wanted = wanted_of(JobSettings(slot_resources=groups, managed_memory_bytes=5))
    assert wanted == ResourceProfile(group="", cpu_cores=2.0, task_memory_bytes=7, managed_memory_bytes=5)
    assert wanted_of(JobSettings()) == ANY


def test_of_requests_that_fit_the_oldest_is_served_first():
    pool, heard = pool_of("a", "b", "c")
    for job in ("a", "b", "c"):
        pool.request(job, 1, 0)
    pool.add("tm", "h", 2)
    assert [job for job, _ in heard()] == ["a", "b"]


def test_a_request_of_a_higher_priority_is_served_first_and_holds_back_the_others():
    pool, heard = pool_of("a", "low", "high", "grows")
    pool.add("tm1", "h", 2)
    pool.request("a", 2, 0)
    assert [job for job, _ in heard()] == ["a"]
    pool.request("low", 1, 10)
    pool.request("high", 2, 20, priority=5)
    assert "higher" not in pool.waiting("high")
    assert ", a job with a higher slot_priority comes first; after" in pool.waiting("low")
    pool.release("a", (Slot("tm1", 0, "h"),))
    assert heard() == [], "one slot is free, and kept for the higher priority"
    pool.request("grows", 1, 30, wait=False)
    assert heard() == [("grows", SlotsRefused("1 slot needed, a job with a higher slot_priority comes first"))]
    pool.add("tm2", "h", 2)
    assert [job for job, _ in heard()] == ["high", "low"]


def test_a_request_of_a_higher_priority_that_the_cluster_is_too_small_for_or_that_ends_holds_back_nobody():
    pool, heard = pool_of("a", "b", "high", "huge")
    pool.add("tm", "h", 2)
    pool.request("huge", 3, 0, priority=5)
    pool.request("a", 1, 0)
    assert [job for job, _ in heard()] == ["a"]
    pool.request("high", 2, 10, priority=5)
    pool.request("b", 1, 20)
    assert heard() == []
    pool.tick(110)
    answers = [(job, type(answer)) for job, answer in heard()]
    assert answers == [("huge", SlotsRefused), ("high", SlotsRefused), ("b", SlotsGranted)]


def test_a_request_that_waits_too_long_is_refused_and_a_new_one_replaces_the_old():
    pool, heard = pool_of("a")
    pool.request("a", 3, 0)
    pool.request("a", 2, 50)
    pool.tick(149)
    assert heard() == []
    pool.tick(150)
    ((_, refused),) = heard()
    assert isinstance(refused, SlotsRefused)
    assert "2 slots" in refused.reason
    pool.add("tm", "h", 2)
    assert heard() == []


def test_slots_that_become_free_while_the_jobmanager_ends_go_to_no_waiting_job():
    pool, heard = pool_of("running", "waiting")
    pool.add("a", "h", 2)
    pool.request("running", 2, 0, wait=True)
    assert [job for job, _ in heard()] == ["running"]
    pool.request("waiting", 1, 0, wait=True)
    pool.close()
    pool.release("running")
    assert heard() == []
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
    pool, heard = pool_of("a", "b", most=4)
    pool.add("tm1", "h", 1)
    assert pool.obtainable() == 4
    pool.request("a", 4, 0, wait=False)
    assert heard() == []
    assert pool.pending == 4
    pool.request("b", 5, 0, wait=False)
    ((job, refused),) = heard()
    assert (job, type(refused)) == ("b", SlotsRefused)
    pool.add("tm2", "h", 3)
    assert [job for job, _ in heard()] == ["a"]
    assert pool.obtainable() == 0


def test_a_request_for_nothing_withdraws_the_one_that_waits():
    pool, heard = pool_of("a", most=4)
    pool.request("a", 2, 0, wait=False)
    pool.request("a", 0, 50, wait=False)
    assert pool.pending == 0
    pool.tick(1_000)
    assert heard() == []


def test_declared_slots_are_pending_until_the_job_has_them_and_are_granted_to_nobody():
    pool, heard = pool_of("a", "b", most=8)
    pool.declare("a", 6)
    pool.add("tm1", "h", 2)
    assert heard() == []
    assert (pool.pending, pool.free) == (6, 2)
    pool.request("a", 2, 0, wait=False)
    assert (pool.pending, pool.free) == (4, 0)
    pool.request("a", 3, 0, wait=False)
    pool.request("b", 1, 0)
    assert pool.pending == 3 + 1 + 1
    assert pool.waiting("b").startswith("1 slot, 0 of 2 are free")
    pool.declare("a", 0)
    assert pool.pending == 3 + 1
    pool.declare("a", 6)
    pool.release("a")
    assert pool.pending == 0
    assert pool.free == 1


def test_slots_of_a_drained_taskmanager_are_given_to_nobody():
    pool, heard = pool_of("a", "b", most=4)
    pool.add("tm1", "h", 2)
    pool.request("a", 1, 0)
    ((_, granted),) = heard()
    assert pool.drain("tm1") == {"a"}
    assert (pool.free, pool.total, pool.obtainable(), pool.drained) == (0, 0, 4, ("tm1",))
    pool.request("b", 1, 0)
    pool.release("a", granted.slots)
    assert heard() == []
    assert pool.drain("tm1") == frozenset()
    assert pool.free == 0
    pool.add("tm2", "h", 2)
    ((_, other),) = heard()
    assert managers_of(other) == {"tm2"}
    pool.remove("tm1")
    assert (pool.free, pool.total, pool.drained) == (1, 2, ())


def test_a_taskmanager_that_registers_again_is_drained_no_longer():
    pool = SlotPool(timeout_ms=100)
    pool.add("tm", "h", 2)
    pool.drain("tm")
    pool.add("tm", "h", 2)
    assert (pool.free, pool.drained) == (2, ())


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
