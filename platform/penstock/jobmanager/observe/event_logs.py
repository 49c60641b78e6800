"""The event logs of jobs over all their leaders: stores this leader's entries, reads the others'.

Owned by `jobmanager.dispatcher`, on its event loop; store calls run in separate threads. No job depends on the event
log: if the store fails or hangs, entries are lost and the process's log says so.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.checkpoint.ha_records import prune_event_logs, read_event_logs, write_event_log
from penstock.core.errors import PenstockError
from penstock.core.event_log import Entry, merge_event_logs
from penstock.core.logs import job_extra
from penstock.jobmanager.cluster.daemon_thread_pool import DaemonThreadPool
from penstock.jobmanager.messages.views import EventLogEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.checkpoint.store import ObjectStore
    from penstock.jobmanager.master.job_master import JobMaster

_LOGGER = logging.getLogger("penstock.jobs")
_NO_ANSWER = "the store does not answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogTimes:
    """Time limits of event log operations, in seconds."""

    #: Entries within this time are written together, because decisions occur in bursts.
    gather_s: float = 0.2
    #: The same for routine entries, which occur with each checkpoint.
    gather_routine_s: float = 10.0
    #: Limit of one store call.
    call_s: float = 10.0
    #: Limit of the writes at close.
    close_s: float = 15.0


_TIMES = EventLogTimes()


class EventLogs:
    """Event logs by job id."""

    def __init__(self, store: ObjectStore, times: EventLogTimes = _TIMES) -> None:
        """Create an empty cache; the store is read at the first query."""
        self._store, self._times = store, times
        #: Generation of each job's master, and the numbers of its decisions and of all its entries that are stored.
        self._written: dict[str, tuple[int, int, int]] = {}
        self._logged: dict[str, tuple[int, int]] = {}
        self._due: dict[str, tuple[asyncio.TimerHandle, JobMaster]] = {}
        #: Entries of all generations except one, and that generation.
        self._earlier: dict[str, tuple[int, tuple[Entry, ...]]] = {}
        self._reading: dict[tuple[str, int], asyncio.Task[tuple[Entry, ...]]] = {}
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        # one writer: a delayed write cannot overwrite a newer one
        self._writer, self._readers = DaemonThreadPool("story-writer", 1), DaemonThreadPool("story-reader", 2)

    def entries_added(self, job_id: str, master: JobMaster) -> None:
        """Log the new entries and schedule their write."""
        generation, decided, _ = _state(master)
        before, logged = self._logged.get(job_id, (0, 0))
        if (before, logged) != (generation, decided):
            self._logged[job_id] = generation, decided
            for entry in master.event_log.since(logged if before == generation else 0):
                _LOGGER.info("%s: %s", entry.kind, entry.text, extra=job_extra(job_id, master.graph.name))
        written = self._written.get(job_id, (0, 0, 0))
        if written == _state(master):
            return
        delay_s = self._times.gather_routine_s if written[:2] == (generation, decided) else self._times.gather_s
        loop = asyncio.get_running_loop()
        if job_id in self._due:
            timer, _ = self._due[job_id]
            if timer.when() <= loop.time() + delay_s:
                return
            timer.cancel()
        self._due[job_id] = loop.call_later(delay_s, self._begin, job_id, master), master

    async def save(self, job_id: str, master: JobMaster | None) -> None:
        """Write the entries now; continues after a cancellation of the caller until `close` has waited for it."""
        if master is not None:
            await asyncio.shield(self._begin(job_id, master))

    async def _write(self, job_id: str, master: JobMaster) -> None:
        async with self._writing:
            # scheduled until here: entries added meanwhile are part of this write
            timer, _ = self._due.pop(job_id, (None, None))
            if timer is not None:
                timer.cancel()
            if self._written.get(job_id) == _state(master):
                return
            state = _state(master)
            try:
                entries = master.event_log.entries()
                await self._writer.call(self._times.call_s, write_event_log, self._store, job_id, state[0], entries)
                if job_id not in self._written:
                    await self._writer.call(self._times.call_s, prune_event_logs, self._store, job_id)
            except (PenstockError, TimeoutError) as error:
                _LOGGER.warning("the event log of job %s was not stored: %s", job_id, str(error) or _NO_ANSWER)
            # a failed write is repeated with the next entry
            self._written[job_id] = state

    async def of(self, job_id: str, master: JobMaster | None) -> tuple[EventLogEntry, ...]:
        """Return the entries of all remembered leaders of one job, oldest first."""
        present = 0 if master is None else master.identity.generation
        except_generation, earlier = self._earlier.get(job_id, (-1, ()))
        if except_generation != present:
            if (job_id, present) not in self._reading:
                reading = asyncio.get_running_loop().create_task(self._read(job_id, present))
                self._reading[job_id, present] = reading
                reading.add_done_callback(lambda _: self._reading.pop((job_id, present)))
            earlier = await asyncio.shield(self._reading[job_id, present])
        story = () if master is None else master.event_log.entries()
        log = () if master is None else [e for e in master.event_log.earlier if e.job_id == job_id]
        entries = merge_event_logs(earlier, log, story)
        return tuple(_view(entry, job_id, present) for entry in entries)

    async def of_jobs(
        self, jobs: Mapping[str, JobMaster | None], unrecorded: Iterable[Entry]
    ) -> tuple[EventLogEntry, ...]:
        """Return the entries of several jobs of one name, job by job, oldest first.

        `jobs` is by job id. `unrecorded` are entries of jobs that have no record in the HA store, as those of another
        cluster; the manifest log has them.
        """
        found = list(await asyncio.gather(*(self.of(job_id, master) for job_id, master in jobs.items())))
        others: dict[str, list[EventLogEntry]] = {}
        for entry in dict.fromkeys(unrecorded):
            others.setdefault(entry.job_id, []).append(_view(entry, entry.job_id, 0))
        found += [tuple(entries) for entries in others.values()]
        ordered = sorted((entries for entries in found if entries), key=lambda entries: entries[0].at_ms)
        return tuple(entry for entries in ordered for entry in entries)

    def forget(self, job_id: str) -> None:
        """Drop the cache of an ended job; later queries read the store."""
        for known in (self._written, self._logged, self._earlier):
            known.pop(job_id, None)

    async def close(self) -> None:
        """Write pending entries, unless the store hangs."""
        for job_id, (_, master) in tuple(self._due.items()):
            self._begin(job_id, master)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._times.close_s)
        left = (*self._tasks, *self._reading.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._writer.close()
        self._readers.close()

    async def _read(self, job_id: str, except_generation: int) -> tuple[Entry, ...]:
        try:
            entries = await self._readers.call(
                self._times.call_s, read_event_logs, self._store, job_id, except_generation
            )
        except (PenstockError, TimeoutError) as error:
            _LOGGER.warning("the event log of job %s could not be read: %s", job_id, str(error) or _NO_ANSWER)
            return ()
        if except_generation:  # otherwise the job has no master here, and its cache would never be dropped
            self._earlier[job_id] = except_generation, entries
        return entries

    def _begin(self, job_id: str, master: JobMaster) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._write(job_id, master))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _view(entry: Entry, job_id: str, generation: int) -> EventLogEntry:
    """Return the view of an entry of that job; `generation` applies if the entry has none."""
    return EventLogEntry(
        at_ms=entry.at_ms,
        kind=entry.kind,
        text=entry.text,
        generation=entry.generation or generation,
        job_id=job_id,
    )


def _state(master: JobMaster) -> tuple[int, int, int]:
    return master.identity.generation, master.event_log.decided, master.event_log.added
