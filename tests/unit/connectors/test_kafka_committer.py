"""Publishing staged output: rows that cannot be encoded leave no transaction open, messages go out in rounds."""

from __future__ import annotations

import re

import msgspec
import pyarrow as pa
import pytest

from penstock.connector.staging import encode_chunk
from penstock.core.clock import ManualClock
from penstock.core.errors import ConnectorError, UndecidedOutputError
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable, FileRef

pytest.importorskip("kafka")

from penstock_connectors.kafka.write import committer as module
from penstock_connectors.kafka.write.producer import ProducerError, UnknownTopicError, timeout_error

SCHEMA = pa.schema([("id", pa.int64())])
CONFIG = {"bootstrap": "nowhere:1", "properties": {}, "topic": "totals", "format": "json", "key": None}
PERMIT = CommitPermit(job_id="j", run_id="r", generation=1, checkpoint_id=1, manifest_sequence=1)
OWED = Committable(
    id="out/r/0/1", uid="out", run_id="r", subtask=0, checkpoint_id=1, rows=5, transactional_id="t", marker_group="t",
    files=(FileRef(inline=encode_chunk(SCHEMA, [pa.record_batch([pa.array(range(5))], schema=SCHEMA)])),),
)  # fmt: skip


class Producer:
    """Remembers what was called; messages count once they are committed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sent: list[str] = []
        self.committed: list[str] = []
        self.stuck = False

    def begin(self):
        self.calls.append("begin")

    def send(self, _topic, value, _key=None):
        self.calls.append("send")
        self.sent += value.to_pylist()

    def flush(self, _timeout):
        self.calls.append("flush")

    def mark(self, *_arguments):
        self.calls.append("mark")

    def commit(self, _timeout):
        self.calls.append("commit")
        self.committed, self.sent = self.committed + self.sent, []

    def abort(self, _timeout):
        self.calls.append("abort")
        self.sent = []
        if self.stuck:
            raise ProducerError("the broker is away")

    def close(self):
        self.calls.append("close")


class Admin:
    """Knows partitions, once it is told; counts how often it was asked."""

    def __init__(self) -> None:
        self.known, self.asked = 4, 0

    def partitions(self, _topic):
        self.asked += 1
        return self.known

    def close(self):
        """Its connection may be dead."""


@pytest.fixture
def producer():
    return Producer()


@pytest.fixture
def committer(monkeypatch, producer):
    monkeypatch.setattr(module, "TransactionAdmin", lambda _resolved: Admin())
    made = module.StagedCommitter(CONFIG, ManualClock(0), piece_rows=2)
    monkeypatch.setattr(made, "_learn_markers", lambda _items: None)
    monkeypatch.setattr(made, "_take_producer", lambda _name: producer)
    monkeypatch.setattr(made, "_marker", lambda _item: -1)
    made._admin = Admin()
    return made


def encode_until(monkeypatch, piece):
    """Let the encoding of one piece (0: the first) fail, once."""
    encode, pieces = module.encode, iter(range(100))

    def perhaps(rows, config):
        if next(pieces) == piece:
            raise ValueError("no such text")
        return encode(rows, config)

    monkeypatch.setattr(module, "encode", perhaps)


@pytest.mark.parametrize(
    ("piece", "calls"), [(0, []), (1, ["begin", "send", "abort"]), (2, ["begin", "send", "send", "abort"])]
)
@pytest.mark.parametrize("stuck", [False, True])
def test_rows_that_cannot_be_encoded_leave_no_transaction_open(monkeypatch, committer, producer, piece, calls, stuck):
    encode_until(monkeypatch, piece)
    producer.stuck = stuck
    with pytest.raises(ValueError, match="no such text"):
        committer.commit(PERMIT, (OWED,), lambda file: file.inline)
    assert producer.calls == calls
    (outcome,) = committer.commit(PERMIT, (OWED,), lambda file: file.inline)
    assert outcome.resolution == "published"
    assert producer.committed == [f'{{"id":{i}}}' for i in range(5)]
    assert producer.calls[len(calls) :] == ["begin", "send", "send", "send", "flush", "mark", "commit"]


@pytest.mark.parametrize(
    "first",
    [
        ProducerError("init_transactions: timed out", timed_out=True),
        ProducerError("init_transactions: Broker: Coordinator load in progress", retriable=True),
    ],
)
def test_a_broker_that_is_away_before_the_first_publication_is_waited_for(monkeypatch, committer, producer, first):
    """The producer of the first publication is made in the background: without an answer it fails there."""
    attempts = []

    def learn(_items):
        attempts.append(committer._clock.monotonic_ms())
        if len(attempts) == 1:
            raise first
        if len(attempts) < 20:
            raise ConnectorError("Kafka cannot be reached")

    monkeypatch.setattr(committer, "_learn_markers", learn)
    (outcome,) = committer.commit(PERMIT, (OWED,), lambda file: file.inline)
    assert outcome.resolution == "published"
    assert len(attempts) == 20
    assert attempts == sorted(set(attempts)), "no pause between two attempts"


def test_a_topic_that_was_deleted_is_an_error_with_sink_topic_and_way_out_at_once(monkeypatch, committer, producer):
    def flush(_timeout):
        raise UnknownTopicError("Kafka producer: 5 messages to topic 'totals' were not delivered", "Unknown partition")

    monkeypatch.setattr(producer, "flush", flush)
    with pytest.raises(ConnectorError) as caught:
        committer.commit(PERMIT, (OWED,), lambda file: file.inline)
    assert caught.value.message.startswith("publishing 5 records of checkpoint 1 to 'totals' (sink 'out' subtask 0, t)")
    assert "create the topic again" in caught.value.hint
    assert producer.calls.count("begin") == 1


def test_an_attempt_after_a_failure_waits_for_its_messages_before_the_marker(monkeypatch, committer, producer):
    """The client answers a marker of a deleted topic with silence, and messages with an error."""
    failures = iter([timeout_error("send_offsets", 5_000)])

    def mark(*_arguments):
        producer.calls.append("mark")
        if committer._producers["t"].marker > 0 and (error := next(failures, None)):
            raise error

    monkeypatch.setattr(producer, "mark", mark)
    second = msgspec.structs.replace(OWED, id="out/r/0/2", checkpoint_id=2)
    permit = msgspec.structs.replace(PERMIT, checkpoint_id=2)
    committer.commit(permit, (OWED, second), lambda file: file.inline)
    calls = [call for call in producer.calls if call in ("flush", "mark", "commit")]
    assert calls == ["flush", "mark", "commit", "mark", "flush", "mark", "commit"]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (UndecidedOutputError("the marker may have expired"), 1),
        (ProducerError("a newer attempt has taken over", fenced=True), 1),
        (ProducerError("refused"), 1),
        (UnknownTopicError("5 messages to topic 'totals' were not delivered", "Local: Unknown partition"), 1),
        (ConnectorError("Kafka cannot be reached"), 100),
    ],
)
def test_only_a_broker_without_an_answer_is_waited_for_and_not_for_ever(monkeypatch, committer, error, attempts):
    seen = []

    def learn(_items):
        seen.append(error)
        raise error

    monkeypatch.setattr(committer, "_learn_markers", learn)
    with pytest.raises(type(error), match=re.escape(str(error.message))):
        committer.commit(PERMIT, (OWED,), lambda file: file.inline)
    assert len(seen) == 1 if attempts == 1 else len(seen) >= attempts


def test_a_round_is_delivered_before_the_next_one_begins(monkeypatch, committer, producer):
    one = 5 * (8 + 4 + 1 + 80)  # text, offsets, validity and what the client adds, for all of the five
    monkeypatch.setattr(committer, "_round_bytes", lambda: one // 3)
    committer.commit(PERMIT, (OWED,), lambda file: file.inline)
    sends = [call for call in producer.calls if call in ("send", "flush")]
    assert "flush" in sends[1:-1], "no wait between two rounds"
    assert producer.committed == [f'{{"id":{i}}}' for i in range(5)]


def test_partitions_nobody_knows_are_asked_for_again(committer):
    admin = committer._admin
    admin.known = 0
    one = committer._round_bytes()
    admin.known = 3
    assert [committer._round_bytes() for _ in range(2)] == [3 * one, 3 * one]
    assert admin.asked == 2


class Coordinator:
    """A transactional id at a broker: the newest producer owns it; an abandoned call may arrive late."""

    def __init__(self):
        self.owner, self.open, self.committed, self.marker = None, [], [], -1
        #: Calls that were abandoned, by when they arrive.
        self.late = {"before the next owner": [], "after it": []}

    def take(self, producer):
        self.arrive("before the next owner")
        self.owner, self.open = producer, []

    def arrive(self, when):
        for call in self.late[when]:
            call()
        self.late[when] = []

    def commit(self, producer, marker):
        if producer is not self.owner:
            return
        self.committed += self.open
        self.marker, self.open = marker, []


class OwningProducer(Producer):
    """A producer of a coordinator; its first call named `fails` gets no answer within 5 s."""

    def __init__(self, coordinator, fails, arrives):
        super().__init__()
        self.coordinator, self.fails, self.arrives, self.marked = coordinator, fails, arrives, -1
        coordinator.take(self)

    def send(self, _topic, value, _key=None):
        self.coordinator.arrive("after it")
        self.coordinator.open += value.to_pylist()

    def mark(self, _group, _topic, offset, *_timeout):
        self.marked = offset
        if self.fails == "mark":
            raise timeout_error("send_offsets", 5_000)

    def commit(self, _timeout):
        if self.fails == "commit":
            late = self.coordinator.late.get(self.arrives, [])
            late.append(lambda: self.coordinator.commit(self, self.marked))
            if self.arrives == "at once":
                self.coordinator.commit(self, self.marked)
            raise timeout_error("commit", 5_000)
        self.coordinator.commit(self, self.marked)


@pytest.mark.parametrize(
    ("fails", "arrives"),
    [
        ("mark", ""),
        ("commit", "never"),
        ("commit", "at once"),
        ("commit", "before the next owner"),
        ("commit", "after it"),
    ],
)
def test_the_id_of_an_abandoned_producer_is_used_again_and_the_output_is_exact(monkeypatch, committer, fails, arrives):
    coordinator, taken = Coordinator(), []

    def take(_name):
        taken.append(OwningProducer(coordinator, "" if taken else fails, arrives))
        return taken[-1]

    monkeypatch.setattr(committer, "_take_producer", take)
    monkeypatch.setattr(committer, "_marker", lambda _item: coordinator.marker)
    for checkpoint in (1, 2):
        item = msgspec.structs.replace(OWED, id=f"out/r/0/{checkpoint}", checkpoint_id=checkpoint)
        permit = msgspec.structs.replace(PERMIT, checkpoint_id=checkpoint)
        committer.commit(permit, (item,), lambda file: file.inline)
        assert coordinator.committed == [f'{{"id":{i}}}' for i in range(5)] * checkpoint
    assert len(taken) == 2
    assert taken[0].calls[-1] == "close"
    assert coordinator.open == []
