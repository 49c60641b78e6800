"""Writes messages that are no rows to a topic, at least once: acknowledged before the checkpoint that passes them.

Used by the source reader when `dead_letter_topic` is given. The value is the original one; headers are not written,
the place and the reason are in the key: `{"topic":...,"partition":...,"offset":...,"error":...}`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock_connectors.formats.json_encode import encode_json
from penstock_connectors.kafka.producer import ProducerError, open_producer

FLUSH_TIMEOUT_MS = 30_000


class DeadLetterWriter:
    """One producer for one dead letter topic."""

    def __init__(self, resolved: Mapping[str, str], topic: str) -> None:
        """Start the client."""
        self._topic = topic
        self._producer = open_producer(resolved)
        self._pending = False

    def write(self, letters: pa.RecordBatch) -> None:
        """Queue the letters (columns of the SPI's `DEAD_LETTER_SCHEMA`)."""
        place = letters.drop_columns(["value"])
        self._producer.send(self._topic, letters.column("value"), encode_json(place))
        self._pending = True

    def flush(self) -> None:
        """Wait for the acknowledgement of what was written since the last call; free when there was nothing.

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
