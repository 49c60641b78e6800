"""Client properties: checks of the user's, secrets outside of the job graph, and the translation for kafka-python.

Checked where a source or sink is declared; resolved (`${ENV:NAME}`) in the process that connects, which is the only one
to see a secret. Imported by the control plane: no client library, no Arrow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ConnectorError, UsageError

#: Topic and partition.
PartitionId = tuple[str, int]
_REFERENCE = re.compile(r"\$\{ENV:([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_NAMES = frozenset({"sasl.oauthbearer.config", "sasl.jaas.config", "ssl.key.pem", "ssl_key", "ssl.keystore.pem"})
_SECRET_ENDINGS = ("password", "secret", ".token", "passphrase")
#: Set by the connector itself; the text names the alternative.
_RESERVED = {
    "bootstrap.servers": "the first argument",
    "metadata.broker.list": "the first argument",
    "group.id": "group=",
    "enable.auto.commit": "nothing: positions belong to the checkpoint",
    "enable.auto.offset.store": "nothing: positions belong to the checkpoint",
    "auto.offset.reset": "start=",
    "enable.partition.eof": "nothing: the reader needs it",
    "transactional.id": "nothing: it is derived from job, uid, run and subtask",
    "transaction.timeout.ms": "transaction_timeout=",
    "enable.idempotence": "delivery=",
    "delivery.report.only.error": "nothing: the sink needs it",
}
#: librdkafka's names of connection and security properties -> kafka-python's.
_FOR_KAFKA_PYTHON = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.cipher.suites": "ssl_ciphers",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_name",
}
#: Every client gives up a connection without answer and reconnects within seconds; the user's properties override.
_CONNECTION_PROPERTIES = {
    "socket.connection.setup.timeout.ms": "5000",
    "socket.timeout.ms": "6000",
    "socket.keepalive.enable": "true",
    "reconnect.backoff.max.ms": "1000",
}
#: Milliseconds after which a broker counts as unreachable, for look-ups.
LOOKUP_TIMEOUT_MS = 10_000


def require_address(bootstrap: object, connector: str) -> None:
    """Refuse what names no brokers.

    Raises:
        UsageError: it is no text, or the URL of a web server.
    """
    if not isinstance(bootstrap, str):
        msg = f"{connector}: bootstrap={bootstrap!r} is not an address"
        raise UsageError(msg, hint="write the brokers in one text: 'host1:9092,host2:9092'")
    if bootstrap.startswith(("http://", "https://")):
        msg = f"{connector}: bootstrap={bootstrap!r} is the URL of a web server"
        raise UsageError(msg, hint=f"write host and port of a broker: '{bootstrap.partition('://')[2].rstrip('/')}'")


def check_properties(properties: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the user's properties as texts; secrets must be references.

    Raises:
        UsageError: a property is reserved, or a secret is written out.
    """
    out = {}
    for name, value in properties.items():
        if name in _RESERVED:
            raise UsageError(f"{where}: property {name!r} is set by the connector", hint=f"use {_RESERVED[name]}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        secret = name in _SECRET_NAMES or name.endswith(_SECRET_ENDINGS)
        if secret and _REFERENCE.fullmatch(text) is None:
            variable = re.sub(r"[^A-Z0-9]+", "_", name.upper())
            raise UsageError(
                f"{where}: property {name!r} is a secret and would be stored with the job",
                hint=f"write '${{ENV:{variable}}}' and set that variable where the job runs",
            )
        out[name] = text
    return out


def resolve(bootstrap: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka properties with references replaced from this process's environment.

    Raises:
        ConnectorError: a variable is not set here.
    """

    def value_of(match: re.Match[str]) -> str:
        try:
            return os.environ[match[1]]
        except KeyError:
            raise ConnectorError(
                f"Kafka at {bootstrap}: environment variable {match[1]} is not set in this process",
                hint="set it where JobManager and TaskManagers start",
            ) from None

    resolved = {name: _REFERENCE.sub(value_of, text) for name, text in properties.items()}
    # level 0: failures arrive as events and exceptions, instead of lines on a terminal
    return {"log_level": "0", **_CONNECTION_PROPERTIES, **resolved, "bootstrap.servers": bootstrap}


def for_kafka_python(resolved: Mapping[str, str]) -> dict[str, Any]:
    """Return the connection and security part as keyword arguments of kafka-python's clients."""
    options: dict[str, Any] = {
        _FOR_KAFKA_PYTHON[name]: value for name, value in resolved.items() if name in _FOR_KAFKA_PYTHON
    }
    if "security_protocol" in options:
        options["security_protocol"] = options["security_protocol"].upper()
    if resolved.get("ssl.endpoint.identification.algorithm") == "none":
        options["ssl_check_hostname"] = False
    # its default of 30 s between attempts would delay recovery
    limits = {"reconnect_backoff_max_ms": 1000, "request_timeout_ms": 5_000}
    return {**limits, **options, "bootstrap_servers": resolved["bootstrap.servers"].split(",")}


_CONSUMER_ONLY = (
    "isolation.level",
    "fetch.",
    "queued.",
    "max.poll.",
    "max.partition.fetch.",
    "session.timeout.",
    "check.crcs",
)
_PRODUCER_ONLY = (
    "linger.ms",
    "batch.",
    "compression.",
    "queue.buffering.",
    "acks",
    "request.required.acks",
    "delivery.",
    "sticky.",
    "partitioner",
    "message.timeout.",
    "message.send.max.retries",
    "retries",
)


def for_admin(resolved: Mapping[str, str]) -> dict[str, str]:
    """Drop properties of consumers and producers only, about which an admin client would complain."""
    return {name: value for name, value in resolved.items() if not name.startswith(_CONSUMER_ONLY + _PRODUCER_ONLY)}


def for_consumer(resolved: Mapping[str, str]) -> dict[str, str]:
    """Drop properties of producers only."""
    return {name: value for name, value in resolved.items() if not name.startswith(_PRODUCER_ONLY)}


def for_producer(resolved: Mapping[str, str]) -> dict[str, str]:
    """Drop properties of consumers only."""
    return {name: value for name, value in resolved.items() if not name.startswith(_CONSUMER_ONLY)}
