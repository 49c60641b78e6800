"""Requests of the two-phase writer to Kafka, on connections that are replaced when they do not answer.

Used by `two_phase`; `AnswerWatch` is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from penstock.core.clock import Clock
from penstock.core.errors import ConnectorError
from penstock_connectors.kafka.write.transactions import TransactionAdmin

T = TypeVar("T")
#: A producer without an answer is given up once Kafka has answered others for this long: the producer's connection is
#: lost, and librdkafka may wait for it until the broker ends the transaction.
LOST_AFTER_MS = 20_000
_PAUSE_MS = 1_000


class Coordinator:
    """Usable by one thread at a time."""

    def __init__(self, resolved: Mapping[str, str], clock: Clock) -> None:
        """Connect at the first call."""
        self._resolved, self._clock = resolved, clock
        self._admin: TransactionAdmin | None = None

    def describe(self, transactional_id: str, deadline_ms: float) -> Any:
        """Return kafka-python's description of a transaction.

        `deadline_ms` is monotonic: until then the request is repeated while Kafka does not answer.

        Raises:
            ConnectorError: Kafka did not answer.
        """
        return self._ask(lambda admin: admin.describe(transactional_id), deadline_ms)

    def await_group(self, group: str, topic: str, deadline_ms: float) -> None:
        """Wait until Kafka has a coordinator for a marker's group; parameters and errors as for `describe`.

        A new cluster creates its topic of offsets at the first such request. librdkafka repeats its own twice within
        milliseconds and then waits without an end.
        """
        self._ask(lambda admin: admin.markers({group: topic}, stable=False), deadline_ms)

    def _ask(self, request: Callable[[TransactionAdmin], T], deadline_ms: float) -> T:
        while True:
            try:
                return request(self._connected())
            except ConnectorError:
                self.close()
                if self._clock.monotonic_ms() + _PAUSE_MS > deadline_ms:
                    raise
                self._clock.sleep_ms(_PAUSE_MS)

    def lacks(self, topic: str) -> bool | None:
        """Return whether the cluster answers that it has no such topic; None without an answer."""
        try:
            found = self._connected().lacks(topic)
        except ConnectorError:
            found = None
        if found is None:
            self.close()
        return found

    def close(self) -> None:
        """Disconnect; idempotent."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _connected(self) -> TransactionAdmin:
        if self._admin is None:
            self._admin = TransactionAdmin(self._resolved)
        return self._admin


class AnswerWatch:
    """Decides whether to wait longer for a producer that has no answer."""

    def __init__(self, clock: Clock, lacks: Callable[[], bool | None]) -> None:
        """Start; `lacks` asks over another connection whether the topic is missing, see `Coordinator.lacks`."""
        self._clock, self._lacks = clock, lacks
        self._answers_since_ms: float | None = None
        #: Whether the topic does not exist, which the client answers with silence.
        self.topic_lacks = False

    def wanted(self) -> bool:
        """Ask once; return False if the topic is missing, or the producer's connection is lost."""
        found = self._lacks()
        if found is None:
            self._answers_since_ms = None
            return True
        self.topic_lacks = found
        now_ms = self._clock.monotonic_ms()
        if self._answers_since_ms is None:
            self._answers_since_ms = now_ms
        return not found and now_ms - self._answers_since_ms < LOST_AFTER_MS
