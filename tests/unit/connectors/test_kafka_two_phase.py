"""The writer of open transactions: which ids it uses."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.connector.sink import SinkContext
from penstock.core.clock import ManualClock
from penstock.core.errors import ConnectorError

pytest.importorskip("kafka")

from penstock_connectors.kafka.write import coordinator, two_phase
from penstock_connectors.kafka.write.coordinator import LOST_AFTER_MS, AnswerWatch
from penstock_connectors.kafka.write.producer import ProducerError, call_with_timeout, timeout_error

TIMEOUT_MS = 60_000


class Producer:
    """A producer that is always content."""

    def __init__(self, opened: list[str], name: str) -> None:
        opened.append(name)

    def __getattr__(self, _name):
        return lambda *_: None


class Admin:
    def describe(self, _name):
        return SimpleNamespace(
            producer_id=1, producer_epoch=0, state=SimpleNamespace(value="Ongoing"), topic_partitions=(),
            transaction_start_time_ms=0, transaction_timeout_ms=1000,
        )  # fmt: skip

    def markers(self, groups, *, stable):
        assert not stable, "an open transaction of an earlier attempt holds it up"
        return dict.fromkeys(groups, -1)

    def lacks(self, topic):
        return topic == "t"

    def close(self):
        pass


@pytest.fixture
def writer_of(monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(two_phase, "open_producer", lambda _resolved, name, _timeout: Producer(opened, name))
    monkeypatch.setattr(coordinator, "TransactionAdmin", lambda _resolved: Admin())
    config = {"bootstrap": "b:1", "properties": {}, "topic": "t", "transaction_timeout_ms": TIMEOUT_MS, "format": "raw"}
    writers = []

    def make(attempt: int):
        context = SinkContext("job", "out", "r", 2, 3, attempt, ManualClock(0))
        writers.append(two_phase.TransactionWriter({**config, "key": None}, context))
        return writers[-1], opened

    yield make
    for writer in writers:
        writer.close()


def used(writer) -> list[str]:
    rows = pa.record_batch({"value": pa.array([b"x"])})
    found = []
    for checkpoint_id in (1, 2, 3):
        writer.write(rows)
        found += [item.transactional_id for item in writer.prepare_commit(checkpoint_id)]
    return found


def test_the_first_transaction_waits_until_its_marker_has_a_coordinator(monkeypatch, writer_of):
    """A new cluster has none at first, and librdkafka would wait for it without an end."""
    asked = []

    def markers(_self, groups, *, stable):
        asked.append((dict(groups), stable))
        if len(asked) == 1:
            raise ConnectorError("Kafka: CoordinatorNotAvailable")
        return {}

    monkeypatch.setattr(Admin, "markers", markers)
    writer, _ = writer_of(0)
    used(writer)
    assert asked == [({"job.out.r.2": "t"}, False)] * 2


def test_attempts_share_no_transactional_id(writer_of):
    """A late thread of an old attempt that initialises an id aborts what is open under it."""
    old, opened = writer_of((1 << 16) + 0)
    first = used(old)
    old.close()
    before = set(opened)
    new, opened = writer_of((1 << 16) + 1)
    second = used(new)
    new.close()
    assert len(set(first)) == len(set(second)) == 3
    assert not before & set(opened[len(before) :])
    assert all(name.startswith("job.out.r.2.") and name.rpartition(".")[2].isdigit() for name in opened)


def test_a_topic_that_was_deleted_is_named_with_sink_and_way_out(monkeypatch, writer_of):
    """The client does not answer a marker of a topic that does not exist."""
    writer, _ = writer_of(0)
    writer.write(pa.record_batch({"value": pa.array([b"x"])}))

    def mark(*arguments):
        assert not arguments[-1](), "the topic is known to be missing"
        raise timeout_error("send_offsets", 5_000)

    monkeypatch.setattr(writer._current.producer, "mark", mark, raising=False)
    with pytest.raises(ConnectorError) as caught:
        writer.prepare_commit(1)
    assert re.match(r"sink 'out': transaction \S+ of checkpoint 1 to topic 't': .*does not exist", caught.value.message)
    assert "create the topic again" in caught.value.hint


def test_calls_of_a_barrier_wait_for_as_long_as_the_broker_keeps_the_transaction(monkeypatch, writer_of):
    """The error of a longer outage has the sink, the topic, the cause and the way out."""
    writer, _ = writer_of(0)
    clock, waited = writer._context.clock, []
    writer.write(pa.record_batch({"value": pa.array([b"x"])}))
    clock.advance(10_000)

    def flush(timeout_ms):
        waited.append(timeout_ms)
        clock.advance(40_000)

    def mark(_group, _topic, _offset, timeout_ms, _wanted):
        waited.append(timeout_ms)
        raise timeout_error("send_offsets", timeout_ms)

    monkeypatch.setattr(writer._current.producer, "flush", flush, raising=False)
    monkeypatch.setattr(writer._current.producer, "mark", mark, raising=False)
    with pytest.raises(ConnectorError) as caught:
        writer.prepare_commit(1)
    assert waited == [TIMEOUT_MS - 10_000, TIMEOUT_MS - 50_000]
    place = r"sink 'out': transaction \S+ of checkpoint 1 to topic 't'"
    assert re.fullmatch(rf"{place}: Kafka producer, send_offsets: no answer within 10 s", caught.value.message)
    assert caught.value.hint.startswith("check that the brokers run and are reachable")


def test_a_producer_waits_for_its_id_while_kafka_does_not_answer(monkeypatch, writer_of):
    asked = []

    def init_transactions(timeout_ms):
        asked.append(timeout_ms)
        if len(asked) < 3:
            raise ProducerError("Kafka producer, init_transactions: timed out", retriable=True, timed_out=True)

    monkeypatch.setattr(Producer, "init_transactions", staticmethod(init_transactions), raising=False)
    writer, opened = writer_of(0)
    writer.write(pa.record_batch({"value": pa.array([b"x"])}))
    assert opened.count("job.out.r.2.0") == 1, "a late request of another producer would abort its transaction"
    assert len(asked) >= 3


def test_a_missing_producer_has_the_sink_and_the_way_out(monkeypatch, writer_of):
    def init_transactions(_timeout_ms):
        raise ProducerError("Kafka producer, init_transactions: refused")

    monkeypatch.setattr(Producer, "init_transactions", staticmethod(init_transactions), raising=False)
    writer, _ = writer_of(0)
    with pytest.raises(ConnectorError, match="sink 'out', topic 't': Kafka producer, init_transactions: ref") as caught:
        writer.write(pa.record_batch({"value": pa.array([b"x"])}))
    assert caught.value.hint.startswith("check that the brokers run")


def test_a_producer_is_waited_for_until_kafka_has_answered_others_for_long():
    clock, answers = ManualClock(0), []
    watch = AnswerWatch(clock, lambda: answers.pop(0))

    def wanted(*found, every_ms=LOST_AFTER_MS // 2):
        answers.extend(found)
        told = []
        for _ in found:
            told.append(watch.wanted())
            clock.advance(every_ms)
        return told

    assert wanted(*[None] * 9) == [True] * 9, "nobody has an answer"
    assert wanted(False, False, None) == [True, True, True]
    assert wanted(False, False, False) == [True, True, False]
    assert not watch.topic_lacks
    assert wanted(None, True) == [True, False]
    assert watch.topic_lacks


def test_a_call_that_is_no_longer_wanted_is_given_up():
    released, late = threading.Event(), Future()

    def call():
        assert released.wait(30)
        return 7

    answers = iter([True, True, False])
    assert call_with_timeout(call, 60_000, late.set_result, lambda: next(answers), ask_every_ms=1) is None
    released.set()
    assert late.result(30) == 7
