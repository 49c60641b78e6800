"""The dead letter writer: when it waits for Kafka, what is reported meanwhile, and its errors."""

import pytest

from penstock.connector.staging import dead_letters
from penstock.core.errors import ConnectorError

pytest.importorskip("confluent_kafka")

from penstock_connectors.kafka.write import producer_plain
from penstock_connectors.kafka.write.producer import UnknownTopicError, flush_timeout_error

WAIT = "source 'in' (2): delivering dead letters to topic 'aside' at b:9"


class Producer:
    def __init__(self, _properties):
        self.sent, self.flushed, self.error = [], [], None

    def send_one(self, _topic, letter):
        self.sent.append(letter.value)

    def flush(self, _timeout_ms):
        if self.error is not None:
            raise self.error
        self.flushed.append(len(self.sent))


@pytest.fixture
def waits():
    return []


@pytest.fixture
def writer_of(monkeypatch, waits):
    def run_waiting(work, what):
        waits.append(what)
        return work()

    monkeypatch.setattr(producer_plain, "PlainProducer", Producer)
    resolved = {"bootstrap.servers": "b:9"}
    return lambda *most: producer_plain.DeadLetterWriter(resolved, "aside", "source 'in' (2)", run_waiting, *most)


@pytest.fixture
def writer(writer_of):
    return writer_of()


def letters(count, value=b"x"):
    found = dead_letters(
        value=[value] * count, topic=["t"] * count, partition=[0] * count, offset=list(range(count)),
        error=["why"] * count, key=[None] * count, timestamp=[None] * count, headers=[[]] * count,
    )  # fmt: skip
    assert found.num_rows == count
    return found


def test_a_flush_waits_with_a_text_about_the_topic_and_only_after_letters(writer, waits):
    writer.flush()
    assert waits == []
    writer.write(letters(2))
    writer.flush()
    writer.flush()
    assert (waits, writer._producer.flushed) == ([WAIT], [2])


@pytest.mark.parametrize("most", [(3, 1_000), (1_000, 12)])
def test_letters_past_a_limit_wait_for_those_before_them(writer_of, waits, most):
    writer = writer_of(most)
    writer.write(letters(7, b"four"))
    assert (waits, writer._producer.flushed) == ([WAIT] * 2, [3, 6])
    writer.flush()
    assert writer._producer.flushed == [3, 6, 7]


def test_letters_without_an_acknowledgement_name_the_source_the_broker_and_the_way_out(writer):
    writer._producer.error = flush_timeout_error(2, {"aside"}, producer_plain.DELIVERY_TIMEOUT_MS)
    writer.write(letters(2))
    with pytest.raises(ConnectorError) as caught:
        writer.flush()
    assert caught.value.message == (
        "source 'in' (2): dead letters to topic 'aside' at b:9: Kafka producer: 2 messages to topic 'aside' are not "
        "acknowledged after 300 s"
    )
    assert caught.value.hint.startswith("check that the brokers run")
    writer._producer.error = UnknownTopicError("Kafka producer: 2 messages", "unknown")
    with pytest.raises(ConnectorError) as caught:
        writer.flush()
    assert caught.value.hint.startswith("create the topic again")
