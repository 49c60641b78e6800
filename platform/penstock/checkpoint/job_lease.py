"""The lease of a job identity (checkpoint root, job name): holder, generation, expiry.

The JobManager's job driver holds it and renews it by compare-and-set. Safety does not depend on the clock: the
generation of the lease seals the manifest log. The lease only lets a second process fail at once with the name of the
holder. It also names the newest attempt of each vertex, which a later leader may adopt.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.checkpoint.manifest_log import EMPTIED_HINT, decode_file, highest_generation
from penstock.checkpoint.store import ObjectStore
from penstock.core.clock import Clock
from penstock.core.errors import JobIdentityError, LeadershipLostError, SnapshotDamagedError, StorageError
from penstock.core.structs import prepare
from penstock.graph.task_deployment import Attempts

LEASE = "lease.json"
#: The way out when the lease cannot be decoded: another one follows from the log.
_LEASE_HINT = "check that no other process runs this job, then delete the file and restart the JobManager"
_MAX_RACES = 20


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that may hold leases.

    `id` is stable over restarts on one HA root, so that a successor takes over at once.
    """

    id: str
    host: str
    #: Boot id and pid namespace; `pid` is valid only there.
    machine: str
    pid: int
    #: Generation of the leader of the HA root: an earlier leader, however slow, does not take over from a later one.
    leader_generation: int = 0


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the lease object in the store."""

    holder: LeaseHolder
    job_id: str
    generation: int
    expires_ms: int
    released: bool = False
    renewals: int = 0
    #: The fields of `attempts`, which the next leader keeps until its own deployment. A version that does not know
    #: `earlier` reads one attempt, and adopts no workers of others.
    attempt: int = 0
    earlier: dict[str, int] = {}

    @property
    def attempts(self) -> Attempts:
        """The newest attempt of each vertex."""
        return Attempts(self.attempt, self.earlier)


prepare(LeaseRecord)


def this_process(holder_id: str) -> LeaseHolder:
    """Return this process as a holder."""
    return LeaseHolder(id=holder_id, host=socket.gethostname(), machine=_machine(), pid=os.getpid())


class JobLease:
    """One held lease."""

    def __init__(self, store: ObjectStore, holder: LeaseHolder, clock: Clock, ttl_ms: int = 15_000) -> None:
        """Take `store`, the job's folder."""
        self._store = store
        self._holder = holder
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._record: LeaseRecord | None = None

    @property
    def ttl_ms(self) -> int:
        """Duration of a renewal; renew at a third of it."""
        return self._ttl_ms

    @property
    def record(self) -> LeaseRecord:
        """Return the lease record that this process holds."""
        if self._record is None:
            msg = "the lease is not held"
            raise LeadershipLostError(msg, hint="acquire comes first")
        return self._record

    def acquire(self, job_id: str, *, take_over: bool = True) -> LeaseRecord:
        """Take the lease under a new generation.

        `take_over`: also from this holder itself, as its next leader does.

        Raises:
            JobIdentityError: another process holds it; names the holder.
            LeadershipLostError: a later leader of the same HA root has held it.
            MetadataDamagedError: it cannot be decoded.
        """
        for _ in range(_MAX_RACES):
            try:
                data, etag = self._store.read_with_etag(LEASE)
            except FileNotFoundError:
                wanted = self._next(job_id, highest_generation(self._store), 0)
                if self._store.put_if_absent(LEASE, msgspec.json.encode(wanted)):
                    self._record = wanted
                    return wanted
                continue
            held = decode_file(f"{self._store.uri}/{LEASE}", data, LeaseRecord, _LEASE_HINT)
            self._refuse_held(held, take_over=take_over)
            attempts = held.attempts if held.job_id == job_id else Attempts()
            wanted = _with(self._next(job_id, held.generation, held.renewals), attempts)
            if self._store.put_if_match(LEASE, msgspec.json.encode(wanted), etag):
                self._record = wanted
                return wanted
        msg = f"the lease {self._store.uri}/{LEASE} changed during every attempt to take it"
        raise StorageError(msg, hint="several processes compete for the same job: stop all but one")

    def renew(self) -> None:
        """Extend the lease.

        Raises:
            LeadershipLostError: another process has taken it. SnapshotDamagedError: the lease was deleted.
            MetadataDamagedError: it cannot be decoded.
        """
        self._swap(self._renewed)

    def record_attempt(self, attempts: Attempts) -> None:
        """Write the attempts that a deployment leaves, and extend the lease; raises like `renew`."""
        self._swap(lambda held: _with(self._renewed(held), attempts))

    def _renewed(self, held: LeaseRecord) -> LeaseRecord:
        expires_ms = self._clock.now_ms() + self._ttl_ms
        return msgspec.structs.replace(held, expires_ms=expires_ms, renewals=held.renewals + 1)

    def release(self) -> None:
        """Release the lease by overwriting it, as stores have no conditional delete; a lost lease is fine."""
        if self._record is None:
            return
        try:
            self._swap(lambda held: msgspec.structs.replace(held, released=True, expires_ms=0))
        except (LeadershipLostError, SnapshotDamagedError):
            return
        finally:
            self._record = None

    def _swap(self, change: Callable[[LeaseRecord], LeaseRecord]) -> None:
        """Replace the present lease; a renewal and the record of an attempt may come from two threads."""
        for _ in range(_MAX_RACES):
            try:
                data, etag = self._store.read_with_etag(LEASE)
            except FileNotFoundError as error:
                msg = f"{self._store.uri} was emptied while the job ran: {LEASE} is gone"
                raise SnapshotDamagedError(msg, hint=EMPTIED_HINT) from error
            present = decode_file(f"{self._store.uri}/{LEASE}", data, LeaseRecord, _LEASE_HINT)
            if present.generation != self.record.generation or present.holder != self._holder:
                msg = f"job lease {self._store.uri}/{LEASE} was taken over by {_describe_holder(present)}"
                raise LeadershipLostError(msg, hint="this process steps down")
            wanted = change(present)
            if self._store.put_if_match(LEASE, msgspec.json.encode(wanted), etag):
                self._record = wanted
                return
        msg = f"the lease {self._store.uri}/{LEASE} changed during every attempt to renew it"
        raise StorageError(msg, hint="several processes compete for the same job: stop all but one")

    def _next(self, job_id: str, generation: int, renewals: int) -> LeaseRecord:
        expires_ms = self._clock.now_ms() + self._ttl_ms
        return LeaseRecord(
            holder=self._holder, job_id=job_id, generation=generation + 1, expires_ms=expires_ms, renewals=renewals + 1
        )

    def _refuse_held(self, held: LeaseRecord, *, take_over: bool) -> None:
        if held.holder.id == self._holder.id and held.holder.leader_generation > self._holder.leader_generation:
            msg = f"{self._store.uri} was taken over by {_describe_holder(held)}, a later leader of this cluster"
            raise LeadershipLostError(msg, hint="this process steps down")
        if held.released or (take_over and held.holder.id == self._holder.id):
            return
        if self._clock.now_ms() >= held.expires_ms or has_exited(held.holder, self._holder):
            return
        seconds = (held.expires_ms - self._clock.now_ms()) / 1000
        msg = f"{self._store.uri} is run by {_describe_holder(held)}; its lease lasts another {seconds:.0f} s"
        raise JobIdentityError(msg, hint="stop that job, wait, or use another job name or checkpoint root")


def _with(record: LeaseRecord, attempts: Attempts) -> LeaseRecord:
    return msgspec.structs.replace(record, attempt=attempts.newest, earlier=attempts.earlier)


def _describe_holder(record: LeaseRecord) -> str:
    return f"process {record.holder.pid} on {record.holder.host} (job {record.job_id}, holder {record.holder.id[:12]})"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return f"{boot} {namespace}"


def has_exited(holder: LeaseHolder, asking: LeaseHolder) -> bool:
    """Return whether the holder ran on this machine and its process has ended (a zombie counts as ended)."""
    if not holder.machine or holder.machine != asking.machine:
        return False
    try:
        status = Path(f"/proc/{holder.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[:1] == ["Z"]
