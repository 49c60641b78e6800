"""A TaskManager is released only while no job uses it, and what it had is nobody's from that moment on."""

import asyncio

import pytest

from penstock.config.settings import ClusterSettings, JobSettings
from penstock.config.slot_resources import wanted_of
from penstock.core.clock import ManualClock
from penstock.core.errors import NotFoundError, UsageError
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.cluster.taskmanagers import TaskManagers
from penstock.jobmanager.messages.commands import LaunchWorker
from penstock.jobmanager.messages.events import (
    SlotsAvailable,
    SlotsAwaited,
    SlotsGranted,
    TaskManagerLost,
    WorkerLost,
    WorkersKept,
    WorkerStopped,
)
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc import messages as msg
from penstock.rpc.stream import Session


def joined(managers, name, slots=2, offered=(), memory=msg.MemoryParts()):  # noqa: B008 - it is frozen
    registration = msg.RegisterTaskManager(
        taskmanager_id=name, host="h", pid=1, slots=slots, offered=offered, metrics_address="", memory=memory
    )
    session = Session(registration, "peer")
    managers.connected(session)
    return session


def but_free_slots(events):
    """A job that keeps its events, without those of the number of free slots."""
    return lambda event: None if isinstance(event, SlotsAvailable) else events.append(event)


async def told(session):
    """What a TaskManager is told until its stream ends."""
    found = []
    while (data := await session.queue.get()) is not None:
        found += msg.decode_taskmanager_commands(data)
    return found


@pytest.fixture
def managers():
    return TaskManagers("jm", 1, ClusterSettings(), ManualClock())


async def released(managers, session, name):
    managers.release(name)
    commands = await told(session)
    managers.disconnected(session, "its stream has ended")
    return commands


def test_it_is_told_to_end_and_its_slots_are_given_to_nobody(managers):
    events = []
    managers.attach("job", but_free_slots(events), "orders")
    session = joined(managers, "tm")
    commands = asyncio.run(released(managers, session, "tm"))
    assert isinstance(commands[-1], msg.Shutdown)
    managers.pool.request("job", 1, 0)
    assert not any(isinstance(event, SlotsGranted) for event in events)
    assert (managers.pool.total, managers.pool.pending, managers.views()) == (0, 1, ())


def test_a_job_knows_the_number_of_free_slots_before_it_is_told_of_a_loss_or_a_grant(managers):
    events = []
    managers.attach("job", events.append, "orders")
    session = joined(managers, "tm")
    managers.pool.request("job", 1, 0)
    managers.disconnected(session, "the connection broke")
    free = [event.free if isinstance(event, SlotsAvailable) else type(event) for event in events]
    assert free == [0, 2, 1, SlotsGranted, 0, TaskManagerLost]


def test_a_lost_one_is_named_with_its_process(managers):
    events = []
    managers.attach("job", but_free_slots(events), "orders")
    session = joined(managers, "tm")
    managers.disconnected(session, "the connection broke")
    assert [event.reason for event in events] == ["the connection broke (pid 1 on h)"]


def test_a_request_that_waits_is_told_to_its_job_with_the_holders(managers):
    events = []
    managers.attach("other", lambda _event: None, "totals")
    managers.attach("job", but_free_slots(events), "orders")
    joined(managers, "tm")
    managers.pool.request("other", 1, 0)
    managers.pool.request("job", 2, 0)
    (event,) = events
    assert isinstance(event, SlotsAwaited)
    assert event.text.startswith("2 slots, 1 of 2 is free (totals holds 1); after ")
    assert managers.pool.waiting("job") == event.text


def test_one_in_use_is_not_released(managers):
    events = []
    managers.attach("job", but_free_slots(events), "orders")
    joined(managers, "tm")
    managers.pool.request("job", 1, 0)
    with pytest.raises(UsageError, match="jobs hold 1 slots"):
        managers.release("tm")
    (view,) = managers.views()
    assert (view.free_slots, managers.pool.total) == (1, 2)
    managers.pool.release("job")
    managers.release("tm")
    assert managers.views() == ()


def test_one_that_is_not_there_is_named(managers):
    joined(managers, "tm")
    with pytest.raises(NotFoundError, match="no TaskManager 'other'"):
        managers.release("other")


def test_slots_that_jobs_wait_for_are_counted(managers):
    for job in ("a", "b"):
        managers.attach(job, lambda _event: None, job)
    managers.pool.request("a", 3, 0)
    managers.pool.request("b", 2, 0)
    assert managers.pool.pending == 5
    managers.pool.release("b")
    joined(managers, "tm")
    assert managers.pool.pending == 3
    joined(managers, "another")
    assert (managers.pool.pending, managers.pool.free) == (0, 1)


