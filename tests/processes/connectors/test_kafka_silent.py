"""A Kafka broker that accepts connections and never answers: a source that waits for it can be cancelled."""

import socket
import threading

import pytest

from penstock_connectors.kafka.read.fetch import FetchSettings
from penstock_connectors.kafka.read.fetch_fast import FastFetcher
from penstock_connectors.kafka.read.fetch_plain import PlainFetcher

#: The client gives up a request after 60 s.
CLOSE_S = 30


@pytest.mark.parametrize("kind", [FastFetcher, PlainFetcher])
def test_a_fetcher_closes_while_a_request_waits(kind):
    with socket.create_server(("127.0.0.1", 0)) as broker:
        properties = {"bootstrap.servers": f"127.0.0.1:{broker.getsockname()[1]}", "group.id": "g"}
        fetcher = kind(FetchSettings(properties, wake=lambda: None))
        fetcher.add({("t", 0): 0})
        broker.settimeout(CLOSE_S)
        connection, _ = broker.accept()
        with connection:
            assert connection.recv(1), "no request"
            assert fetcher.fetch(10).messages is None
            closing = threading.Thread(target=fetcher.close, daemon=True)
            closing.start()
            closing.join(CLOSE_S)
            assert not closing.is_alive()
