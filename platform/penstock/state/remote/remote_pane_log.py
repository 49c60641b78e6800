"""Reads of a remote pane table from its log: the live rows in some hash ranges.

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
    """Changed rows of one table that are not in the object store yet (`pane_changes.Changes`)."""

    def frozen_within(self, position: int, ranges: Sequence[HashRange]) -> Iterable[pa.Table]:
        """Return the rows frozen at a position in some hash ranges, as columns of a segment."""

    def evicted_within(self, ranges: Sequence[HashRange]) -> Iterable[pa.Table]:
        """Return the rows in some hash ranges that were evicted since the last freeze, as columns of a segment."""


class RemoteSegments:
    """The rows of one pane table in its log."""

    def __init__(self, source: FrozenSource, spec: PaneTableSpec, reader: Reader) -> None:
        """Prepare without opening segments."""
        self._source = source
        self._spec = spec
        self._log = RemoteLog(source, reader)

    @property
    def rows(self) -> int:
        """The rows of all durable segments, including hidden ones."""
        return self._log.rows

    @property
    def limits(self) -> StateLimits:
        """The size limits of the store."""
        return self._source.limits

    @property
    def ttl(self) -> Ttl | None:
        """The time-to-live of its rows, if they have one."""
        return self._source.ttl

    def newest_access(self) -> I64:
        """See `RemoteLog.newest_access`."""
        return self._log.newest_access()

    def cuts(self) -> I64:
        """See `RemoteLog.cuts`."""
        return self._log.cuts()

    def panes(self) -> set[int]:
        """Return the starts of the panes that may have rows in the segments."""
        found: set[int] = set()
        for file in self._log.files():
            named = _read_namespaces(file) if file.namespaces is None else file.namespaces
            found.update(pane for pane in named if not self._log.closed(file.segment, pane))
        return found

    def within(self, ranges: Sequence[HashRange], changes: UndurableRows) -> HotPanes:
        """Return the current rows in some hash ranges, except those in the table's memory, which are newer.

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
        """Return a function for any thread that reads rows in ranges without changes since the restore."""
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
    """Return the namespaces of a file whose footer does not list them; the whole file is read."""
    return {n for table in file.tables(ALL_HASHES) for n in np.unique(table.column(NAMESPACE).to_numpy()).tolist()}
