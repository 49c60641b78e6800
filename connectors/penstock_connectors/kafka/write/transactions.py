"""Transactions and markers of other, perhaps dead, processes: list, describe, fence, end them; read markers.

A marker is the last chunk and checkpoint that a sink subtask published. It is the committed offset of partition 0
of the sink's topic, set inside the publishing transaction. Used by both committers, over kafka-python's protocol
layer.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.core.errors import ConnectorError, UndecidedOutputError
from penstock.core.snapshot import Committable
from penstock_connectors.kafka.client.properties import LOOKUP_TIMEOUT_MS, for_kafka_python

CHUNKS_PER_CHECKPOINT = 1 << 16
#: The marker of output younger than this certainly exists (brokers keep offsets for at least a minute). For older
#: output the broker's retention is requested.
MIN_RETENTION_MS = 60 * 1000
#: Kafka's default of `offsets.retention.minutes`, if the broker does not return it.
DEFAULT_RETENTION_MS = 7 * 24 * 3600 * 1000


def marker_of(checkpoint_id: int, chunk: int) -> int:
    """Return the marker of a published chunk; it orders by (checkpoint, chunk)."""
    if not 0 <= chunk < CHUNKS_PER_CHECKPOINT - 1:
        msg = f"an epoch has at most {CHUNKS_PER_CHECKPOINT - 1} chunks, not {chunk + 1}"
        raise ValueError(msg)
    return checkpoint_id * CHUNKS_PER_CHECKPOINT + chunk + 1


def checkpoint_of(marker: int) -> int:
    """Return the checkpoint a marker belongs to; negative when there is no marker."""
    return (marker - 1) // CHUNKS_PER_CHECKPOINT if marker > 0 else -1


def check_age(
    committables: Iterable[Committable], markers: Mapping[str, int], now_ms: int, retention_ms: Callable[[], int | None]
) -> None:
    """Refuse output whose marker may have expired: without a marker it is unknown whether it was published.

    Raises:
        UndecidedOutputError: names the output.
    """
    for item in committables:
        age = now_ms - item.created_ms
        if markers.get(item.marker_group, -1) >= 0 or item.created_ms <= 0 or age < MIN_RETENTION_MS:
            continue
        kept = retention_ms() or DEFAULT_RETENTION_MS
        if age >= kept:
            raise UndecidedOutputError(
                f"{item.rows} records of checkpoint {item.checkpoint_id} (sink {item.uid!r} subtask "
                f"{item.subtask}) are {age // 3_600_000} h old and Kafka keeps the marker "
                f"{item.marker_group!r} for {kept // 3_600_000} h only: "
                "it cannot be determined whether they were published",
                hint="check the topic, then restore with --accept-duplicates, or from a later checkpoint",
            )


with warnings.catch_warnings():
    # while loading, it uses a function of the standard library that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, errors
    from kafka.net import KafkaNetSocket
    from kafka.protocol.consumer import OffsetFetchRequest
    from kafka.protocol.metadata import CoordinatorType
    from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

T = TypeVar("T")
#: Temporary states of a cluster; everything else is an answer.
RETRIABLE = (
    errors.ConcurrentTransactionsError,
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
    errors.NodeNotReadyError,
    errors.KafkaConnectionError,
    errors.KafkaTimeoutError,
    errors.RequestTimedOutError,
    errors.UnstableOffsetCommitError,
)
#: The connection may be dead: the next attempt uses a new one, and does not wait for this one.
_UNANSWERED = (
    errors.NodeNotReadyError,
    errors.KafkaConnectionError,
    errors.KafkaTimeoutError,
    errors.RequestTimedOutError,
)
#: EndTxn's answers that this exact transaction cannot, or can no longer, be ended.
NOT_ENDABLE = (
    errors.InvalidTxnStateError,
    errors.ProducerFencedError,
    errors.InvalidProducerEpochError,
    errors.InvalidProducerIdMappingError,
    errors.TransactionalIdNotFoundError,
)
#: How long a temporary state may last, including a restart of the broker.
RETRY_LIMIT_S = 90.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0
#: EndTxn up to this version has the semantics of librdkafka's own transactions (no new epoch).
_END_VERSION = 4
#: Requests sent to a broker before its first answer.
_IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction with the identity by which exactly this one can be ended."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # the library has no types
    """A direct connection that closes its socket if connecting fails.

    The library leaves that to the garbage collector.
    """

    SCHEMES = ("direct",)

    async def sock_connect(self, net: Any, sock: socket.socket, sockaddr: Any, timeout_at: float | None = None) -> Any:
        """Connect `sock`."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class NotEndableError(Exception):
    """The coordinator does not (or no longer) have it open; only the marker shows whether it was committed."""


