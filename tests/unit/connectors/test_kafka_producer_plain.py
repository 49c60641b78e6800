"""How the plain producer reports fatal errors of the extension, and messages that were not delivered."""

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock_connectors.kafka.write.producer import ProducerError, RecordTooLargeError, UnknownTopicError
from penstock_connectors.kafka.write.producer_plain import PlainProducer

FENCED = KafkaError(KafkaError._FENCED, "Local: This instance has been fenced", fatal=True)
STATE = KafkaError(KafkaError._STATE, "Local: Erroneous state")


class Client:
    """Its flush fails as the extension does when an exception in a callback was lost on the way out."""

    def __init__(self, state):
        self.state = state

    def flush(self, _seconds):
        raise SystemError("<method 'flush' of 'cimpl.Producer' objects> returned NULL without setting an exception")

    def begin_transaction(self):
        raise KafkaException(self.state)


def producer_with(state):
    producer = PlainProducer({"bootstrap.servers": "127.0.0.1:1"})
    producer._producer = Client(state)
    return producer


def test_a_lost_exception_of_a_fenced_client_is_asked_for_again():
    with pytest.raises(ProducerError, match=r"flush: .*fenced") as caught:
        producer_with(FENCED).commit(1000)
    assert caught.value.fenced
    assert caught.value.fatal


def test_a_system_error_without_a_fatal_error_behind_it_is_raised_as_it_is():
    with pytest.raises(SystemError, match="returned NULL"):
        producer_with(STATE).flush(1000)


class DeafClient:
    """Delivers nothing: it reports each message with an error, or leaves it in its queue."""

    def __init__(self, owner, error=None):
        self.owner, self.error, self.queued = owner, error, 0

    def produce(self, _topic, **_message):
        self.queued += 1

    def poll(self, _seconds):
        while self.error is not None and self.queued:
            self.queued -= 1
            self.owner._on_delivery(self.error, None)

    def flush(self, _seconds):
        self.poll(0)
        return self.queued


def deaf_producer(error=None):
    producer = producer_with(None)
    producer._producer = DeafClient(producer, error)
    return producer


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_a_topic_that_was_deleted_is_named_with_the_way_out_by_the_first_call_that_meets_it(code):
    with pytest.raises(UnknownTopicError) as caught:
        deaf_producer(KafkaError(code)).send("totals", pa.array([b"a", b"b"]))
    assert caught.value.message.startswith("Kafka producer: 2 messages to topic 'totals' were not delivered: ")
    assert "create the topic again" in caught.value.hint


def test_messages_without_an_acknowledgement_have_their_topic():
    producer = deaf_producer()
    producer.send("totals", pa.array([b"a"]))
    with pytest.raises(ProducerError, match="1 messages to topic 'totals' are not acknowledged after 3 s"):
        producer.flush(3_000)


class BrokenClient:
    """Refuses messages of a broken transaction, and reports the message that broke it to a caller who waits."""

    def __init__(self, owner, cause):
        self.owner, self.cause = owner, cause

    def produce(self, _topic, **_message):
        raise KafkaException(STATE)

    def poll(self, seconds):
        if seconds:
            self.owner._on_delivery(self.cause, None)


def test_a_refused_message_waits_for_the_report_of_the_one_that_broke_the_transaction():
    producer = producer_with(None)
    producer._producer = BrokenClient(producer, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    with pytest.raises(RecordTooLargeError, match="too large"):
        producer.send("totals", pa.array([b"a"]))
