"""Remote timers: kept in the object store until shortly before they are due.

Timers are requested by time, not by key, so the local part is a span of time. All timers before `reached` are in memory
or in the local cold store, and later ones are in the log. Footers list the first and last time of a row group. When the
requested time reaches remote timers, the row groups with the next timers are read, of all keys. Segments of timers have
a span of time per row group, so that these are few. Changes since a segment was written are later in the log, or in
memory. Called by `state.tables.timer_table` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.keygroup import HashRange
from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import NAMESPACE, keyed_batch
from penstock.state.remote.remote_log import RemoteLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.log.segment_file import RowGroup, SegmentFile
    from penstock.state.remote.remote_log import Reader
    from penstock.state.spill.cold_timers import ColdTimers


@dataclass(frozen=True, slots=True)
class TimerSpan:
    """Timers that are read together: first and last time, and an upper bound of their number.

    They are in a row group, or in a segment that waits for its upload.
    """

    low: int
    high: int
    rows: int
    position: int
    file: SegmentFile | None = None
    group: RowGroup | None = None


def next_span(spans: Sequence[TimerSpan], begin: int, rows: int) -> int:
    """Return the time up to which to read: about `rows` timers, and at least half of the spans completely.

    `spans` are those with timers at `begin` or later, at least one.
    """
    ordered = sorted(spans, key=lambda span: span.low)
    taken = 0
    for number, span in enumerate(ordered):
        if taken >= rows and span.low > begin:
            highs = sorted(s.high for s in ordered[:number])
            return max(span.low - 1, highs[number // 2])
        taken += span.rows
    return MAX_TIMESTAMP


class RemoteTimers:
    """The timers of one kind of time that are not local yet."""

    def __init__(self, source: FrozenSource[RowSpec], cold: ColdTimers, reader: Reader) -> None:
        """Prepare; the footers of the restored segments are read on demand."""
        self._source = source
        self._cold = cold
        self._log = RemoteLog(source, reader)
        #: All timers before this time are local; None: all timers are.
        self._reached: int | None = MIN_TIMESTAMP if source.log.rows else None
        #: Lower bound of the times of remote timers; None: not known yet.
        self._least: int | None = None

    @property
    def rows(self) -> int:
        """The number of remote timers, at most."""
        return 0 if self._reached is None else self._log.rows

    @property
    def least(self) -> int | None:
        """A lower bound of the times of remote timers; None: all timers are local; raises as `RemoteLog.files`."""
        if self._reached is None:
            return None
        if self._least is None:
            spans = self._spans()
            if not spans:
                self._reached = None
                return None
            self._least = max(self._reached, min(span.low for span in spans))
        return self._least

    def local_until(self, until: int) -> int:
        """Return the time, at most `until`, up to which all timers are local; the caller takes those out."""
        least = self.least
        if least is None or self._reached is None:
            return until
        here = min(until, least - 1)
        # timers that fire now are in the log as well and must not be read again
        self._reached = max(self._reached, here + 1)
        return here

    def local(self, times: I64) -> np.ndarray:
        """Return a mask of the evicted timers that have to stay local; the others are in the log."""
        if self._reached is None:
            return np.ones(len(times), np.bool_)
        found: np.ndarray = times < self._reached
        if not found.all():
            first = int(times[~found].min())
            self._least = None if self._least is None else min(self._least, first)
        return found

    def fetch_next(self) -> None:
        """Fetch the next timers, also those deleted in memory since the last freeze; raises as `RemoteLog.files`."""
        spans, begin = self._spans(), self.least
        if begin is None:
            return
        until = next_span(spans, begin, self._source.limits.fetched_rows)
        chosen = [span for span in spans if span.low <= until]
        index, slots, times = self._merged(chosen, begin, until)
        self._cold.put(index.view(), slots, times)
        self._reached = None if all(span.high <= until for span in spans) else until + 1
        self._least = None

    def look_up(self, key_hash: int) -> tuple[KeyIndex, I32, I64]:
        """Return the remote timers of the keys with a hash: an index of keys, and the slot and time of each."""
        ranges = [HashRange(key_hash, key_hash)]
        tables = self._log.current(ranges)
        return self._rows_of(tables, MIN_TIMESTAMP if self._reached is None else self._reached, MAX_TIMESTAMP)

    # --- the log ----------------------------------------------------------------------------------------------------

    def _spans(self) -> list[TimerSpan]:
        """Return the spans of remote timers."""
        begin = MIN_TIMESTAMP if self._reached is None else self._reached
        self._source.flush(spilled=True)
        found: list[TimerSpan] = []
        for file in self._log.files():
            if file.segment.namespace_max < begin:
                continue
            for group, low, high in zip(file.groups, *file.spans[2:4].tolist(), strict=True):
                found.append(TimerSpan(low, high, group.rows, file.segment.position, file, group))
        found += [TimerSpan(low, high, rows, position) for position, low, high, rows in self._source.spans()]
        return [span for span in found if span.high >= begin and span.low <= span.high]

    def _merged(self, chosen: Sequence[TimerSpan], begin: int, until: int) -> tuple[KeyIndex, I32, I64]:
        """Return the timers between two times that the log has and that have not fired."""
        groups = [[s.group for s in chosen if s.file is file and s.group is not None] for file in self._log.files()]
        waiting = {span.position for span in chosen if span.file is None}
        tables = self._log.current([self._source.hash_range], groups, waiting)
        return self._rows_of(tables, begin, until)

    def _rows_of(self, tables: Iterable[pa.Table], begin: int, until: int) -> tuple[KeyIndex, I32, I64]:
        rows = self._log.merged(_between(table, begin, until) for table in tables)
        batch, keys, hashes = keyed_batch(rows, self._source.spec.key_schema)
        index = KeyIndex(self._source.spec.key_schema)
        return index, index.upsert(keys, hashes).copy(), batch.column(NAMESPACE).to_numpy()


def _between(table: pa.Table, begin: int, until: int) -> pa.Table:
    times = table.column(NAMESPACE).to_numpy()
    wanted = (times >= begin) & (times <= until)
    return table if wanted.all() else table.filter(pa.array(wanted))
