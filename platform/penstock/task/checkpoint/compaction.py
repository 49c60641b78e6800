"""Background work of a subtask's keyed stores: compactions, and prefetches of remote state.

One compaction and one prefetch per store at a time; no other work depends on a failed one. Started by
`task.drive.subtask`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.core.snapshot import FileRef
from penstock.state.log.segments import EncodedSegment
from penstock.task.chain.background import Background, Mail
from penstock.task.chain.uploader import Part, Uploader

if TYPE_CHECKING:
    from penstock.checkpoint.local_copies import StateFiles
    from penstock.state.log.frozen import CompactionJob
    from penstock.state.store import KeyedState
    from penstock.state.tiers.range_fetcher import BackgroundFetch


@dataclass(slots=True)
class Prefetcher:
    """The prefetches of one subtask; all calls and mails in its thread."""

    background: Background
    post: Callable[[Mail], object]
    failures: int = 0
    _running: set[int] = field(default_factory=set)
    #: The stores whose last fetch failed, until the next `start_due`.
    _failed: set[int] = field(default_factory=set)

    def start_due(self, stores: tuple[KeyedState, ...]) -> None:
        """Start the work that the stores offer."""
        self._failed.clear()
        for index, store in enumerate(stores):
            if index not in self._running:
                self._next(index, store)

    def fetches(self, index: int, store: KeyedState) -> bool:
        """Return whether a fetch of a store is under way; start one unless the last one failed."""
        if index not in self._running and index not in self._failed:
            self._next(index, store)
        return index in self._running

    def _next(self, index: int, store: KeyedState) -> None:
        job = store.prefetch()
        if job is None:
            return
        self._running.add(index)
        self.background.submit(job.run, lambda _, error: self.post(lambda: self._end(index, store, job, error)))

    def _end(self, index: int, store: KeyedState, job: BackgroundFetch[Any], error: BaseException | None) -> None:
        self._running.discard(index)
        if error is None:
            job.install()
            self._next(index, store)
        else:
            self.failures += 1
            self._failed.add(index)
            logging.getLogger(__name__).warning("state could not be fetched in the background: %s", error)


@dataclass(slots=True)
class Compactor:
    """The compactions of one subtask; all calls and mails in its thread."""

    background: Background
    uploader: Uploader
    files: StateFiles
    post: Callable[[Mail], object]
    failures: int = 0
    completed: int = 0
    #: No compaction starts, and a running one is abandoned.
    _paused: bool = False
    _running: set[int] = field(default_factory=set)
    _prefetcher: Prefetcher = field(init=False)

    def __post_init__(self) -> None:
        """Start without work."""
        self._prefetcher = Prefetcher(self.background, self.post)

    def fetches(self, index: int, store: KeyedState) -> bool:
        """As `Prefetcher.fetches`."""
        return self._prefetcher.fetches(index, store)

    def start_due(self, stores: tuple[KeyedState, ...]) -> None:
        """Start the work that the stores offer."""
        self._prefetcher.start_due(stores)
        for index, store in enumerate(() if self._paused else stores):
            if index in self._running:
                continue
            job = store.compaction()
            if job is not None:
                self._running.add(index)
                self._run(index, store, job)

    def pause(self, *, paused: bool) -> None:
        """Change no log until `paused` is false."""
        self._paused = paused

    def _run(self, index: int, store: KeyedState, job: CompactionJob) -> None:
        def merged(segment: EncodedSegment | None, error: BaseException | None) -> None:
            if segment is None:
                self.post(lambda: self._end(index, store, job, None, error))
            else:
                self.uploader.write(
                    (Part(segment.data),),
                    lambda refs, failure: self.post(
                        lambda: self._end(index, store, job, refs[0] if refs else None, failure)
                    ),
                )

        self.background.submit(lambda: job.run(self.files.read), merged)

    def _end(
        self,
        index: int,
        store: KeyedState,
        job: CompactionJob,
        file: FileRef | None,
        error: BaseException | None,
    ) -> None:
        self._running.discard(index)
        if self._paused:
            file = None
        elif error is None:
            self.completed += 1
        if error is not None:
            self.failures += 1
            # A compaction may be the first to read a committed file again, long before a restore.
            logging.getLogger(__name__).warning("state %s could not be compacted: %s", job.state, error)
        store.compacted(job, file)
