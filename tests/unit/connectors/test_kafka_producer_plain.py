"""What the plain producer makes of the extension's own way to tell of a fatal error."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock_connectors.kafka.write.producer import ProducerError
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
