"""The choice between the two producers.

`producer_fast` hands Arrow buffers to librdkafka; `producer_plain` uses confluent-kafka's `Producer` where the first
cannot work. Called by the committers and the writers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from penstock_connectors.kafka.write.producer import MessageProducer, producer_properties


def open_producer(
    resolved: Mapping[str, str], transactional_id: str | None = None, timeout_ms: int = 60_000
) -> MessageProducer:
    """Return the fast producer, or the plain one where that cannot work (or `PENSTOCK_KAFKA_PLAIN=1` says so)."""
    properties = producer_properties(resolved)
    if transactional_id is not None:
        properties |= {"transactional.id": transactional_id, "transaction.timeout.ms": str(timeout_ms)}
    if os.environ.get("PENSTOCK_KAFKA_PLAIN") != "1":
        try:
            from penstock_connectors.kafka.write.producer_fast import FastProducer

            return FastProducer(properties)
        except ImportError as error:
            logging.getLogger(__name__).warning(
                "messages are written through Python objects, about 3 times slower: %s", error
            )
    from penstock_connectors.kafka.write.producer_plain import PlainProducer

    return PlainProducer(properties)
