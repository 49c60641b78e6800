"""The choice between the two fetchers.

`fetch_fast` reads librdkafka's messages in compiled loops; `fetch_plain` uses confluent-kafka's objects where the
first cannot work. Called by `reader`.
"""

from __future__ import annotations

import logging
import os

from penstock_connectors.kafka.read.fetch import Fetcher, FetchSettings


def open_fetcher(settings: FetchSettings) -> Fetcher:
    """Return the compiled fetcher, or the plain one where that cannot work (or `PENSTOCK_KAFKA_PLAIN=1` says so)."""
    if os.environ.get("PENSTOCK_KAFKA_PLAIN") != "1":
        try:
            from penstock_connectors.kafka.read.fetch_fast import FastFetcher

            return FastFetcher(settings)
        except ImportError as error:
            logging.getLogger(__name__).warning(
                "messages are read through Python objects, about 3 times slower: %s", error
            )
    from penstock_connectors.kafka.read.fetch_plain import PlainFetcher

    return PlainFetcher(settings)
