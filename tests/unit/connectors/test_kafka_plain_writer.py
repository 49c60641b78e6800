"""The errors of the writer without transactions."""

import pyarrow as pa
import pytest

from penstock.core.errors import ConnectorError

pytest.importorskip("confluent_kafka")

from penstock_connectors.kafka.write import writer
from penstock_connectors.kafka.write.producer import UnknownTopicError

CONFIG = {"bootstrap": "nowhere:1", "properties": {}, "topic": "totals", "format": "raw", "key": None}


class Producer:
    """Meets a topic that does not exist in the named call."""

    def __init__(self, call: str) -> None:
        self.call = call

    def send(self, *_arguments):
        self._meet("send")

    def flush(self, _timeout):
        self._meet("flush")

    def close(self):
        pass

    def _meet(self, call: str) -> None:
        if call == self.call:
            raise UnknownTopicError("Kafka producer: 1 messages to topic 'totals' were not delivered", "Unknown topic")


@pytest.mark.parametrize(("call", "flush_at_barrier"), [("send", False), ("send", True), ("flush", True)])
def test_an_error_has_the_sink_the_topic_and_the_way_out(monkeypatch, call, flush_at_barrier):
    monkeypatch.setattr(writer, "open_producer", lambda _resolved: Producer(call))
    plain = writer.PlainWriter(CONFIG, "out", flush_at_barrier=flush_at_barrier)
    with pytest.raises(ConnectorError) as caught:  # noqa: PT012 - either call may raise
        plain.write(pa.record_batch({"value": pa.array([b"x"])}))
        plain.prepare_commit(1)
    assert caught.value.message.startswith("sink 'out': Kafka producer: 1 messages to topic 'totals' were not")
    assert "create the topic again" in caught.value.hint
    plain.close()