def test_a_job_that_wants_more_memory_than_the_largest_slot_has_is_refused_with_the_way_out(managers):
    def job(size):
        return JobGraph(name="j", vertices=(), edges=(), settings=JobSettings(managed_memory_bytes=size))

    managers.pool.require(job(1 << 40))  # it waits for a TaskManager
    for name, managed in {"small": 128 << 20, "large": 512 << 20}.items():
        joined(managers, name, memory=msg.MemoryParts(total_bytes=1 << 30, managed_bytes=managed))
    managers.pool.require(job(None))
    managers.pool.require(job(256 << 20))
    with pytest.raises(UsageError) as caught:
        managers.pool.require(job(257 << 20))
    text = str(caught.value)
    assert text.startswith(
        "job 'j' does not fit into any slot: the job wants 257 MB of managed memory per slot, but a "
    )
    assert "a slot has 256 MB (lower the job's managed_memory, or raise taskmanager.memory" in text
    events = []
    managers.attach("job", events.append, "orders")
    managers.pool.request("job", 1, 0, wanted=wanted_of(JobSettings(managed_memory_bytes=200 << 20)))
    (granted,) = (event for event in events if isinstance(event, SlotsGranted))
    assert granted.slots[0].taskmanager_id == "large"


def with_a_worker(managers):
    """A TaskManager `tm` with the worker `w` of the job `job`; return its session and the job's events."""
    events = []
    managers.attach("job", but_free_slots(events), "orders")
    session = joined(managers, "tm")
    managers.pool.request("job", 1, 0)
    (granted,) = events
    managers.start_worker(
        "job", LaunchWorker("w", granted.slots[0]), JobGraph(name="j", vertices=(), edges=(), settings=JobSettings())
    )
    return session, events


def test_one_whose_worker_has_not_ended_is_not_released(managers):
    session, _events = with_a_worker(managers)
    managers.pool.release("job")
    with pytest.raises(UsageError, match="jobs hold 0 slots, 1 workers are running"):
        managers.release("tm")
    managers.received(session, msg.WorkerExited(taskmanager_id="tm", worker_id="w", returncode=0, log_tail=""))
    managers.release("tm")
    assert managers.views() == ()


def test_a_drained_one_ends_when_its_job_and_its_worker_have_left(managers):
    session, _events = with_a_worker(managers)
    assert managers.drain("tm") == {"job"}
    (view,) = managers.views()
    assert (view.drained, view.free_slots, managers.pool.free) == (True, 0, 0)
    managers.pool.release("job")
    assert managers.drain("tm") == frozenset()
    assert len(managers.views()) == 1, "its worker runs"
    managers.received(session, msg.WorkerExited(taskmanager_id="tm", worker_id="w", returncode=0, log_tail=""))
    managers.drain("tm")
    assert managers.views() == ()
    with pytest.raises(NotFoundError):
        managers.drain("tm")


def test_a_stopped_worker_is_reported_to_its_job_and_holds_its_taskmanager_until_its_exit(managers):
    session, events = with_a_worker(managers)
    managers.pool.release("job")
    for name in ("w", "of an earlier leader"):
        managers.received(session, msg.WorkerStopped(taskmanager_id="tm", worker_id=name))
    assert events[1:] == [WorkerStopped("w")]
    with pytest.raises(UsageError, match="1 workers are running"):
        managers.release("tm")
    managers.received(session, msg.WorkerExited(taskmanager_id="tm", worker_id="w", returncode=-9))
    managers.received(session, msg.WorkerStopped(taskmanager_id="tm", worker_id="w"))
    assert [type(event) for event in events[1:]] == [WorkerStopped, WorkerLost]


def test_the_states_of_slots_are_those_of_the_last_heartbeat_until_a_worker_is_requested_or_ends(managers):
    def taken():
        (view,) = managers.views()
        return [(held.slot, held.worker_id, held.state) for held in view.taken_slots]

    def reported(*held):
        held = tuple(msg.SlotStatus(slot=slot, worker_id=name, job_id="job", state=state) for slot, name, state in held)
        managers.received(session, msg.Heartbeat(taskmanager_id="tm", sequence=1, slot_report=held))

    session, _events = with_a_worker(managers)
    assert taken() == [(0, "w", "ALLOCATED")]
    reported((0, "w", "ACTIVE"), (1, "of an earlier leader", "RELEASING"))
    assert taken() == [(0, "w", "ACTIVE"), (1, "of an earlier leader", "RELEASING")]
    reported((0, "w", "RELEASING"))
    assert taken() == [(0, "w", "RELEASING")]
    managers.received(session, msg.WorkerExited(taskmanager_id="tm", worker_id="w", returncode=-9))
    assert taken() == []


