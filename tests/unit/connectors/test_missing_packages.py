"""Without the packages of an extra, an error says how to install them."""

import importlib
import sys

import pytest

from penstock.checkpoint.stores import open_store
from penstock.core.errors import ConnectorError, UsageError


def test_kafka_without_its_client(monkeypatch):
    name = "penstock_connectors.kafka.client.metadata"
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConnectorError, match="needs the package confluent-kafka, which is not installed") as raised:
        importlib.import_module(name)
    assert "confluent-kafka>=" in raised.value.hint


@pytest.mark.parametrize("call", ["list", "size", "read"])
def test_s3_without_its_client(monkeypatch, call):
    for name in [name for name in sys.modules if name.partition(".")[0] == "minio"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "minio", None)
    store = open_store("s3://bucket/prefix")
    with pytest.raises(UsageError, match="needs the package minio, which is not installed") as raised:
        list(getattr(store, call)("key"))
    assert "minio>=" in raised.value.hint
