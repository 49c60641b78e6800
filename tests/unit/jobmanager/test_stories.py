"""What a job's leaders decided, one after another: written down by each, told by the last."""

from tests.unit.jobmanager.test_jobmanager_process import (
    _connectors,  # noqa: F401 - a fixture
    cluster_of,  # noqa: F401 - a fixture
    encoded,  # noqa: F401 - a fixture
    running,
    until,
)

from penstock.checkpoint.memory_store import MemoryStore
from penstock.checkpoint.story_records import LEADERS_TOLD, prune_stories, read_stories, write_story
from penstock.core.errors import StorageError
from penstock.core.event_log import Entry, EventLog, with_earlier
from penstock.jobmanager.stories import Stories


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
    told = with_earlier(written, log, [Entry(1, "deploy", "mine")])
    assert [e.text for e in told] == ["is entry 1", "b", "is entry 2", "mine"]


def test_a_leader_writes_under_its_own_generation_and_without_secrets():
    store = MemoryStore()
    write_story(store, "j", 1, [Entry(1, "failure", "password=hush99 was refused")])
    write_story(store, "j", 2, [Entry(2, "deploy", "again")])
    write_story(store, "other", 1, [Entry(3, "deploy", "not mine")])
    (first,) = read_stories(store, "j", but=2)
    assert (first.generation, first.text) == (1, "password=****** was refused")
    assert [e.generation for e in read_stories(store, "j")] == [1, 2]


def test_stories_of_leaders_long_ago_are_deleted():
    store = MemoryStore()
    for generation in range(LEADERS_TOLD + 3):
        write_story(store, "j", generation, [])
    prune_stories(store, "j")
    assert len(store.list("stories/j/")) == LEADERS_TOLD
    assert store.list("stories/j/")[0].endswith("000003.json")
    prune_stories(store, "j", 0)
    assert store.list("stories/") == []


class Master:
    def __init__(self, generation):
        self.story = EventLog()
        self.graph = type("Graph", (), {"name": "orders"})
        self.identity = type("Identity", (), {"generation": generation})


class Refusing(MemoryStore):
    def put(self, key, data):
        raise StorageError("no room")


async def test_decisions_are_written_soon_and_a_store_that_refuses_costs_the_story_alone(caplog):
    store, master = MemoryStore(), Master(3)
    stories = Stories(store)
    master.story.add(1, "deploy", "a")
    stories.grew("j", master)
    master.story.add(2, "failure", "b")
    stories.grew("j", master)
    assert store.list("stories/") == []
    await until(lambda: store.list("stories/"))
    assert [e.text for e in read_stories(store, "j")] == ["a", "b"]
    master.story.add(3, "checkpoint", "routine")
    stories.grew("j", master)
    master.story.add(4, "restart", "c")
    stories.grew("j", master)
    await stories.close()
    assert [e.text for e in read_stories(store, "j")] == ["a", "b", "routine", "c"]
    refused = Stories(Refusing())
    refused.grew("j", master)
    await refused.close()
    assert "no room" in caplog.text
    assert [e.text for e in await refused.of("j", master)] == ["a", "b", "routine", "c"]


async def test_a_successor_tells_what_the_leader_before_decided(cluster_of, encoded):  # noqa: F811 - fixtures
    old, machine = await cluster_of()
    job_id = await old.dispatcher.submit(encoded())
    await running(old, job_id)
    machine.kill(next(iter(machine.workers)))
    await until(lambda: old.dispatcher.summary(job_id).restarts == 1)
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
    # and once the job has ended, a third one still does
    await new.dispatcher.cancel(job_id)
    await new.dispatcher.wait(job_id, 10_000)
    await new.close()
    third, _ = await cluster_of(taskmanager=False)
    told = await third.dispatcher.story(job_id)
    assert {first, second} <= {entry.generation for entry in told}
    assert (told[-1].kind, told[-1].text) == ("end", "CANCELED")
