"""Requests to a cluster with short time-outs: partitions of topics, offsets, groups, limits of the broker.

Used by the enumerator (JobManager) and by the checks before a job starts; imported there, so it imports no Arrow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.core.errors import ConnectorError, UnreachableError, extra_hint
from penstock_connectors.kafka.client.properties import LOOKUP_TIMEOUT_MS, PartitionId, for_admin
from penstock_connectors.kafka.client.property_check import start_hint

try:
    from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._config import ConfigResource
    from confluent_kafka.admin._listoffsets import OffsetSpec
    from confluent_kafka.admin._resource import ResourceType
except ImportError as error:
    msg = "Kafka needs the package confluent-kafka, which is not installed"
    raise ConnectorError(msg, hint=extra_hint("kafka")) from error

T = TypeVar("T")
_SPEC: Any = OffsetSpec  # its methods carry no types
_NO_ANSWER = {
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - librdkafka's own names of its local errors
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._RESOLVE,  # noqa: SLF001
    KafkaError._TIMED_OUT,  # noqa: SLF001
}


#: Brokers that are all known to be down for this long count as unreachable.
_DOWN_S = 3.0
_LOOK_S = 0.5


class ClusterMetadata:
    """Sends requests to one cluster; every call ends within about `timeout_ms`, and earlier if all brokers are down."""

    def __init__(self, resolved: Mapping[str, str], timeout_ms: int = LOOKUP_TIMEOUT_MS) -> None:
        """Prepare; nothing is sent before the first request.

        Raises:
            ConnectorError: a property is not one of librdkafka's, or its value is wrong.
        """
        self.bootstrap, self._timeout_s = resolved["bootstrap.servers"], timeout_ms / 1000
        #: The client's reports about its connections since it started: whether all are down, and why by broker.
        self._all_down = False
        self._problems: dict[str, str] = {}
        try:
            options: dict[str, Any] = {**for_admin(resolved), "error_cb": self._note_error}
            self._admin = AdminClient(options)
        except KafkaException as error:
            text = _text_of(error)
            msg = f"Kafka at {self.bootstrap}: properties={{...}}: {text}"
            raise ConnectorError(msg, hint=start_hint(text, resolved)) from error

    def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """Return the partitions of each topic.

        Raises:
            ConnectorError: unreachable, or a topic does not exist.
        """
        found = self._listed().topics
        missing = [topic for topic in topics if topic not in found or found[topic].error is not None]
        if missing:
            raise ConnectorError(
                f"Kafka at {self.bootstrap} has no topic {', '.join(map(repr, missing))}",
                hint="create it first, or correct its name; its topics are: " + (_some(found) or "none"),
            )
        return {topic: sorted(found[topic].partitions) for topic in topics}

    def offsets(
        self, places: Sequence[PartitionId], at: str | int, *, committed: bool = True
    ) -> dict[PartitionId, int]:
        """Return offsets: `at` is `"earliest"`, `"latest"` or a time in ms (then -1 without a record that late).

        With `committed`, latest is the last stable offset: the present end for a read-committed reader.
        """
        if not places:
            return {}
        if isinstance(at, int):
            spec = _SPEC.for_timestamp(at)
        else:
            spec = _SPEC.earliest() if at == "earliest" else _SPEC.latest()
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(*place): spec for place in places}
        futures = self._admin.list_offsets(asked, isolation_level=level, request_timeout=self._timeout_s)
        return {(place.topic, place.partition): int(self._wait(future).offset) for place, future in futures.items()}

    def group_offsets(self, group: str, places: Sequence[PartitionId]) -> dict[PartitionId, int]:
        """Return the offsets committed by a group; partitions without one are left out."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in places])
        future = self._admin.list_consumer_group_offsets([asked], request_timeout=self._timeout_s)[group]
        answer = self._wait(future).topic_partitions
        return {(p.topic, p.partition): int(p.offset) for p in answer if p.error is None and p.offset >= 0}

    def broker_setting(self, name: str) -> int | None:
        """Return a numeric setting of a broker, or None if the broker does not return it (no permission, unknown)."""
        brokers = self._listed().brokers
        if not brokers:
            return None
        resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
        try:
            asked = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource]
            return int(asked.result(self._timeout_s)[name].value)
        except (KafkaException, KeyError, TypeError, ValueError):
            return None

    def _note_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._all_down = True
        else:
            broker, problem = connection_problem(error.str())
            self._problems[broker] = problem

    def _listed(self) -> Any:
        """Return brokers and topics; check in between whether any broker is reachable."""
        begun = time.monotonic()
        while True:
            left = self._timeout_s - (time.monotonic() - begun)
            try:
                self._admin.poll(0)
                return self._admin.list_topics(timeout=max(0.1, min(_LOOK_S, left)))
            except KafkaException as error:
                reason = error.args[0]
                waited = time.monotonic() - begun
                passing = isinstance(reason, KafkaError) and reason.code() in _NO_ANSWER
                if passing and waited < self._timeout_s and not (self._all_down and waited >= _DOWN_S):
                    continue
                if passing:
                    raise self._unreachable(reason.str(), waited) from error
                raise ConnectorError(f"Kafka at {self.bootstrap}: {_text_of(error)}") from error

    def _wait(self, future: Future[Any]) -> Any:
        return self._call(lambda: future.result(self._timeout_s + 1))

    def _call(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except TimeoutError as error:
            raise self._unreachable("no answer") from error
        except KafkaException as error:
            reason = error.args[0]
            if isinstance(reason, KafkaError) and reason.code() in _NO_ANSWER:
                raise self._unreachable(reason.str()) from error
            raise ConnectorError(f"Kafka at {self.bootstrap}: {_text_of(error)}") from error

    def _unreachable(self, why: str, waited_s: float | None = None) -> UnreachableError:
        seconds = self._timeout_s if waited_s is None else waited_s
        problems = self._problems
        if len(problems) == 1:
            why = next(iter(problems.values()))
        elif problems:
            why = "; ".join(f"{broker}: {problem}" for broker, problem in sorted(problems.items()))
        return UnreachableError(
            f"Kafka at {self.bootstrap} cannot be reached within {seconds:.0f} s: {why}",
            hint="check that the broker runs, that the address is right and that the security properties fit",
        )


#: The letters HTTP, read as a length.
_HTTP = int.from_bytes(b"HTTP")


def connection_problem(text: str) -> tuple[str, str]:
    """Return a broker, and why it cannot be reached, from the client's text of an error event."""
    broker, _, problem = text.partition("/bootstrap: ") if "/bootstrap: " in text else text.partition(": ")
    problem = (problem or text).partition(" (after ")[0]
    if "Failed to resolve" in problem:
        return broker, f"the host name {broker.rpartition(':')[0] or broker} is not known"
    if "Connection refused" in problem:
        return broker, "it refuses the connection"
    if f"size {_HTTP}" in problem:
        return broker, "an HTTP server answers there, not a broker"
    return broker, problem


def _text_of(error: KafkaException) -> str:
    reason = error.args[0]
    return str(reason.str()) if isinstance(reason, KafkaError) else str(error)


def _some(topics: Mapping[str, Any]) -> str:
    names = sorted(name for name in topics if not name.startswith("__"))
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def marker_retention_ms(resolved: Mapping[str, str]) -> int | None:
    """Return how long the brokers keep a committed offset, which is the marker of a sink; None if they do not say."""
    minutes = ClusterMetadata(resolved).broker_setting("offsets.retention.minutes")
    return None if minutes is None else minutes * 60_000
