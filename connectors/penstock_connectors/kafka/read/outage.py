"""Since when the brokers of a reader's partitions have not answered, and which partitions; pure.

Used by `reader`. Two signs begin an outage: an error event of the client, and a request in the client's statistics that
waits for its answer. The second one also shows a broker that keeps its connections open but is frozen.
"""

from __future__ import annotations

import msgspec

#: A request that waits this long, beyond the time in which a broker answers a fetch without rows, is an outage.
SILENT_MS = 2_000.0


class _Broker(msgspec.Struct):
    """A broker in the statistics; times are microseconds since the last bytes, -1 for none on this connection."""

    state: str
    rxidle: int = -1
    txidle: int = -1
    #: Requests that wait for an answer.
    waitresp_cnt: int = 0
    #: Partitions that it leads, by `topic-partition`; also those that the reader does not read.
    toppars: dict[str, msgspec.Raw] = {}
    #: Requests sent so far, by kind.
    req: dict[str, int] = {}

    @property
    def silent_ms(self) -> float:
        """Milliseconds for which a request has waited for any answer; 0 if none waits."""
        idle = [us for us in (self.rxidle, self.txidle) if us >= 0]
        return min(idle) / 1000 if idle and self.waitresp_cnt else 0.0

    @property
    def fetches(self) -> int:
        """Fetches sent; a broker has at most one that waits."""
        return self.req.get("Fetch", 0)


class _Statistics(msgspec.Struct):
    """librdkafka's statistics, as far as they are read."""

    brokers: dict[str, _Broker] = {}


#: Fetches after the return of a broker of which the first has been answered.
_ANSWERED_AFTER = 2

_decoder = msgspec.json.Decoder(_Statistics)


class Outage:
    """The outage of one reader; times are monotonic milliseconds."""

    def __init__(self, fetch_wait_ms: float = 0.0) -> None:
        """Start without an outage; a broker answers a fetch without rows after `fetch_wait_ms`."""
        self._limit_ms = SILENT_MS + fetch_wait_ms
        self._failed_since: float | None = None
        self._silent_since: float | None = None
        #: Partitions without an answer; its broker and the fetches of it when it was back, None while it is away.
        self._unanswered: dict[str, tuple[str, int] | None] = {}

    @property
    def unanswered(self) -> frozenset[str]:
        """The partitions, as `topic-partition`, whose broker is away, or has not answered a fetch since its return."""
        return frozenset(self._unanswered)

    @property
    def since_ms(self) -> float | None:
        """The begin of the outage; None without one."""
        return min((at for at in (self._failed_since, self._silent_since) if at is not None), default=None)

    def failed(self, now_ms: float) -> None:
        """Take an error event about an unreachable broker."""
        if self._failed_since is None:
            self._failed_since = now_ms

    def received(self) -> None:
        """Take messages, or the end of a partition."""
        self._failed_since = None

    def measured(self, statistics: bytes, read: set[str], now_ms: float) -> None:
        """Take the client's statistics (JSON); `read` are the partitions being read, as `topic-partition`."""
        found = _decoder.decode(statistics).brokers
        self._note_unanswered(found, read)
        brokers = [broker for broker in found.values() if broker.toppars.keys() & read]
        connected = [broker for broker in brokers if broker.state == "UP"]
        silent_ms = max((broker.silent_ms for broker in connected), default=0.0)
        if silent_ms >= self._limit_ms:
            if self._silent_since is None:
                self._silent_since = now_ms - silent_ms
        elif brokers and len(connected) == len(brokers):
            self.over()

    def _note_unanswered(self, brokers: dict[str, _Broker], read: set[str]) -> None:
        leaders = {
            partition: (name, broker.fetches)
            for name, broker in brokers.items()
            if broker.state == "UP" and broker.silent_ms < self._limit_ms
            for partition in broker.toppars.keys() & read
        }
        before, self._unanswered = self._unanswered, {}
        for partition in read:
            leader, back = leaders.get(partition), before.get(partition)
            if leader is None:
                self._unanswered[partition] = None
            elif partition in before:
                same = back is not None and back[0] == leader[0] and back[1] <= leader[1]
                back = back if same else leader
                if back is not None and leader[1] < back[1] + _ANSWERED_AFTER:
                    self._unanswered[partition] = back

    def over(self) -> None:
        """End the outage: all brokers answer."""
        self._failed_since = self._silent_since = None
