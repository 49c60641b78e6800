"""The lease of a cluster's leader: who leads an HA root, where it is reached, and when a standby takes over.

`jobmanager.leadership` renews it or watches it. It is in the HA root or in another `LeaseStore`. The HA root then
has a copy without renewals, by which clients and TaskManagers find the leader.

Safety does not depend on it: the leader's generation, taken in `ha_records`, fences every write of an earlier leader.
The lease decides only when a standby takes the next generation, and compares no clocks of two machines: a standby
measures how long the count of renewals has not moved. The leader has the lifetime of the lease for a renewal. It has
less if it answered this standby's probes, no longer does, and is late with one renewal.
"""

from __future__ import annotations

from collections import deque

import msgspec

from penstock.checkpoint.ha_records import LeaderRecord, newest_generation, take_generation
from penstock.checkpoint.job_lease import LeaseHolder, has_exited
from penstock.checkpoint.leader_probes import LEAST_ANSWERS, ProbeWatch
from penstock.checkpoint.store import LeaseStore, ObjectStore
from penstock.checkpoint.stores import open_store
from penstock.config.settings import ClusterSettings
from penstock.core.errors import LeadershipLostError, NoJobManagerError, StorageError, UsageError
from penstock.core.structs import prepare

LEASE = "leader.json"
#: A leader that does not renew its lease for this long is replaced; it renews so often in this time.
TTL_MS = ClusterSettings().leader_lease_ms
RENEWALS = 3
#: A renewal is late after this part of the lifetime, or after several of the slowest recent reads of the lease.
_LATE = 1 / 24
_SLOWEST_READS = 3
_RECENT_READS = 50
_MAX_RACES = 20


