"""The writer without transactions: at-least-once (flushed at every barrier) or none (no waiting).

Runs in the sink subtask's thread; `write` waits only while the client's queue is full.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa

from penstock.core.snapshot import Committable
from penstock_connectors.kafka.client.properties import resolve
from penstock_connectors.kafka.write.payloads import encode
from penstock_connectors.kafka.write.producer import ProducerError
from penstock_connectors.kafka.write.producer_choice import open_producer

FLUSH_TIMEOUT_MS = 120_000
_LAST_FLUSH_MS = 5_000


class PlainWriter:
    """A `SinkWriter` with nothing to commit."""

    def __init__(self, config: dict[str, Any], uid: str, *, flush_at_barrier: bool) -> None:
        """Start the client; `uid` is the sink's."""
        self._config, self._where = config, f"sink {uid!r}"
        self._flush = flush_at_barrier
        self._producer = open_producer(resolve(config["bootstrap"], config["properties"]))
        self._closed = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Pass the rows to the client.

        Raises:
            ConnectorError: the client refused rows, or the topic does not exist.
        """
        values, keys = encode(batch, self._config)
        try:
            self._producer.send(self._config["topic"], values, keys)
        except ProducerError as error:
            raise error.at(self._where) from error

    def prepare_commit(self, checkpoint_id: int) -> tuple[Committable, ...]:  # noqa: ARG002 - the protocol's
        """Wait until all written rows are acknowledged (at-least-once only).

        Raises:
            ConnectorError: a message was not delivered.
        """
        if self._flush:
            try:
                self._producer.flush(FLUSH_TIMEOUT_MS)
            except ProducerError as error:
                raise error.at(self._where) from error
        return ()

    def close(self) -> None:
        """Send queued messages, within a short time, and free the client."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ProducerError):  # delivery that matters was flushed at a barrier
            self._producer.flush(_LAST_FLUSH_MS)
        self._producer.close()
