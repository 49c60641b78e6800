"""What a job's leaders decided, one after another: written down by each, told by the last."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.processes.jobmanager.test_jobmanager_process import (
    _connectors,  # noqa: F401 - a fixture
    cluster_of,  # noqa: F401 - a fixture
    encoded,  # noqa: F401 - a fixture
    running,
)
from tests.support.waiting import until

from penstock.checkpoint.ha_records import RETAINED_LEADERS, prune_event_logs, read_event_logs, write_event_log
from penstock.checkpoint.memory_store import MemoryStore
from penstock.core.errors import StorageError
from penstock.core.event_log import Entry, EventLog, merge_event_logs
from penstock.jobmanager.observe.event_logs import EventLogs, EventLogTimes

SOON = EventLogTimes(gather_s=0.001)


def test_checkpoints_do_not_push_decisions_out_of_a_story():
    log = EventLog(limit=3)
    log.add(1, "deploy", "first")
    for n in range(10):
        log.add(2 + n, "checkpoint", str(n))
    log.add(12, "failure", "second")
    assert [e.text for e in log.entries()] == ["first", "7", "8", "9", "second"]
    assert log.decided == 2
    assert log.tail(2) == "11 checkpoint: 9\n12 failure: second"


def test_one_story_of_several_leaders_tells_each_thing_once():
    written = [Entry(10, "failure", "b", 2), Entry(4, "checkpoint", "is entry 1", 1)]
    log = [Entry(3, "checkpoint", "is entry 1", 1), Entry(11, "checkpoint", "is entry 2", 2)]
    told = merge_event_logs(written, log, [Entry(1, "deploy", "mine")])
    assert [e.text for e in told] == ["is entry 1", "b", "is entry 2", "mine"]


def test_a_leader_writes_under_its_own_generation_and_without_secrets():
    store = MemoryStore()
    write_event_log(store, "j", 1, [Entry(1, "failure", "password=hush99 was refused")])
    write_event_log(store, "j", 2, [Entry(2, "deploy", "again")])
    write_event_log(store, "other", 1, [Entry(3, "deploy", "not mine")])
    (first,) = read_event_logs(store, "j", except_generation=2)
    assert (first.generation, first.text) == (1, "password=****** was refused")
    assert [e.generation for e in read_event_logs(store, "j")] == [1, 2]


def test_stories_of_leaders_long_ago_are_deleted():
    store = MemoryStore()
    for generation in range(RETAINED_LEADERS + 3):
        write_event_log(store, "j", generation, [])
    prune_event_logs(store, "j")
    assert len(store.list("stories/j/")) == RETAINED_LEADERS
    assert store.list("stories/j/")[0].endswith("000003.json")
    prune_event_logs(store, "j", 0)
    assert store.list("stories/") == []


class Master:
    def __init__(self, generation):
        self.event_log = EventLog()
        self.graph = type("Graph", (), {"name": "orders"})
        self.identity = type("Identity", (), {"generation": generation})


class Refusing(MemoryStore):
    def put(self, key, data):
        raise StorageError("no room")


async def test_decisions_are_written_soon_and_a_store_that_refuses_costs_the_story_alone(caplog):
    store, master = MemoryStore(), Master(3)
    stories = EventLogs(store)
    master.event_log.add(1, "deploy", "a")
    stories.entries_added("j", master)
    master.event_log.add(2, "failure", "b")
    stories.entries_added("j", master)
    assert store.list("stories/") == []
    await until(lambda: store.list("stories/"), "a written story")
    assert [e.text for e in read_event_logs(store, "j")] == ["a", "b"]
    master.event_log.add(3, "checkpoint", "routine")
    stories.entries_added("j", master)
    master.event_log.add(4, "restart", "c")
    stories.entries_added("j", master)
    await stories.close()
    assert [e.text for e in read_event_logs(store, "j")] == ["a", "b", "routine", "c"]
    refused = EventLogs(Refusing())
    refused.entries_added("j", master)
    await refused.close()
    assert "no room" in caplog.text
    assert [e.text for e in await refused.of("j", master)] == ["a", "b", "routine", "c"]


async def test_routine_entries_are_written_too_after_a_longer_time():
    store, master = MemoryStore(), Master(3)
    stories = EventLogs(store, EventLogTimes(gather_s=0.001, gather_routine_s=0.001))
    texts = lambda: [e.text for e in read_event_logs(store, "j")]
    master.event_log.add(1, "deploy", "a")
    stories.entries_added("j", master)
    await until(lambda: texts() == ["a"], "a written decision")
    master.event_log.add(2, "checkpoint", "routine")
    stories.entries_added("j", master)
    await until(lambda: texts() == ["a", "routine"], "a written routine entry")
    await stories.close()


async def test_a_decision_does_not_wait_for_routine_entries():
    store, master = MemoryStore(), Master(3)
    stories = EventLogs(store, EventLogTimes(gather_s=0.001, gather_routine_s=3600))
    texts = lambda: [e.text for e in read_event_logs(store, "j")]
    for n, kind in enumerate(("deploy", "checkpoint", "failure", "checkpoint"), start=1):
        master.event_log.add(n, kind, str(n))
        stories.entries_added("j", master)
        if kind != "checkpoint":
            await until(lambda last=str(n): texts()[-1:] == [last], "a written decision")
    assert texts() == ["1", "2", "3"]
    await stories.close()
    assert texts() == ["1", "2", "3", "4"], "also those that still gather"


class Hanging(MemoryStore):
    """Answers once it is let go."""

    def __init__(self):
        super().__init__()
        self.go, self.asked, self.answered = threading.Event(), [], []

    def put(self, key, data):
        self._hang(key)
        super().put(key, data)

    def list(self, prefix):
        self._hang(prefix)
        return super().list(prefix)

    def _hang(self, place):
        self.asked.append(place)
        self.go.wait(120)
        self.answered.append(place)


@pytest.fixture
def hanging():
    store = Hanging()
    yield store
    store.go.set()


async def test_stories_of_a_store_that_hangs_take_no_thread_from_leases_and_records(hanging):
    stories, master, loop = EventLogs(hanging, SOON), Master(3), asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    stories.entries_added("j", master)
    views = [asyncio.create_task(stories.of("j", master)) for _ in range(8)]
    await until(lambda: len(hanging.asked) >= 2, "two calls of the store")
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "renewed"), 60) == "renewed"
    hanging.go.set()
    assert await asyncio.gather(*views) == [()] * 8
    await stories.close()
    assert hanging.asked.count("stories/j/") == 2, "one read for all who ask, and one of who writes for the first time"
    assert hanging.asked.count("stories/j/000000000003.json") == 1


async def test_while_a_write_hangs_no_others_gather(hanging):
    stories, master = EventLogs(hanging, SOON), Master(3)
    for n in range(30):
        master.event_log.add(n, "failure", str(n))
        stories.entries_added("j", master)
        if n == 0:
            await until(lambda: hanging.asked, "the first write, which hangs")
        for _ in range(5):
            await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= 3, "this one, the write, and one that waits for it"
    hanging.go.set()
    await stories.close()
    assert [e.text for e in read_event_logs(hanging, "j")] == [str(n) for n in range(30)]
    assert sum(key.endswith(".json") for key in hanging.asked) == 2


async def test_a_store_that_hangs_does_not_hold_up_the_end(hanging, caplog):
    stories, master = EventLogs(hanging, EventLogTimes(gather_s=0.001, call_s=0.2)), Master(3)
    stories.entries_added("j", master)
    stories.entries_added("k", master)
    assert await stories.of("j", None) == ()
    await asyncio.wait_for(stories.close(), 60)
    assert "the event log of job j was not stored: the store does not answer" in caplog.text
    assert "the event log of job k was not stored: 1 earlier calls have not returned" in caplog.text
    stories = EventLogs(hanging, EventLogTimes(gather_s=0.001, call_s=60, close_s=0.2))
    stories.entries_added("j", master)
    await asyncio.wait_for(stories.close(), 60)
    assert hanging.asked
    assert hanging.answered == [], "nothing was waited for until it came"


async def test_a_job_without_a_master_any_more_tells_what_this_leader_wrote_too():
    store, master = MemoryStore(), Master(3)
    write_event_log(store, "j", 2, [Entry(1, "deploy", "before")])
    stories = EventLogs(store)
    master.event_log.add(2, "end", "mine")
    stories.entries_added("j", master)
    await stories.save("j", master)
    assert [e.text for e in await stories.of("j", master)] == ["before", "mine"]
    assert [(e.generation, e.text) for e in await stories.of("j", None)] == [(2, "before"), (3, "mine")]
    stories.forget("j")
    assert [e.text for e in await stories.of("j", master)] == ["before", "mine"]
    await stories.close()


async def test_a_name_tells_all_its_jobs_in_their_order_also_those_without_a_record():
    store, master = MemoryStore(), Master(3)
    write_event_log(store, "first", 1, [Entry(10, "deploy", "a"), Entry(19, "end", "FINISHED")])
    master.event_log.add(30, "deploy", "c")
    elsewhere = [Entry(20, "leader", "b", 2, "elsewhere")]
    master.event_log.earlier = (Entry(11, "checkpoint", "of the first", 1, "first"), *elsewhere)
    stories = EventLogs(store)
    told = await stories.of_jobs({"first": None, "second": master}, elsewhere * 2)
    assert [(e.job_id, e.generation, e.text) for e in told] == [
        ("first", 1, "a"), ("first", 1, "FINISHED"), ("elsewhere", 2, "b"), ("second", 3, "c"),
    ]  # fmt: skip
    assert [e.text for e in await stories.of("second", master)] == ["c"]
    await stories.close()


async def test_a_successor_tells_what_the_leader_before_decided(cluster_of, encoded, tmp_path):  # noqa: F811 - fixtures
    old, machine = await cluster_of()
    job_id = await old.dispatcher.submit(encoded())
    await running(old, job_id)
    machine.kill(next(iter(machine.workers)))
    await until(lambda: old.dispatcher.summary(job_id).restarts == 1, "a restart")
    await running(old, job_id)
    await machine.close()
    await old.close()
    new, _ = await cluster_of()
    await running(new, job_id)
    story = await new.dispatcher.story(job_id)
    first, second = sorted({entry.generation for entry in story})
    before = [entry for entry in story if entry.generation == first]
    assert {"deploy", "running", "failure", "restart", "checkpoint", "leader"} <= {entry.kind for entry in before}
    assert [entry.generation for entry in story] == [first] * len(before) + [second] * (len(story) - len(before))
    assert sum("last words" in entry.text or "was lost" in entry.text for entry in before) >= 1
    # and once the job has ended and run again, a third one still does
    await new.dispatcher.cancel(job_id)
    await new.dispatcher.wait(job_id, 10_000)
    again = await new.dispatcher.submit(encoded())
    await running(new, again)
    await new.dispatcher.cancel(again)
    await new.dispatcher.wait(again, 10_000)
    await new.close()
    third, _ = await cluster_of(taskmanager=False)
    await until(lambda: third.dispatcher.checkpoints(again).completed, "the archive of the last run")
    told = await third.dispatcher.story(job_id)
    assert {first, second} <= {entry.generation for entry in told}
    assert (told[-1].kind, told[-1].text) == ("end", "CANCELED")
    whole = await third.dispatcher.story("job")
    second_run = await third.dispatcher.story(again)
    assert whole == (*told, *second_run)
    assert {entry.job_id for entry in second_run} == {again}
    await third.close()
    # a run of which only the manifest log knows
    (tmp_path / "ha" / "jobs" / f"{job_id}.json").unlink()
    fourth, _ = await cluster_of(taskmanager=False)
    await until(lambda: fourth.dispatcher.checkpoints(again).completed, "the archive of the last run")
    remembered = await fourth.dispatcher.story("job")
    assert list(dict.fromkeys(entry.job_id for entry in remembered)) == [job_id, again]
