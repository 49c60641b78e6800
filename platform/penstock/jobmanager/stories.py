"""The stories of jobs over all their leaders: this one's is written down soon after each decision, others' are read.

Owned by `jobmanager.dispatcher`, on its event loop; the store is asked in threads. No job depends on any of this: a
store that refuses costs the story, and says so in the process's log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.checkpoint.story_records import prune_stories, read_stories, write_story
from penstock.core.errors import PenstockError
from penstock.core.event_log import Entry, with_earlier
from penstock.core.logs import about
from penstock.jobmanager.views import StoryEntry

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore
    from penstock.jobmanager.job_master import JobMaster

_LOGGER = logging.getLogger("penstock.jobs")
#: Decisions come in bursts: one write for those of so many seconds.
_WRITE_AFTER_SECONDS = 0.2


class Stories:
    """Written and read by job id."""

    def __init__(self, store: ObjectStore) -> None:
        """Nothing is read before somebody asks."""
        self._store = store
        #: Generation of each job's master, and how many of its decisions are written down.
        self._written: dict[str, tuple[int, int]] = {}
        self._logged: dict[str, tuple[int, int]] = {}
        self._due: dict[str, tuple[asyncio.TimerHandle, JobMaster]] = {}
        self._earlier: dict[str, tuple[Entry, ...]] = {}
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def grew(self, job_id: str, master: JobMaster) -> None:
        """Log what was decided, and write it down soon."""
        generation, decided = _state(master)
        before, logged = self._logged.get(job_id, (0, 0))
        if (before, logged) != (generation, decided):
            self._logged[job_id] = generation, decided
            for entry in master.story.since(logged if before == generation else 0):
                _LOGGER.info("%s: %s", entry.kind, entry.text, extra=about(job_id, master.graph.name))
        if job_id in self._due or self._written.get(job_id) == _state(master):
            return
        loop = asyncio.get_running_loop()
        self._due[job_id] = loop.call_later(_WRITE_AFTER_SECONDS, self._begin, job_id, master), master

    async def save(self, job_id: str, master: JobMaster | None) -> None:
        """Write it down now; goes on when the caller is cancelled, until `close` has waited for it."""
        if master is not None:
            await asyncio.shield(self._begin(job_id, master))

    async def _write(self, job_id: str, master: JobMaster) -> None:
        timer, _ = self._due.pop(job_id, (None, None))
        if timer is not None:
            timer.cancel()
        if self._written.get(job_id) == _state(master):
            return
        async with self._writing:
            generation, decided = _state(master)
            try:
                await asyncio.to_thread(write_story, self._store, job_id, generation, master.story.entries())
                if job_id not in self._written:
                    await asyncio.to_thread(prune_stories, self._store, job_id)
            except PenstockError as error:
                _LOGGER.warning("the story of job %s was not written down: %s", job_id, error)
            # one that was refused is tried again with the next decision
            self._written[job_id] = generation, decided

    async def of(self, job_id: str, master: JobMaster | None) -> tuple[StoryEntry, ...]:
        """Return what was seen and decided by all leaders that are remembered, oldest first."""
        if job_id not in self._earlier:
            try:
                own = 0 if master is None else master.identity.generation
                self._earlier[job_id] = await asyncio.to_thread(read_stories, self._store, job_id, own)
            except PenstockError as error:
                _LOGGER.warning("the story of job %s could not be read: %s", job_id, error)
        story = () if master is None else master.story.entries()
        log = () if master is None else master.story.earlier
        told = with_earlier(self._earlier.get(job_id, ()), log, story)
        present = 0 if master is None else master.identity.generation
        return tuple(
            StoryEntry(at_ms=e.at_ms, kind=e.kind, text=e.text, generation=e.generation or present) for e in told
        )

    async def close(self) -> None:
        """Write down what is due."""
        for job_id, (_, master) in tuple(self._due.items()):
            await self.save(job_id, master)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, job_id: str, master: JobMaster) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._write(job_id, master))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _state(master: JobMaster) -> tuple[int, int]:
    return master.identity.generation, master.story.decided
