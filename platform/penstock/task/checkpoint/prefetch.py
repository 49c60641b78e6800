"""Fetches a subtask's remote state in the background, piece by piece, until all of it is there or local space is used.

One piece of work a store at a time; what fails is tried again at the next cut, as nothing depends on it: a row that is
asked for is fetched in the subtask's own thread. Called by `task.checkpoint.compaction`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.task.chain.background import Background
from penstock.task.chain.mailbox import Mail

if TYPE_CHECKING:
    from penstock.state.keyed import KeyedStateStore, PrefetchJob


@dataclass(slots=True)
class Prefetcher:
    """Owned by one subtask; all calls and mails in its thread."""

    background: Background
    post: Callable[[Mail], object]
    failures: int = 0
    _running: set[int] = field(default_factory=set)

    def start_due(self, stores: tuple[KeyedStateStore, ...]) -> None:
        """Begin whatever the stores offer."""
        for index, store in enumerate(stores):
            if index not in self._running:
                self._next(index, store)

    def _next(self, index: int, store: KeyedStateStore) -> None:
        job = store.prefetch()
        if job is None:
            return
        self._running.add(index)
        self.background.submit(job.run, lambda _, error: self.post(lambda: self._end(index, store, job, error)))

    def _end(self, index: int, store: KeyedStateStore, job: PrefetchJob, error: BaseException | None) -> None:
        self._running.discard(index)
        if error is None:
            job.install()
            self._next(index, store)
        else:
            self.failures += 1
            logging.getLogger(__name__).warning("state could not be fetched in the background: %s", error)