class TransactionAdmin:
    """One connection to a cluster for all requests about transactions; usable by one thread at a time."""

    def __init__(self, resolved: Mapping[str, str], timeout_ms: int = LOOKUP_TIMEOUT_MS) -> None:
        """Connect.

        Raises:
            ConnectorError: the cluster cannot be reached within `timeout_ms`.
        """
        # it logs each lost connection; callers receive failures as exceptions
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        self._resolved, self._timeout_ms = resolved, timeout_ms
        self._admin = self._connected()

    def _connected(self) -> Any:
        """Return a new client.

        Raises:
            ConnectorError: the cluster cannot be reached.
        """
        # made in two steps: a failing constructor leaves a thread, which only the object can stop
        admin: Any = KafkaAdminClient.__new__(KafkaAdminClient)
        limits = {
            "bootstrap_timeout_ms": self._timeout_ms,
            "proxy_url": "direct://",
            "max_in_flight_requests_per_connection": 2 * _IN_FLIGHT,
        }
        try:
            admin.__init__(**for_kafka_python(self._resolved), **limits)
        except errors.KafkaError as error:
            with contextlib.suppress(Exception):
                admin._client.close()  # noqa: SLF001
                admin._net.stop()  # noqa: SLF001
            raise ConnectorError(
                f"Kafka at {self._resolved['bootstrap.servers']} cannot be reached: {error}",
                hint="check that the broker runs and that the security properties fit",
            ) from error
        return admin

    def close(self) -> None:
        """Disconnect."""
        self._admin.close()

    def ids_under(self, prefixes: Iterable[str]) -> list[str]:
        """Return the transactional ids `<prefix><subtask>` and `<prefix><subtask>.<k>`, in any state."""
        out: list[str] = []
        for prefix in prefixes:
            stem = prefix if prefix.endswith(".") else prefix + "."
            pattern = re.compile(re.escape(stem) + r"\d+(\.\d+)?")
            listing = self._retry(functools.partial(self._list, "^" + re.escape(stem) + ".*"))
            out += [name for name in listing if pattern.fullmatch(name) or name == prefix]
        return sorted(set(out))

    def _list(self, pattern: str) -> list[str]:
        try:
            found = self._admin.list_transactions(transactional_id_pattern=pattern)
        except errors.UnsupportedVersionError:  # brokers before 4.1 do not filter
            found = self._admin.list_transactions()
        return [listing.transactional_id for listings in found.values() for listing in listings]

    def describe(self, transactional_id: str) -> Any:
        """Return kafka-python's description, or None if the coordinator does not know the id."""

        def ask() -> Any:
            try:
                return self._admin.describe_transactions([transactional_id])[transactional_id]
            except errors.TransactionalIdNotFoundError:
                return None

        return self._retry(ask, transactional_id)

    def fence(self, transactional_ids: Iterable[str], timeout_ms: int = 60_000) -> None:
        """Abort the open transaction of each id, and fence every producer with that id."""
        waiting = list(transactional_ids)

        def attempt() -> None:
            requests = {
                name: InitProducerIdRequest(
                    transactional_id=name,
                    transaction_timeout_ms=timeout_ms,
                    producer_id=-1,
                    producer_epoch=-1,
                    max_version=5,
                )
                for name in waiting
            }
            failed: Exception | None = None
            for name, code in self._send_all(requests).items():
                if code == 0:
                    waiting.remove(name)
                else:
                    failed = errors.for_code(code)(f"InitProducerId({name})")
                    if not isinstance(failed, RETRIABLE):
                        raise failed
            if failed is not None:
                raise failed

        if waiting:
            self._retry(attempt, *waiting)

    def commit(self, transaction: OpenTransaction) -> None:
        """Commit exactly this transaction; repeating it is harmless.

        Raises:
            NotEndableError: with the coordinator's present state.
        """
        name = transaction.transactional_id
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=True,
            max_version=_END_VERSION,
        )

        def attempt() -> None:
            code = self._send_all({name: request})[name]
            if code:
                raise errors.for_code(code)(f"EndTxn({name})")

        try:
            self._retry(attempt, name)
        except NOT_ENDABLE as error:
            now = self.describe(name)
            state = (
                f"{now.state.value}, producer {now.producer_id} epoch {now.producer_epoch}"
                if now
                else "it does not know the id"
            )
            raise NotEndableError(f"commit refused ({type(error).__name__}); the coordinator says: {state}") from error

    def markers(self, groups: Mapping[str, str], *, stable: bool = True) -> dict[str, int]:
        """Return the committed offset of partition 0 of each group's topic, -1 if there is none.

        Waits until no open transaction holds another one, unless `stable` is False.
        """
        if not groups:
            return {}
        return self._retry(lambda: self._run(lambda: self._fetch_offsets(groups, stable=stable)), *groups)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 if unknown; requested once, as only speed depends on it."""
        try:
            return sum(len(entry["partitions"]) for entry in self._admin.describe_topics([topic]))
        except errors.KafkaError as error:
            logging.getLogger(__name__).debug("partitions of %s: %r", topic, error)
            return 0

    def lacks(self, topic: str) -> bool | None:
        """Return whether the cluster answers that it has no such topic; None without an answer."""
        try:
            found = self._admin.describe_topics([topic])
        except errors.UnknownTopicOrPartitionError:
            return True
        except errors.KafkaError:
            return None
        return any(entry["error_code"] == errors.UnknownTopicOrPartitionError.errno for entry in found)

    async def _fetch_offsets(self, groups: Mapping[str, str], *, stable: bool) -> dict[str, int]:
        nodes = await self._admin._find_coordinator_ids(list(groups), key_type=CoordinatorType.GROUP)  # noqa: SLF001
        group_of = OffsetFetchRequest.OffsetFetchRequestGroup
        out: dict[str, int] = {}
        for node in set(nodes.values()):
            asked = [
                group_of(
                    group_id=group,
                    topics=[group_of.OffsetFetchRequestTopics(name=groups[group], partition_indexes=[0])],
                )
                for group, at in nodes.items()
                if at == node
            ]
            request = OffsetFetchRequest(groups=asked, require_stable=stable, min_version=8, max_version=8)
            answer = await self._admin._manager.send(request, node_id=node)  # noqa: SLF001
            for group in answer.groups:
                _raise_for(group.error_code, f"OffsetFetch({group.group_id})")
                for topic in group.topics:
                    for partition in topic.partitions:
                        _raise_for(partition.error_code, f"OffsetFetch({group.group_id})")
                        out[group.group_id] = int(partition.committed_offset)
        return out

    def _send_all(self, requests: Mapping[str, Any]) -> dict[str, int]:
        """Send each request to its id's coordinator, many before the first answer arrives; return error codes."""
        admin = self._admin

        async def exchange() -> dict[str, int]:
            nodes = await admin._find_coordinator_ids(list(requests), key_type=CoordinatorType.TRANSACTION)  # noqa: SLF001
            names, codes = list(requests), {}
            for start in range(0, len(names), _IN_FLIGHT):
                part = names[start : start + _IN_FLIGHT]
                sent = {name: admin._manager.send(requests[name], node_id=nodes[name]) for name in part}  # noqa: SLF001
                for name, answer in sent.items():
                    codes[name] = int((await answer).error_code)
            return codes

        codes: dict[str, int] = self._run(exchange)
        return codes

    def _run(self, coroutine: Callable[[], Any]) -> Any:
        return self._admin._manager.run(coroutine)  # noqa: SLF001

    def _retry(self, attempt: Callable[[], T], *coordinated: str) -> T:
        end, pause = time.monotonic() + RETRY_LIMIT_S, _FIRST_PAUSE_S
        while True:
            try:
                return attempt()
            except RETRIABLE as error:
                if isinstance(error, _UNANSWERED):
                    self._reconnect()
                elif not isinstance(error, errors.ConcurrentTransactionsError | errors.UnstableOffsetCommitError):
                    self._forget(coordinated)
                if time.monotonic() + pause > end:
                    raise ConnectorError(f"Kafka did not settle within {RETRY_LIMIT_S:.0f} s: {error!r}") from error
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _reconnect(self) -> None:
        """Open a new connection for the next attempt; if that fails, the attempt reports it."""
        old = self._admin
        with contextlib.suppress(ConnectorError):
            self._admin = self._connected()
            with contextlib.suppress(Exception):  # it may be in any state
                old.close()

    def _forget(self, names: Iterable[str]) -> None:
        """Drop cached coordinators, so that the next attempt looks them up again."""
        cache = getattr(self._admin._manager.cluster, "_coordinators", None)  # noqa: SLF001
        if isinstance(cache, dict):
            wanted = set(names)
            for key in [key for key in cache if wanted.intersection(key if isinstance(key, tuple) else (key,))]:
                cache.pop(key, None)


def _raise_for(code: int, what: str) -> None:
    if code:
        raise errors.for_code(code)(what)
