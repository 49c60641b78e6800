"""The local disk of a simulated world: a folder of the world's own, and how often state went there or came back.

Counts keys that leave memory, changes that are written to the disk before a barrier, remote rows that are fetched, rows
that wait for them, and copies of checkpoint files that are read or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.memory import folder_in_memory

from penstock.checkpoint.local_copies import LocalCopies
from penstock.state.log.arrival import PartialRestore
from penstock.state.log.frozen import FrozenSegment, FrozenSource
from penstock.state.state_backend import StateBackend
from penstock.state.tables.pane_table import PaneTable
from penstock.state.tiers.range_fetcher import RangeFetcher
from penstock.task.drive.subtask import Subtask
from penstock.task.drive.waiting_rows import WaitingRows

if TYPE_CHECKING:
    from tests.sim.faults import Swarm


@contextmanager
def local_state(swarm: Swarm) -> Iterator[Path]:
    """Give a folder for cold state; at the end its stores are closed and it is removed."""
    #: By folder, which a later store of the same attempt may use again.
    opened: dict[Path, Any] = {}
    with folder_in_memory() as folder, pytest.MonkeyPatch.context() as patch:
        _noted(patch, PaneTable, "evict_keys", lambda _table, _result: swarm.seen("keys-evicted"))
        _noted(patch, FrozenSegment, "spill", lambda rows, _result: swarm.seen("changes-spilled", bool(rows._spilled)))
        _noted(patch, FrozenSource, "gather", lambda log, _result: swarm.seen("changes-spilled", bool(log._filed)))
        _noted(patch, StateBackend, "open_store", lambda _places, store: opened.update({store._folder: store}))
        _noted(patch, RangeFetcher, "ensure_ranges", lambda _rows, _result: swarm.seen("remote-fetch"))
        _noted(patch, LocalCopies, "read", lambda _copies, data: swarm.seen("copy-read", int(data is not None)))
        _noted(patch, LocalCopies, "_refused", lambda _copies, _result: swarm.seen("copy-refused"))
        _noted(patch, RangeFetcher, "_store", lambda _rows, _result: swarm.seen("remote-pieces-came"))
        _noted(patch, PartialRestore, "load_next", lambda _parts, _result: swarm.seen("part-loaded"))
        _noted(patch, WaitingRows, "_add", lambda _rows, _result: swarm.seen("rows-waited"))
        _noted(patch, Subtask, "_take_snapshot", lambda task, _: swarm.seen("waiting-rows-taken", bool(task._waiting)))
        try:
            yield Path(folder)
        finally:
            for place, store in opened.items():
                if place.exists():  # else its operator has closed it
                    store.close()


def _noted(patch: pytest.MonkeyPatch, owner: type, name: str, note: Callable[[Any, Any], object]) -> None:
    """Have every call of a method noted, with what it returned."""
    method = getattr(owner, name)

    @wraps(method)
    def noting(self: Any, *arguments: Any) -> Any:
        result = method(self, *arguments)
        note(self, result)
        return result

    patch.setattr(owner, name, noting)
