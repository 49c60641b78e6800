"""Writes undecodable messages to a topic, at least once: acknowledged before the checkpoint that passes them.

Used by the source reader if `dead_letter_topic` is set. Key, value, timestamp and headers are those of the message.
More headers give its position and the error: `penstock.topic`, `penstock.partition`, `penstock.offset` and
`penstock.error`, all texts.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock_connectors.kafka.write.producer import ProducerError, producer_properties
from penstock_connectors.kafka.write.producer_plain import Letter, PlainProducer

FLUSH_TIMEOUT_MS = 30_000
_PLACE = ("topic", "partition", "offset", "error")


class DeadLetterWriter:
    """One producer for one dead letter topic."""

    def __init__(self, resolved: Mapping[str, str], topic: str) -> None:
        """Start the client."""
        self._topic = topic
        # few messages, and only this producer supports headers
        self._producer = PlainProducer(producer_properties(resolved))
        self._pending = False

    def write(self, letters: pa.RecordBatch) -> None:
        """Queue the letters (columns of the SPI's `DEAD_LETTER_SCHEMA`)."""
        for letter in letters.to_pylist():
            headers = [(header["name"], header["value"]) for header in letter["headers"] or ()]
            headers += [(f"penstock.{name}", str(letter[name]).encode()) for name in _PLACE]
            time_ms = None if letter["timestamp"] is None else round(letter["timestamp"].timestamp() * 1000)
            self._producer.send_one(self._topic, Letter(letter["value"], letter["key"], time_ms, headers))
        self._pending = True

    def flush(self) -> None:
        """Wait for the acknowledgement of all letters since the last call; free if there are none.

        Raises:
            ConnectorError: a letter was not delivered.
        """
        if self._pending:
            try:
                self._producer.flush(FLUSH_TIMEOUT_MS)
            except ProducerError as error:
                raise error.at(f"dead letters to {self._topic!r}") from error
            self._pending = False

    def close(self) -> None:
        """Free the client."""
        self._producer.close()
