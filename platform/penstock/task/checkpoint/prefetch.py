"""Fetches a subtask's remote state in the background, range by range, until all of it is local or local space is used.

One request per store at a time. A failed one is repeated at the next checkpoint, since no row depends on it: a row in
use is fetched in the subtask's thread. Called by `task.checkpoint.compaction`.
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
    """The prefetches of one subtask; all calls and mails in its thread."""

    background: Background
    post: Callable[[Mail], object]
    failures: int = 0
    _running: set[int] = field(default_factory=set)

    def start_due(self, stores: tuple[KeyedStateStore, ...]) -> None:
        """Start the work that the stores offer."""
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
