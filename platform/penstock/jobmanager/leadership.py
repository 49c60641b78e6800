"""One JobManager's part in the election of its HA root: waits as a standby, renews its lease as the leader.

Driven by `jobmanager.main`; `checkpoint.leader_lease` decides. All store calls run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec

from penstock.checkpoint.job_lease import has_exited
from penstock.checkpoint.leader_lease import (
    RENEWALS,
    LeaderLease,
    LeaseWatch,
    read_lease,
    released,
    renewed,
    require_election,
    take_lead,
    write_lease,
)
from penstock.checkpoint.standby_records import (
    STANDBY_TTL_MS,
    StandbyRecord,
    StandbyWatch,
    read_standbys,
    remove_standby,
    write_standby,
)
from penstock.checkpoint.store import LeaseStore, ObjectStore
from penstock.core.clock import Clock
from penstock.core.errors import LeadershipLostError, PenstockError
from penstock.jobmanager.leader_probing import LeaderProbing, Prober
from penstock.rpc.probes import ProbeAnswer

#: Ticks from one look of a standby at the lease to the next while the leader answers: six looks in its lifetime.
_LOOK_TICKS = 4


class Leadership:
    """The election as seen by one process; used on one event loop."""

    def __init__(
        self,
        store: ObjectStore,
        mine: LeaderLease,
        clock: Clock,
        log: Callable[[str], None],
        leases: LeaseStore | None = None,
        prober: Prober | None = None,
    ) -> None:
        """Take the lease to write when this process leads; its generation is chosen then.

        `store` is the HA root; `leases`: where the leader is elected, unless there. Without `prober`, only the lease
        decides when a standby takes over.
        """
        self._store, self._mine, self._clock, self._log = store, mine, clock, log
        self._leases: LeaseStore = leases or store
        #: Where the lease is written when it is published or released.
        self._places = (self._leases, *([] if leases is None else [store]))
        self._held: LeaderLease | None = None
        self._prober = prober
        #: Begin and end of the last renewal.
        self._confirmed_ms = self._renewed_ms = 0.0
        self._renewing = asyncio.Lock()
        #: The lease of the present leader, as last read; None before the first look and without a leader.
        self.leader: LeaderLease | None = None
        #: The record of this process as a standby, and when it was last written.
        self._record = StandbyRecord(jobmanager_id=mine.jobmanager_id, holder=mine.holder, rest=mine.rest)
        self._recorded_ms: float | None = None
        #: The end of a log line about its last write, if that failed.
        self._unrecorded = ""
        #: The standbys, as last read by the leader.
        self.standbys: tuple[StandbyRecord, ...] = ()

    @property
    def generation(self) -> int:
        """The generation that this process leads or has led; 0: none."""
        return 0 if self._held is None else self._held.generation

    async def wait(self, stopping: asyncio.Event) -> bool:
        """Wait until this process leads; False if `stopping` was set before. A store that fails is asked again.

        Raises:
            PenstockError: the store cannot be read at the first look, or the leader is elected elsewhere.
        """
        await asyncio.to_thread(require_election, self._store, self._mine)
        watch = LeaseWatch(self._mine.ttl_ms)
        async with self._probing(watch):
            led = await self._waited(watch, stopping)
        if not led:
            with contextlib.suppress(PenstockError):  # the leader finds out by the time
                await self._delete_record()
        return led

    @contextlib.asynccontextmanager
    async def _probing(self, watch: LeaseWatch) -> AsyncIterator[None]:
        if self._prober is None:
            yield
            return
        ended = asyncio.Event()
        probes = LeaderProbing(self._prober, self._clock, self._log)
        probing = asyncio.create_task(probes.run(watch.probes, self._leader_address, ended))
        try:
            yield
        finally:
            ended.set()
            await probing

    def _leader_address(self) -> str:
        return "" if self.leader is None else self.leader.rpc

    async def _waited(self, watch: LeaseWatch, stopping: asyncio.Event) -> bool:
        reported = ""
        while not stopping.is_set():
            try:
                if await self._look(watch):
                    return True
                text = self._standby_text() + await self._renew_record()
            except LeadershipLostError:
                continue  # another standby was faster
            except PenstockError as error:
                if not reported:
                    raise
                text = f"standby: cannot read or take the lease: {error}"
            if text != reported:
                self._log(text)
                reported = text
            await self._until_next_look(watch, stopping)
        return False

    async def _until_next_look(self, watch: LeaseWatch, stopping: asyncio.Event) -> None:
        for _ in range(_LOOK_TICKS):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), watch.pause_ms(self._clock.monotonic_ms()) / 1000)
            if stopping.is_set() or watch.suspects(self._clock.monotonic_ms()):
                return

    async def _look(self, watch: LeaseWatch) -> bool:
        asked_ms = self._clock.monotonic_ms()
        lease = self.leader = await asyncio.to_thread(read_lease, self._leases)
        exited = lease is not None and has_exited(lease.holder, self._mine.holder)
        if not watch.lapsed(lease, asked_ms, self._clock.monotonic_ms(), exited=exited):
            return False
        asked_ms = self._clock.monotonic_ms()
        held, newest = await asyncio.to_thread(take_lead, self._store, self._mine, watch.above, self._leases)
        if held is None:
            watch.lost(newest, self._clock.monotonic_ms())
            return False
        self._held, self._confirmed_ms, self.leader = held, asked_ms, held
        self._renewed_ms = self._clock.monotonic_ms()
        return True

    def _standby_text(self) -> str:
        leader = self.leader
        if leader is None:
            return "standby: another JobManager is about to lead"
        place = leader.rest or f"process {leader.holder.pid} on {leader.holder.host}"
        return f"standby: {place} leads, generation {leader.generation}"

    async def _renew_record(self) -> str:
        """Write the record of this standby if it is time to; return the end of a log line if the last write failed."""
        now_ms = self._clock.monotonic_ms()
        if self._recorded_ms is not None and now_ms - self._recorded_ms < STANDBY_TTL_MS / RENEWALS:
            return self._unrecorded
        self._record = msgspec.structs.replace(self._record, renewals=self._record.renewals + 1)
        self._recorded_ms, self._unrecorded = now_ms, ""
        try:
            await asyncio.to_thread(write_standby, self._store, self._record)
        except PenstockError as error:
            self._unrecorded = f"; `penstock cluster status` does not show this standby: {error}"
        return self._unrecorded

    async def _delete_record(self) -> None:
        if self._recorded_ms is not None:
            self._recorded_ms = None
            await asyncio.to_thread(remove_standby, self._store, self._record.jobmanager_id)

    async def watch_standbys(self, stopping: asyncio.Event) -> None:
        """Read the records of standbys until `stopping`, as the leader; delete those of processes that have ended."""
        watch, reported = StandbyWatch(), ""
        while not stopping.is_set():
            try:
                await self._delete_record()
                found = await asyncio.to_thread(read_standbys, self._store)
                exited = {one.jobmanager_id for one in found if has_exited(one.holder, self._mine.holder)}
                for name in watch.seen(found, self._clock.monotonic_ms(), exited):
                    await asyncio.to_thread(remove_standby, self._store, name)
                reported = ""
            except PenstockError as error:
                if str(error) != reported:
                    self._log(f"cannot read the records of standbys: {error}")
                    reported = str(error)
            self.standbys = watch.live
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), STANDBY_TTL_MS / RENEWALS / 1000)

    async def publish(self, rpc: str) -> None:
        """Write the `host:port` at which this leader takes TaskManagers."""
        assert self._held is not None  # noqa: S101 - `wait` comes first
        async with self._renewing:
            self._held = self.leader = msgspec.structs.replace(self._held, rpc=rpc)
        await self.renew()
        for place in self._places[1:]:
            await asyncio.to_thread(write_lease, place, self._held)

    async def renew(self) -> None:
        """Renew the lease.

        Raises:
            LeadershipLostError: a newer leader has taken over. StorageError: it is unknown.
        """
        async with self._renewing:
            if self._held is None or self._held.released:
                raise LeadershipLostError("this JobManager is ending", hint="try again: a standby takes over")
            wanted, asked_ms = renewed(self._held), self._clock.monotonic_ms()
            try:
                self._held = await asyncio.to_thread(write_lease, self._leases, wanted)
            except LeadershipLostError:
                with contextlib.suppress(PenstockError):
                    self.leader = await asyncio.to_thread(read_lease, self._leases)
                raise
            self._confirmed_ms, self.leader = asked_ms, self._held
            self._renewed_ms = self._clock.monotonic_ms()

    def answer(self) -> ProbeAnswer:
        """Answer a probe, as the leader."""
        assert self._held is not None  # noqa: S101 - `wait` comes first
        age_ms = self._clock.monotonic_ms() - self._renewed_ms
        return ProbeAnswer(self._held.generation, self._held.renewals, age_ms)

    async def keep(self, stopping: asyncio.Event, failed: Callable[[BaseException], None]) -> None:
        """Renew the lease until `stopping`; `failed` is called when it is lost."""
        reported = ""
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._mine.ttl_ms / RENEWALS / 1000)
            if stopping.is_set():
                return
            try:
                await self.renew()
                reported = ""
            except LeadershipLostError as error:
                failed(error)
                return
            except PenstockError as error:
                if str(error) != reported:
                    self._log(f"cannot renew the lease of the leader: {error}")
                    reported = str(error)

    @property
    def late(self) -> bool:
        """Whether a renewal is late: a standby may lead."""
        return self._clock.monotonic_ms() - self._confirmed_ms >= self._mine.ttl_ms / RENEWALS

    async def confirm(self) -> None:
        """Renew at once if a renewal is `late`, for example because this process was suspended.

        Raises:
            LeadershipLostError: another process leads. StorageError: it is unknown.
        """
        if self.late:
            await self.renew()

    async def release(self) -> None:
        """Let a standby take over at once; a lost lease and a store that fails are fine."""
        async with self._renewing:
            if self._held is None or self._held.released:
                return
            self._held = released(self._held)
            for place in self._places:
                with contextlib.suppress(PenstockError):
                    await asyncio.to_thread(write_lease, place, self._held)
