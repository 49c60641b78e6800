"""Checks of the names that a user gives to a source or sink: addresses of brokers, topics, the group.

Called where a source or sink is declared; imported by the control plane: no client library, no Arrow.
"""

from __future__ import annotations

import re

from penstock.core.errors import UsageError

#: Schemes that librdkafka takes before an address.
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
#: Characters of a regular expression, which no topic's name has.
_PATTERN = re.compile(r"[*+?^$|()\[\]{}\\]")
_MOST_PORTS = 65_535


def require_address(bootstrap: object, connector: str) -> None:
    """Refuse what names no brokers.

    Raises:
        UsageError: it is no text, a URL, or an address without a port.
    """
    if not isinstance(bootstrap, str):
        msg = f"{connector}: bootstrap={bootstrap!r} is not an address"
        raise UsageError(msg, hint="write the brokers in one text: 'host1:9092,host2:9092'")
    for address in bootstrap.split(",") if bootstrap else ():
        _require_broker(address, bootstrap, connector)


def _require_broker(address: str, bootstrap: str, connector: str) -> None:
    given = f"bootstrap={bootstrap!r}"
    scheme, found, rest = address.partition("://")
    host = rest if found else address
    if found and scheme.lower() not in _PROTOCOLS:
        system = "a web server" if scheme in {"http", "https"} else "another system"
        msg = f"{connector}: bootstrap={address!r} is the URL of {system}"
        raise UsageError(msg, hint=f"write host and port of a broker: '{host.rstrip('/')}'")
    name, colon, port = host.rpartition(":")
    if not host.strip():
        raise UsageError(f"{connector}: {given} has an empty address", hint="write 'host1:9092,host2:9092'")
    if not colon or host.endswith("]"):
        which = given if address == bootstrap else f"{address!r} in {given}"
        raise UsageError(f"{connector}: {which} has no port", hint=f"write host and port: '{host.strip()}:9092'")
    if not name or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) <= _MOST_PORTS:
        msg = f"{connector}: the port {port!r} in {given} is no number from 1 to {_MOST_PORTS}"
        raise UsageError(msg, hint="write 'host1:9092,host2:9092'")


def require_topic(topic: str, connector: str) -> None:
    """Refuse a name that no topic can have.

    Raises:
        UsageError: it is a pattern, or has characters that Kafka does not allow.
    """
    if not topic or _TOPIC.fullmatch(topic):
        return
    if _PATTERN.search(topic):
        msg = f"{connector}: topic={topic!r} is a pattern, and a source reads topics by name"
        raise UsageError(msg, hint="name each topic: topic=['orders', 'refunds']")
    msg = f"{connector}: topic={topic!r} cannot be a topic's name"
    raise UsageError(msg, hint="letters, digits, '.', '_' and '-', at most 249 characters")


def require_group(group: object) -> None:
    """Refuse what cannot be a group's name.

    Raises:
        UsageError: it is no text, or empty.
    """
    if group is not None and (not isinstance(group, str) or not group):
        raise UsageError(
            f"KafkaSource: group={group!r} is not a name", hint="write group='orders-job', or leave it out"
        )
