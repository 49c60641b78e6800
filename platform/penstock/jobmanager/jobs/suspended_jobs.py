"""The jobs of an HA root while no JobManager leads: as recorded, and SUSPENDED if they have not ended.

A standby shows them (`rest.server.role_app`). It reads the records and changes nothing.
"""

from __future__ import annotations

import asyncio

import msgspec

from penstock.checkpoint.store import ObjectStore
from penstock.core.clock import Clock
from penstock.core.errors import UnreachableError
from penstock.jobmanager.jobs.job_views import detail_of, summary_of
from penstock.jobmanager.jobs.known_jobs import KnownJob, find_job, suspended_job
from penstock.jobmanager.jobs.recorded_jobs import readable_jobs
from penstock.jobmanager.messages.views import JobDetail, JobSummary

#: How long what was read is shown.
_FRESH_MS = 1_000
#: A store that takes longer does not answer in time; its answer is shown to later requests.
_READ_S = 2.0


class SuspendedJobs:
    """The recorded jobs of one HA root; used on one event loop."""

    def __init__(self, store: ObjectStore, clock: Clock, read_s: float = _READ_S) -> None:
        """Read nothing so far; a read may take `read_s`."""
        self._store, self._clock, self._read_s = store, clock, read_s
        self._jobs: dict[str, KnownJob] = {}
        self._read_ms: float | None = None
        #: The read that is under way, for all requests.
        self._reading: asyncio.Task[None] | None = None

    async def jobs(self) -> tuple[JobSummary, ...]:
        """Return all jobs, newest first.

        Raises:
            StorageError: the store cannot be read. UnreachableError: it does not answer in time.
        """
        found = [self._summary(job) for job in (await self._known()).values()]
        return tuple(sorted(found, key=lambda job: job.start_ms, reverse=True))

    async def detail(self, job: str) -> JobDetail:
        """Return one job, by id or name, with its graph. Raises NotFoundError, and like `jobs`."""
        found = find_job(await self._known(), job)
        return detail_of(self._summary(found), found.graph, None, self._clock.now_ms())

    def _summary(self, job: KnownJob) -> JobSummary:
        summary = summary_of(job.record, job.graph, None, self._clock.now_ms())
        return summary if job.record.ended else msgspec.structs.replace(summary, state="SUSPENDED")

    async def _known(self) -> dict[str, KnownJob]:
        if self._read_ms is None or self._clock.monotonic_ms() - self._read_ms >= _FRESH_MS:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
                self._reading.add_done_callback(_retrieved)
            reading = self._reading
            if not (await asyncio.wait({reading}, timeout=self._read_s))[0]:
                raise UnreachableError(f"{self._store.uri} does not answer", hint="try again in a few seconds")
            reading.result()
        return self._jobs

    async def _read(self) -> None:
        try:
            recorded, damaged = await asyncio.to_thread(readable_jobs, self._store)
        finally:
            self._reading = None
        known = [KnownJob(record, graph) for record, graph in recorded] + [suspended_job(found) for found in damaged]
        self._jobs, self._read_ms = {job.record.job_id: job for job in known}, self._clock.monotonic_ms()


def _retrieved(reading: asyncio.Task[None]) -> None:
    """Take the error of a read that no request waits for any longer."""
    if not reading.cancelled():
        reading.exception()
