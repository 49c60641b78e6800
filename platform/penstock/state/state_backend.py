"""State backend of one operator: what the task passes to open its state, and the stores of evicted or remote keys.

Made by `state.store`, which closes it with the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.kernels.keys.key_types import is_fixed
from penstock.state.keys.key_index import plain_key_schema
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.tiers.cold_panes import ColdFileStore, LocalPaneStore, SortedColdStore
from penstock.state.tiers.cold_records import SpillStore
from penstock.state.tiers.join_runs import RunFiles
from penstock.state.tiers.remote_log import Gather, RemoteLog, one_by_one
from penstock.state.tiers.remote_panes import ColdPaneStore, RemotePanes
from penstock.state.tiers.remote_runs import RemoteRuns
from penstock.state.tiers.rocksdb import RocksStore, SortedStore, require

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.config.settings import JobSettings
    from penstock.core.keygroup import HashRange
    from penstock.core.snapshot import FileRef, KeyedStateSnapshot
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.memory.budget import MemoryBudget
    from penstock.state.tiers.range_fetcher import RangeFetcher


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedStateRequest:
    """The data that the task passes to open an operator's state."""

    uid: str
    #: Snapshots of this operator, clipped to `hash_range` by the job.
    snapshots: tuple[KeyedStateSnapshot, ...]
    hash_range: HashRange
    settings: JobSettings
    #: Reads a file of a snapshot or a part of it, verified if the reference has a checksum.
    read: Callable[[FileRef], bytes]
    #: The folder of this subtask attempt for spilled and cold rows; created when needed.
    directory: Path
    #: `<run>/<vertex>/<subtask>/<attempt>`.
    writer: str
    budget: MemoryBudget
    #: Whether rows may wait while a large table is loaded (see `PartialRestore`).
    in_parts: bool = False
    #: Runs several reads in parallel.
    gather: Gather = one_by_one
    #: Size limits of tables, logs and files.
    limits: StateLimits = PRODUCTION


#: RocksDB's cache and memtables get one part in this many of the managed memory, hot tables the rest.
_COLD_SHARE = 4


class StateBackend:
    """The stores of one attempt of one operator of one subtask."""

    def __init__(self, request: KeyedStateRequest) -> None:
        """Open nothing yet."""
        self._request = request
        self._share = request.settings.managed_bytes // _COLD_SHARE
        self._opened: list[ColdPaneStore | SpillStore | RunFiles | RemoteRuns] = []
        #: The fetchers of remote states, for prefetches.
        self.remote: list[RangeFetcher[Any]] = []

    def rows(self, source: FrozenSource[PaneTableSpec]) -> ColdPaneStore | None:
        """Return the cold side of a pane table; None: all rows stay in memory.

        Raises:
            UsageError: the backend's library is not installed.
            StorageError: the object store cannot be read (remote backend).
        """
        backend = self._request.settings.state_backend
        if backend == "hashmap":
            return None
        rows: ColdPaneStore
        if backend == "remote":
            local = self._local_rows(source, self._request.limits.regions)
            rows = RemotePanes(source, self._open_log, local, self._local_bytes)
            self.remote.append(rows.fetcher)
        else:
            rows = self._local_rows(source, regions=1)
        self._opened.append(rows)
        return rows

    def keys(self) -> SpillStore | None:
        """Return the store of keys that are not in memory; None: all keys stay in memory. Call it once.

        Raises:
            UsageError: the backend's library is not installed.
        """
        backend = self._request.settings.state_backend
        if backend == "hashmap":
            return None
        require()
        spill_store = SpillStore(lambda: self.open_store("rows"), self._request.limits)
        self._opened.append(spill_store)
        if backend == "remote":
            self.remote.append(spill_store.fetch_with(self._open_log, self._request.hash_range, self._local_bytes))
        return spill_store

    def runs(self) -> tuple[RunFiles | None, RemoteRuns | None]:
        """Return the stores of spilled and of remote join rows; None: all rows stay in memory, or are local."""
        request = self._request
        if request.settings.state_backend == "hashmap":
            return None, None
        run_files = RunFiles(request.directory, limits=request.limits)
        self._opened.append(run_files)
        if request.settings.state_backend != "remote":
            return run_files, None
        folder, limits = request.directory, request.limits
        fetches = RemoteRuns(folder, request.hash_range, self._open_log, self._local_bytes, limits)
        self._opened.append(fetches)
        self.remote.append(fetches.fetcher)
        return run_files, fetches

    def close(self) -> None:
        """Free the local disk; idempotent."""
        for place in self._opened:
            place.close()
        self._opened = []
        self.remote = []

    def _open_log(self, source: FrozenSource[Any]) -> RemoteLog:
        return RemoteLog(source, self._request.read, self._request.gather)

    @property
    def _local_bytes(self) -> int:
        """Return the local disk limit for fetched state of this subtask."""
        settings = self._request.settings
        return settings.remote_local_bytes * self._request.budget.limit_bytes // settings.managed_bytes

    def _local_rows(self, source: FrozenSource[PaneTableSpec], regions: int) -> LocalPaneStore:
        request, spec = self._request, source.spec
        if not self.fits_file(spec):
            return SortedColdStore(spec, self.open_store(source.state), request.hash_range, regions)
        files = ColdFileStore(spec, request.hash_range, request.directory, self._share, request.limits, regions)
        files.expect(source.log.rows)
        return files

    def fits_file(self, spec: PaneTableSpec) -> bool:
        """Return whether the cold rows of a table are in a mapped file: one pane, of words only."""
        if self._request.settings.state_backend == "hashmap" or not spec.single_pane or spec.value_words:
            return False
        return all(is_fixed(field.type) for field in plain_key_schema(spec.key_schema))

    def open_store(self, name: str) -> SortedStore:
        """Return a new store for evicted keys and windows; its library was checked by `require`."""
        return RocksStore(self._request.directory / f"cold-{name}", self._share)
