"""The fetchers of Kafka under back-pressure: nothing is fetched, and the client's events do not pile up."""

import os
import threading
from collections import deque
from types import SimpleNamespace

import pytest

from penstock_connectors.kafka.client import librdkafka as lib
from penstock_connectors.kafka.read import fetch_fast, fetch_plain
from penstock_connectors.kafka.read.fetch import ClientEvents, FetchProblem, FetchResult, FetchSettings

SETTINGS = FetchSettings({"bootstrap.servers": "b:9"}, wake=lambda: None)
PLACE = ("t", 0)
#: Notified at each call of a scripted client.
called = threading.Condition()


def wait_until(condition, what):
    with called:
        assert called.wait_for(condition, 60), what


def notify():
    with called:
        called.notify_all()


def test_the_newest_statistics_and_one_error_of_each_kind_are_kept():
    events, result = ClientEvents(), FetchResult()
    for number in range(1_000):
        events.measured(b"%d" % number)
        events.failed(FetchProblem(-195, f"failure {number}"))
        events.failed(FetchProblem(1, "gone", PLACE))
    events.move_to(result)
    assert result.statistics == b"999"
    assert result.problems == [FetchProblem(-195, "failure 999"), FetchProblem(1, "gone", PLACE)]
    events.move_to(again := FetchResult())
    assert (again.statistics, again.problems) == (b"", [])


class ClientQueues:
    """librdkafka's queue of events, and the pipes into which it writes."""

    MAIN, MESSAGES = 2, 3

    def __init__(self, monkeypatch):
        self.events, self.pipes = deque(), {}
        replaced = {
            "new_client": lambda *_: 1,
            "queue_get_main": lambda _: self.MAIN,
            "queue_get_consumer": lambda _: self.MESSAGES,
            "queue_io_event_enable": lambda queue, pipe, sign, _: self.pipes.update({queue: (pipe, sign)}),
            "queue_poll": self._poll,
            "queue_destroy": lambda _: None,
            "destroy_flags": lambda *_: None,
            "consume_batch_queue": lambda *_: 0,
            "event_type": lambda event: event.kind,
            "event_error": lambda event: event.code,
            "event_error_string": lambda event: event.text,
            "event_stats": lambda event: event.text,
            "event_destroy": lambda _: None,
        }
        for name, function in replaced.items():
            monkeypatch.setattr(lib, name, function)

    def _poll(self, *_):
        notify()
        return self.events.popleft() if self.events else None

    def report(self, kind, code=0, text=b""):
        self.events.append(SimpleNamespace(kind=kind, code=code, text=text))
        if self.MAIN in self.pipes:
            os.write(*self.pipes[self.MAIN])


@pytest.fixture
def client(monkeypatch):
    return ClientQueues(monkeypatch)


def test_the_compiled_fetcher_takes_events_while_nothing_is_fetched(client):
    fetcher = fetch_fast.FastFetcher(SETTINGS)
    for number in range(100):
        client.report(lib.EVENT_STATS, text=b"%d" % number)
    client.report(lib.EVENT_ERROR, -187, b"all brokers down")
    client.report(lib.EVENT_COMMIT, 7)
    wait_until(lambda: not client.events and fetcher.commit_failures == 1, "events are left in the queue")
    result = fetcher.fetch(1)
    assert (result.statistics, result.problems) == (b"99", [FetchProblem(-187, "all brokers down")])
    fetcher.close()


class ScriptedConsumer:
    """A consumer that always has a message, unless its partitions are paused."""

    def __init__(self, properties):
        self._stats = properties["stats_cb"]
        self._assigned, self.paused, self.served = set(), set(), 0

    def consume(self, _most, _wait_s):
        self.served += 1
        notify()
        self._stats(str(self.served))
        return [Message(place) for place in self._assigned - self.paused]

    def incremental_assign(self, items):
        self._assigned |= {(item.topic, item.partition) for item in items}

    def assignment(self):
        return [SimpleNamespace(topic=topic, partition=partition) for topic, partition in self._assigned]

    def pause(self, items):
        self.paused |= {(item.topic, item.partition) for item in items}

    def resume(self, items):
        self.paused -= {(item.topic, item.partition) for item in items}

    def get_watermark_offsets(self, _place, *, cached):
        return 0, 0

    def close(self):
        pass


class Message:
    def __init__(self, place):
        self._place = place

    def topic(self):
        return self._place[0]

    def partition(self):
        return self._place[1]

    def error(self):
        return None

    def offset(self):
        return 0

    def value(self):
        return b"{}"


def test_the_plain_fetcher_takes_events_while_nothing_is_fetched(monkeypatch):
    monkeypatch.setattr(fetch_plain, "Consumer", ScriptedConsumer)
    fetcher = fetch_plain.PlainFetcher(SETTINGS, wait_s=0.001)
    consumer = fetcher._consumer
    fetcher.add({PLACE: 0, ("t", 1): 0})
    wait_until(lambda: consumer.served > 200, "the queue is full, and the client is not served")
    assert consumer.paused == {PLACE, ("t", 1)}, "messages would pile up"
    fetcher.add({("t", 2): 0})
    wait_until(lambda: ("t", 2) in consumer.paused, "a new partition is not paused")
    fetcher.pause([("t", 1)])
    fetcher.resume([PLACE])
    served = consumer.served
    wait_until(lambda: consumer.served > served + 2, "the client is not served")
    assert PLACE in consumer.paused, "the queue is still full"
    result = fetcher.fetch(100_000)
    assert int(result.statistics) > 200
    assert len(result.messages.slot) < 100
    wait_until(lambda: consumer.paused == {("t", 1)}, "not resumed, or against the reader's will")
    fetcher.close()
