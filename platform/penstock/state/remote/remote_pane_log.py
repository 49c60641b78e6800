"""What remote tables of panes read: the rows that a table's log means in some ranges of hashes.

Called by `state.remote.remote_panes` in the owner's thread; `base` by a background thread too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.core.evolution import conform
from penstock.core.keygroup import ALL_HASHES
from penstock.state.cells.hot_panes import HotPanes
from penstock.state.cells.pane_rows import table_to_rows
from penstock.state.log.segment_columns import NAMESPACE
from penstock.state.remote.remote_log import RemoteLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.segment_file import SegmentFile
    from penstock.state.log.ttl import Ttl
    from penstock.state.memory.limits import StateLimits
    from penstock.state.remote.remote_log import Reader


class UndurableRows(Protocol):
    """Changed rows of one table that are not in the object store yet (`changes.Changes`)."""

    def frozen_within(self, position: int, ranges: Sequence[HashRange]) -> Iterable[pa.Table]:
        """Return the rows frozen at a position in some ranges of hashes, as columns of a segment."""

    def evicted_within(self, ranges: Sequence[HashRange]) -> Iterable[pa.Table]:
        """Return the rows there that left memory since the last freeze, as columns of a segment."""


class RemoteSegments:
    """The rows of one table of panes in its log."""

    def __init__(self, source: FrozenSource, spec: PaneTableSpec, reader: Reader) -> None:
        """Open nothing."""
        self._source = source
        self._spec = spec
        self._log = RemoteLog(source, reader)

    @property
    def rows(self) -> int:
        """Rows of all durable segments, of which some may hide others."""
        return self._log.rows

    @property
    def limits(self) -> StateLimits:
        """The store's sizes."""
        return self._source.limits

    @property
    def ttl(self) -> Ttl | None:
        """When its rows expire, if they do."""
        return self._source.ttl

    def newest_access(self) -> I64:
        """See `RemoteLog.newest_access`."""
        return self._log.newest_access()

    def cuts(self) -> I64:
        """See `RemoteLog.cuts`."""
        return self._log.cuts()

    def panes(self) -> set[int]:
        """Return the starts of the panes that the segments may have rows of."""
        found: set[int] = set()
        for file in self._log.files():
            named = _read_namespaces(file) if file.namespaces is None else file.namespaces
            found.update(pane for pane in named if not self._log.closed(file.segment, pane))
        return found

    def within(self, ranges: Sequence[HashRange], changes: UndurableRows) -> HotPanes:
        """Return the rows in some ranges as of now, but for those in the table's own memory, which are newer.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        merged = HotPanes(self._spec, small=True)
        found = iter(self._log.tables(ranges))
        for entry in self._source.log.entries:
            saved = entry.segment is not None
            self._add(merged, next(found) if saved else changes.frozen_within(entry.position, ranges))
        self._add(merged, changes.evicted_within(ranges))
        return merged

    def base(self, ranges: Sequence[HashRange]) -> Callable[[], HotPanes]:
        """Return work for any thread: the rows in ranges in which nothing has changed since the restore."""
        read = self._log.base(ranges)

        def merge() -> HotPanes:
            merged = HotPanes(self._spec, small=True)
            self._add(merged, read())
            return merged

        return merge

    def _add(self, merged: HotPanes, tables: Iterable[pa.Table]) -> None:
        for table in tables:
            if table.num_rows:
                merged.put(*table_to_rows(self._spec, conform(table, self._spec.segment_schema), merged.heap))


def _read_namespaces(file: SegmentFile) -> set[int]:
    """Return the namespaces of a file that has too many to name them; the whole file is read."""
    return {n for table in file.tables(ALL_HASHES) for n in np.unique(table.column(NAMESPACE).to_numpy()).tolist()}
