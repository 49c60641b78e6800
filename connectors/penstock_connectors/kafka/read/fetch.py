"""Getting messages of assigned partitions as columns: the contract of `fetch_fast` and `fetch_plain`.

`reader.open_fetcher` opens one of them. One test suite holds for both. Called by `reader` from the subtask's thread; no
call blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from penstock_connectors.kafka.client.properties import PartitionId, for_consumer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


#: Limits of a reader's memory. A small queue needs the short back-off: the default of 1 s would leave the reader idle.
READ_PROPERTIES: Mapping[str, str] = {
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": "32768",
    "queued.min.messages": "100000",
    "fetch.queue.backoff.ms": "5",
    "fetch.wait.max.ms": "100",
    "fetch.message.max.bytes": "4194304",
}
#: Not overridable: the job owns assignment and positions.
FIXED_PROPERTIES: Mapping[str, str] = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    # the signs of a broker that does not answer (`outage`)
    "statistics.interval.ms": "1000",
    # a position that no longer exists in the topic must be an error, not skipped
    "auto.offset.reset": "error",
}


@dataclass(frozen=True, slots=True)
class FetchProblem:
    """An error event of the client: `place` is None when it is not about one partition."""

    code: int
    text: str
    place: PartitionId | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """Key, timestamp and headers of a message."""

    key: bytes | None
    #: Milliseconds; None when unknown.
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True)
class Fetched:
    """The result of one fetch; row i of the columns is one message."""

    #: Values: null stays null, empty stays empty.
    value: pa.LargeBinaryArray
    #: Index into `places` of each message.
    slot: np.ndarray[Any, Any]
    offset: np.ndarray[Any, Any]
    #: Keys and timestamps (ms, -1 unknown) are None unless requested.
    key: pa.LargeBinaryArray | None = None
    timestamp: np.ndarray[Any, Any] | None = None
    places: list[PartitionId] = field(default_factory=list)
    #: Returns the envelopes of some rows, until the next fetch; None unless requested.
    envelopes: Callable[[Sequence[int]], list[Envelope]] | None = None

    def where(self, keep: np.ndarray[Any, Any]) -> Fetched:
        """Return the messages for which `keep` is true."""
        import numpy as np
        import pyarrow as pa

        mask, rows, envelopes = pa.array(keep), np.flatnonzero(keep), self.envelopes
        return Fetched(
            value=self.value.filter(mask),
            slot=self.slot[keep],
            offset=self.offset[keep],
            key=None if self.key is None else self.key.filter(mask),
            timestamp=None if self.timestamp is None else self.timestamp[keep],
            places=self.places,
            envelopes=None if envelopes is None else lambda some: envelopes(rows[list(some)].tolist()),
        )


@dataclass(slots=True)
class FetchResult:
    """Messages (None: none), known ends of partitions, and errors."""

    messages: Fetched | None = None
    #: Offset after the last message of each partition in the result.
    positions: dict[PartitionId, int] = field(default_factory=dict)
    #: Partitions whose newest event is "end reached", with the offset of the next message to come.
    ends: dict[PartitionId, int] = field(default_factory=dict)
    problems: list[FetchProblem] = field(default_factory=list)
    #: Whether the queue is known to be empty now.
    drained: bool = False
    #: The newest statistics of the client (JSON); empty if there are none since the last fetch.
    statistics: bytes = b""


class ClientEvents:
    """The events of a client since the last fetch. A fetcher's thread adds them, also while nothing is fetched.

    Its size is bounded: the newest statistics, and the newest error of each kind and partition.
    """

    def __init__(self) -> None:
        """Begin without events."""
        self._lock = threading.Lock()
        self._statistics = b""
        self._problems: dict[tuple[int, PartitionId | None], FetchProblem] = {}
        self._commit_failures = 0

    @property
    def commit_failures(self) -> int:
        """Return the number of commits that failed so far."""
        return self._commit_failures

    def measured(self, statistics: bytes) -> None:
        """Take statistics (JSON)."""
        with self._lock:
            self._statistics = statistics

    def failed(self, problem: FetchProblem) -> None:
        """Take an error event."""
        with self._lock:
            self._problems[problem.code, problem.place] = problem

    def commit_failed(self) -> None:
        """Count a commit that failed."""
        with self._lock:
            self._commit_failures += 1

    def move_to(self, result: FetchResult) -> None:
        """Move statistics and errors into the result of a fetch."""
        with self._lock:
            result.statistics, self._statistics = self._statistics, b""
            result.problems += self._problems.values()
            self._problems.clear()


class Fetcher(Protocol):
    """Fetches from a changing set of partitions."""

    def add(self, starts: Mapping[PartitionId, int]) -> None:
        """Start fetching these partitions from these offsets."""

    def remove(self, places: list[PartitionId]) -> None:
        """Stop fetching; messages of them that are still queued may come out of the next fetches."""

    def pause(self, places: list[PartitionId]) -> None:
        """Pause these partitions; messages of them that are still queued may come out of the next fetches."""

    def resume(self, places: list[PartitionId]) -> None:
        """Resume these partitions after the last message that came out."""

    def fetch(self, max_messages: int) -> FetchResult:
        """Return queued messages without waiting; afterwards `wake` is called once there are more."""

    def lag(self, positions: Mapping[PartitionId, int]) -> int | None:
        """Return how many messages these positions are before the last known ends; None until all ends are known."""

    def commit(self, offsets: Mapping[PartitionId, int]) -> None:
        """Publish offsets to the group, without waiting; failures are counted in `commit_failures`."""

    @property
    def commit_failures(self) -> int:
        """Return the number of commits that failed so far."""

    def close(self) -> None:
        """Free everything; idempotent."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The settings of a fetcher: resolved client properties, and the columns besides the value."""

    properties: Mapping[str, str]
    wake: Callable[[], None]
    keys: bool = False
    timestamps: bool = False
    #: Whether the envelopes of single messages will be requested.
    envelopes: bool = False
    #: Limit of the compiled fetcher; more messages at a time leave the processor's cache and are slower.
    most_messages: int = 10_000


def client_properties(resolved: Mapping[str, str]) -> dict[str, str]:
    """Return a consumer's properties: defaults, overridden by the user's, overridden by fixed ones."""
    return {"group.id": "penstock", **READ_PROPERTIES, **for_consumer(resolved), **FIXED_PROPERTIES}