class LeaderLease(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the lease."""

    generation: int
    jobmanager_id: str
    holder: LeaseHolder
    #: URL of the REST API, and `host:port` for TaskManagers.
    rest: str = ""
    rpc: str = ""
    renewals: int = 0
    ttl_ms: int = TTL_MS
    #: The leader has ended or hands over: a standby takes over at once.
    released: bool = False
    #: Where the lease is renewed; empty: in the HA root.
    election: str = ""


prepare(LeaderLease)


class LeaseWatch:
    """Decides when a standby takes over. Pure: it gets what was read, and the times (monotonic ms) around the read."""

    def __init__(self, ttl_ms: int = TTL_MS, least_answers: int = LEAST_ANSWERS) -> None:
        """Start without an observation; `ttl_ms` counts until a lease was read.

        `least_answers`: after so many of a leader, its silence counts.
        """
        self._ttl_ms = ttl_ms
        self._seen: tuple[int, int] | None = None
        self._since_ms = 0.0
        #: Begin of the last read, and how long the slowest recent one took.
        self._asked_ms = 0.0
        self._took_ms: deque[float] = deque(maxlen=_RECENT_READS)
        #: Newest generation that another standby has taken without a lease of it yet.
        self.taken = 0
        #: Its probes of the leader.
        self.probes = ProbeWatch(ttl_ms, least_answers)

    def lapsed(self, lease: LeaderLease | None, asked_ms: float, answered_ms: float, *, exited: bool) -> bool:
        """Return whether to take the next generation.

        `exited`: the leader's process is known to have ended. The wait counts from the end of the first read to the
        begin of this one: a read during which this process was suspended proves nothing.
        """
        generation, renewals = (lease.generation, lease.renewals) if lease is not None else (0, 0)
        if lease is not None:
            self._ttl_ms = lease.ttl_ms
        moved = (generation, renewals) != self._seen
        if moved:
            if self.probes.silent(generation, self._asked_ms):  # the renewal is later than the read before
                self.probes.disprove()
            self._seen, self._since_ms = (generation, renewals), answered_ms
        self._asked_ms = asked_ms
        self._took_ms.append(answered_ms - asked_ms)
        if generation >= self.taken and (lease is None or lease.released or exited):
            return True
        if moved:
            return False
        if asked_ms - self._since_ms >= self._ttl_ms:
            return True
        return generation >= self.taken and self.probes.silent(generation, asked_ms) and asked_ms >= self._late_ms

    def suspects(self, now_ms: float) -> bool:
        """Return whether to look at the lease at each tick: the leader answers no probe."""
        return self._seen is not None and self.probes.suspect(self._seen[0], now_ms)

    def pause_ms(self, now_ms: float) -> float:
        """Return how long to wait, at most a tick: until a look may show that the leader has stopped."""
        left_ms = max(self.probes.silent_ms, self._late_ms) - now_ms
        return left_ms if 0 < left_ms < self.probes.tick_ms else self.probes.tick_ms

    @property
    def _late_ms(self) -> float:
        """When the next renewal is late."""
        due_ms = self.probes.renewed_ms(*(self._seen or (0, 0)), self._since_ms) + self._ttl_ms / RENEWALS
        return due_ms + max(self._ttl_ms * _LATE, _SLOWEST_READS * max(self._took_ms, default=0.0))

    @property
    def above(self) -> int:
        """The newest generation that has lapsed: of the lease, or of a standby that took one and wrote no lease."""
        return max(self.taken, 0 if self._seen is None else self._seen[0])

    def lost(self, generation: int, now_ms: float) -> None:
        """Record that another standby has taken `generation`; it gets as long as a leader to write its lease."""
        self.taken, self._since_ms = generation, now_ms


def read_lease(store: LeaseStore) -> LeaderLease | None:
    """Return the lease; None if there is none. Raises StorageError."""
    found = _read(store)
    return None if found is None else found[0]


def leader_of(ha_root: str) -> LeaderLease:
    """Return the lease of the leader of an HA root: a folder or `s3://bucket/prefix`.

    Raises:
        NoJobManagerError: none leads. StorageError: the root cannot be read.
    """
    lease = read_lease(open_store(ha_root))
    if lease is None or not lease.rpc:
        raise NoJobManagerError(f"no JobManager leads {ha_root}", hint="start one with this --ha-root")
    return lease


def require_election(store: ObjectStore, mine: LeaderLease) -> None:
    """Require that the leader of the HA root is elected where this process takes part.

    Two elections would replace each other's leader again and again.

    Raises:
        UsageError: it is elected elsewhere. StorageError.
    """
    found = read_lease(store)
    if found is None or found.election == mine.election or found.released or has_exited(found.holder, mine.holder):
        return
    msg = f"the leader of {store.uri} is elected in {found.election or 'the HA root'}"
    hint = f"give all its JobManagers the same leader_election; if none runs, delete {store.uri}/{LEASE}"
    raise UsageError(msg, hint=hint)


def take_lead(
    store: ObjectStore, mine: LeaderLease, above: int, leases: LeaseStore | None = None
) -> tuple[LeaderLease | None, int]:
    """Take the generation after `above` and write the lease; return it, or None and the generation that is newer.

    `above` is `LeaseWatch.above`; `leases`: where the lease is, unless in the HA root.

    Raises:
        LeadershipLostError: a newer generation was taken meanwhile. StorageError.
    """
    newest = newest_generation(store)
    if newest > above:
        return None, newest
    record = LeaderRecord(generation=newest + 1, jobmanager_id=mine.jobmanager_id, pid=mine.holder.pid)
    if not take_generation(store, record):
        return None, newest + 1
    return write_lease(leases or store, msgspec.structs.replace(mine, generation=newest + 1)), newest + 1


def write_lease(store: LeaseStore, mine: LeaderLease) -> LeaderLease:
    """Write the lease over that of an older generation, or over an earlier one of `mine`; return it.

    Raises:
        LeadershipLostError: a newer leader has written it. StorageError.
    """
    data = msgspec.json.encode(mine)
    for _ in range(_MAX_RACES):
        found = _read(store)
        if found is None:
            if store.put_if_absent(LEASE, data):
                return mine
            continue
        present, etag = found
        foreign = present.generation == mine.generation and present.jobmanager_id != mine.jobmanager_id
        if present.generation > mine.generation or foreign:
            msg = f"a JobManager of generation {present.generation} has taken over from generation {mine.generation}"
            raise LeadershipLostError(f"{msg} in {store.uri}", hint="this process becomes a standby")
        if present == mine or store.put_if_match(LEASE, data, etag):
            return mine
    msg = f"the lease {store.uri}/{LEASE} changed during every attempt to write it"
    raise StorageError(msg, hint="several JobManagers compete: check that each cluster has its own HA root")


def renewed(lease: LeaderLease) -> LeaderLease:
    """Return the lease of the next renewal."""
    return msgspec.structs.replace(lease, renewals=lease.renewals + 1)


def released(lease: LeaderLease) -> LeaderLease:
    """Return the lease that lets a standby take over at once."""
    return msgspec.structs.replace(lease, renewals=lease.renewals + 1, released=True)


def _read(store: LeaseStore) -> tuple[LeaderLease, str] | None:
    try:
        data, etag = store.read_with_etag(LEASE)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=LeaderLease), etag
    except msgspec.MsgspecError as error:
        msg = f"the lease {store.uri}/{LEASE} is damaged: {error}"
        raise StorageError(msg, hint="delete it while no JobManager runs") from error
