"""Client properties: checks of the user's, secrets outside of the job graph, and the translation for kafka-python.

Checked where a source or sink is declared; resolved (`${ENV:NAME}`) in the process that connects, which is the only one
to see a secret. Imported by the control plane: no client library, no Arrow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ConnectorError, UsageError, argument_text

#: Topic and partition.
PartitionId = tuple[str, int]
_REFERENCE = re.compile(r"\$\{ENV:([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_NAMES = frozenset({"sasl.oauthbearer.config", "sasl.jaas.config", "ssl.key.pem", "ssl_key", "ssl.keystore.pem"})
_SECRET_ENDINGS = ("password", "secret", ".token", "passphrase")
#: Set by the connector itself; the text names the alternative.
_RESERVED = {
    "bootstrap.servers": "use the first argument",
    "metadata.broker.list": "use the first argument",
    "group.id": "use group=",
    "enable.auto.commit": "leave it out: positions belong to the checkpoint",
    "enable.auto.offset.store": "leave it out: positions belong to the checkpoint",
    "auto.offset.reset": "use start=",
    "enable.partition.eof": "leave it out: the reader needs it",
    "transactional.id": "leave it out: it is derived from job, uid, run and subtask",
    "transaction.timeout.ms": "use transaction_timeout=",
    "enable.idempotence": "use delivery=",
    "delivery.report.only.error": "leave it out: the sink needs it",
}
#: librdkafka accepts them without an effect; the text names the alternative.
_WITHOUT_EFFECT = {
    "max.poll.records": "leave it out: librdkafka has no such limit; fetch.max.bytes bounds a fetch",
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


def check_properties(properties: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the user's properties as texts; secrets must be references.

    Raises:
        UsageError: a property is reserved or no text, or a secret is written out.
    """
    if not isinstance(properties, Mapping):
        msg = f"{where}: properties={argument_text(properties)} is not a dict"
        raise UsageError(msg, hint="write properties={'client.id': 'orders'}")
    out = {}
    for name, value in properties.items():
        if not isinstance(name, str):
            raise UsageError(f"{where}: properties: {name!r} is not a property's name", hint="names are texts")
        if name in _RESERVED:
            raise UsageError(f"{where}: property {name!r} is set by the connector", hint=_RESERVED[name])
        if name in _WITHOUT_EFFECT:
            raise UsageError(f"{where}: property {name!r} has no effect", hint=_WITHOUT_EFFECT[name])
        if not isinstance(value, str | int | float):
            msg = f"{where}: property {name!r} is {argument_text(value)}, not a text, a number or a bool"
            raise UsageError(msg, hint="leave it out for the default of librdkafka")
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


def known_properties() -> tuple[str, ...]:
    """Return names of properties that librdkafka does not list, because they have no default or are another's alias."""
    return (*_FOR_KAFKA_PYTHON, *_RESERVED, "compression.type", "acks", "retries", "linger.ms")


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
