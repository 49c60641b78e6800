"""The writer of open transactions: which ids it uses."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.connector.sink import SinkContext
from penstock.core.clock import ManualClock
from penstock.core.errors import ConnectorError

pytest.importorskip("kafka")

from penstock_connectors.kafka.write import two_phase
from penstock_connectors.kafka.write.producer import timeout_error


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

    def lacks(self, topic):
        return topic == "t"

    def close(self):
        pass


@pytest.fixture
def writer_of(monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(two_phase, "open_producer", lambda _resolved, name, _timeout: Producer(opened, name))
    monkeypatch.setattr(two_phase, "TransactionAdmin", lambda _resolved: Admin())
    config = {"bootstrap": "b:1", "properties": {}, "topic": "t", "transaction_timeout_ms": 1000, "format": "raw"}
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

    def mark(*_arguments):
        raise timeout_error("send_offsets", 5_000)

    monkeypatch.setattr(writer._current.producer, "mark", mark, raising=False)
    with pytest.raises(ConnectorError) as caught:
        writer.prepare_commit(1)
    assert re.match(r"sink 'out': transaction \S+ of checkpoint 1 to topic 't': .*does not exist", caught.value.message)
    assert "create the topic again" in caught.value.hint