def test_a_refused_slot_is_no_longer_the_jobs_and_is_free_again_with_a_later_heartbeat(managers):
    session, events = with_a_worker(managers)
    error = "slot 0 is held by worker x of job y"
    for refused in (True, True):  # a repeated report changes nothing
        report = msg.WorkerStartFailed(taskmanager_id="tm", worker_id="w", error=error, slot_refused=refused)
        managers.received(session, report)
    assert events[1:] == [WorkerLost("w", error, started=False, refused=events[0].slots[0])]
    assert managers.pool.free == 1
    managers.pool.request("job", 1, 0)
    assert events[-1] == SlotsGranted((Slot("tm", 1, "h"),))
    taken = (msg.SlotStatus(slot=0, worker_id="x", job_id="y"),)
    managers.received(session, msg.Heartbeat(taskmanager_id="tm", sequence=1, slot_report=taken))
    assert managers.pool.free == 0
    managers.received(session, msg.Heartbeat(taskmanager_id="tm", sequence=2))
    assert managers.pool.free == 1


RAISE = "os._exit ends the worker; raise an exception instead"
WAY = "update that library, or replace it"
KILLED = "it was killed by SIGKILL: by a user, or by the kernel when memory ran out (see dmesg)"


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ({"returncode": -9}, KILLED),
        (
            {"returncode": -11, "crashed_at": "job.py:3 in f"},
            f"it was killed by SIGSEGV at job.py:3 in f, in native code that this line calls: {WAY}",
        ),
        ({"returncode": -6}, f"it was killed by SIGABRT in native code: {WAY}"),
        ({"returncode": -15, "crashed_at": "job.py:3 in f"}, "it was killed by SIGTERM"),
        ({"returncode": -9, "crashed_at": "job.py:3 in f"}, KILLED),
        ({"returncode": -99}, "it was killed by signal 99"),
        ({"returncode": 70}, "it exited with status 70"),
        ({"returncode": 3}, "it exited with status 3: the job's code or a library has ended the process (os._exit)"),
        (
            {"returncode": 1, "crashed_at": "job.py:3 in f"},
            f"it exited with status 1 while a function was in a call, at job.py:3 in f: {RAISE}",
        ),
        ({"returncode": -14}, "it had no contact to its TaskManager until its lease expired"),
        (
            {"returncode": -9, "reason": "it did not answer for 9 s and was ended"},
            "it did not answer for 9 s and was ended",
        ),
    ],
)
def test_a_job_is_told_why_its_worker_ended(managers, ended, told):
    session, events = with_a_worker(managers)
    managers.received(session, msg.WorkerExited(taskmanager_id="tm", worker_id="w", log_tail="last words", **ended))
    assert (events[-1].reason, events[-1].detail) == (told, "last words")
    assert events[-1].by_user_code == ("os._exit" in told)


def test_a_kept_worker_that_ends_before_its_job_is_recovered_frees_its_slot(managers):
    session = joined(managers, "tm", offered=(msg.SlotStatus(worker_id="w", job_id="job", slot=0),))
    managers.recover(["job"])
    assert managers.pool.free == 1
    managers.received(session, msg.WorkerExited(taskmanager_id="tm", worker_id="w", returncode=-9))
    assert managers.pool.free == 2


def test_a_kept_worker_is_shown_with_its_process_when_it_has_answered(managers):
    session = joined(managers, "tm", offered=(msg.SlotStatus(worker_id="w", job_id="job", slot=0),))
    answer = msg.TasksReported(job_id="job", generation=1, endpoint="unix:w", pid=4711)
    managers.received(session, msg.FromWorker(taskmanager_id="tm", worker_id="w", report=msg.encode(answer)))
    ((worker,),) = [view.workers for view in managers.views()]
    assert worker.pid == 4711


def test_a_worker_that_a_job_starts_at_a_registration_is_none_of_an_earlier_leader(managers):
    """The job's slots are granted while a TaskManager with one of its old workers registers; it keeps the new one."""
    kept = []

    def handle(event):
        if isinstance(event, SlotsGranted):
            managers.start_worker(
                "job",
                LaunchWorker("new", event.slots[0]),
                JobGraph(name="orders", vertices=(), edges=(), settings=JobSettings()),
            )
        elif isinstance(event, WorkersKept):
            kept.append([worker_id for worker_id, _slot in event.workers])

    managers.recover(["job"])
    managers.attach("job", handle, "orders")
    managers.pool.request("job", 1, 0)
    joined(managers, "tm", offered=(msg.SlotStatus(worker_id="old", job_id="job", slot=0),))
    assert kept == [["old"]]


def test_a_job_that_keeps_no_worker_of_a_registering_taskmanager_frees_their_slots(managers):
    """Its slots are known before the job decides on its workers, else the release of a slot has no effect."""

    def handle(event):
        if isinstance(event, WorkersKept):
            managers.pool.release("job", tuple(slot for _worker_id, slot in event.workers))

    managers.recover(["job"])
    managers.attach("job", handle, "orders")
    joined(managers, "tm", offered=(msg.SlotStatus(worker_id="old", job_id="job", slot=0),))
    assert managers.pool.free == 2


def test_all_taskmanagers_forget_an_ended_job(managers):
    sessions = [joined(managers, name) for name in ("tm-1", "tm-2")]
    managers.forget("job")
    for session in sessions:
        managers.release(session.taskmanager_id)
        assert msg.ForgetJob(job_id="job") in asyncio.run(told(session))
