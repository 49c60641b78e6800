"""The check of properties by librdkafka itself, before anything connects; called by `validate` of source and sink."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.errors import ConnectorError, nearest
from penstock_connectors.kafka.client.properties import known_properties

#: The end of every hint about a property.
LIBRDKAFKA = "names and values are librdkafka's, as its CONFIGURATION.md lists them"


def require_known(resolved: Mapping[str, str], connector: str) -> None:
    """Refuse a property that librdkafka does not know, or whose value it does not take.

    Without librdkafka's C interface nothing is checked here: the client that is made refuses it.

    Raises:
        ConnectorError: there is one.
    """
    try:
        from penstock_connectors.kafka.client.librdkafka import property_fault, property_names
    except ImportError:
        return
    for name, value in resolved.items():
        fault = property_fault(name, value)
        if fault:
            near = nearest(name, {*property_names(), *known_properties()})
            unknown = fault.startswith("No such")
            hint = f"did you mean {near!r}? {LIBRDKAFKA}" if near and unknown else LIBRDKAFKA
            raise ConnectorError(f"{connector}: properties: {fault}", hint=hint)


def start_hint(text: str, resolved: Mapping[str, str]) -> str:
    """Return a hint for librdkafka's reason why a client with known properties does not start."""
    if "SASL mechanism" in text:
        return "set sasl.mechanisms, for example 'PLAIN' or 'SCRAM-SHA-512', with sasl.username and sasl.password"
    file = next((name for name in resolved if name.endswith(".location") and name in text), "")
    if file:
        return f"the file {resolved[file]!r} has to be readable where JobManager and TaskManagers run"
    return LIBRDKAFKA
