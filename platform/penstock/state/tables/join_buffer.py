"""`JoinBuffer`: rows of a join side by key and time, kept until the watermark passes them.

They are in runs. Rows that no segment has are in the last runs, which become a segment at a barrier. Runs whose rows
are in segments are merged with each other only, and so are the others.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.keygroup import ALL_HASHES
from penstock.state.keys.key_index import KeyCounts
from penstock.state.log.segment_columns import KEY_HASH, NAMESPACE, ROW, keyed_batch, rows_of
from penstock.state.tiers import join_runs
from penstock.state.tiers.join_runs import Merge, Run, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import Keys, KeyView
    from penstock.state.log.frozen import FrozenSource, FrozenTable
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.tables.key_space import KeySpace
    from penstock.state.tiers.join_runs import RunFiles
    from penstock.state.tiers.remote_runs import RemoteRuns


@dataclass(frozen=True)
class FrozenJoinRows:
    """The rows added between two freezes, as runs in order of arrival; their slots are those of `keys`."""

    spec: RowSpec
    keys: KeyView
    runs: tuple[Run, ...]
    cleaned: int

    @cached_property
    def memory_bytes(self) -> int:
        """The bytes of the rows."""
        return sum(run.size for run in self.runs)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the rows that are not cleaned as columns of a segment, sorted by hash."""
        parts = []
        for run in self.runs:
            keys: Keys = self.keys if run.keys is None else run.keys
            kept = np.flatnonzero(run.times > self.cleaned)
            slots, chosen = run.slots[kept], pa.array(kept)
            numbers = (keys.hashes[slots], run.times[kept], run.first + kept)
            parts.append((numbers, [*keys.gather(slots), *(value.take(chosen) for value in run.values)]))
        hashes, times, rows = (np.concatenate(part) for part in zip(*(numbers for numbers, _ in parts), strict=True))
        order = np.argsort(hashes, kind="stable")
        chosen = pa.array(order)
        columns = [pa.concat_arrays(list(part)).take(chosen) for part in zip(*(c for _, c in parts), strict=True)]
        given = dict(zip((*self.keys.schema.names, *self.spec.value_names), columns, strict=True))
        own = {KEY_HASH: pa.array(hashes[order]), NAMESPACE: pa.array(times[order]), ROW: pa.array(rows[order])}
        yield rows_of(self.spec.segment_schema, given | own, len(order))


#: Largest merged run: the offsets of strings are 32 bits wide.
_MOST_BYTES = 1 << 29


class JoinBuffer:
    """Rows by slot and time; the slots are those of the key index that all states of an operator share."""

    def __init__(
        self,
        source: FrozenSource[RowSpec],
        state: KeySpace,
        run_files: RunFiles | None = None,
        remote: RemoteRuns | None = None,
    ) -> None:
        """Start without rows; `load` adds restored ones. Without `run_files` all rows stay in memory."""
        self.source = source
        self._small_rows = source.limits.small_run_rows
        self.spec = source.spec
        self._state = state
        self._run_files = run_files
        #: Runs in files that were read, so their pages may be mapped.
        self._read: list[Run] = []
        self._runs: list[Run] = []
        self._remote = None if remote is None else remote.follow(source)
        #: The number of the next row of a segment.
        self._next_row = 0 if self._remote is None else self._remote.below
        #: With the object store: (position in the log, first row number) of earlier freezes.
        self._frozen: list[tuple[int, int]] = []
        #: Rows up to this time are removed, some of them only from the results.
        self._cleaned = MIN_TIMESTAMP
        self._tombstone_at = MIN_TIMESTAMP
        self._merging: Merge | None = None
        #: Whether groups of files may have to be merged.
        self._unmerged = False

    # --- rows -------------------------------------------------------------------------------------------------------

    def add(self, slots: I32, times: I64, values: list[pa.Array]) -> None:
        """Add rows with times after the cleaned time; the table takes over the arrays."""
        if len(slots):
            self._put(Run.of(slots, times, values))

    def matching_runs(self, slots: I32, lows: I64, highs: I64) -> Iterator[tuple[Run, I64, I32]]:
        """Yield the runs that may have rows of slots, each slot with its span of time (inclusive).

        Each run comes with the positions of the slots that it may have, and with their slots in the run.
        """
        view = self._state.index.view()
        if self._remote is not None:
            self._remote.owner.fetcher.ensure(np.unique(view.hashes[slots]))
        distinct = places = None
        for run in self.runs(int(lows.min()), int(highs.max())):
            if run.keys is None:
                yield run, np.arange(len(slots)), slots
                continue
            if distinct is None or places is None:
                distinct, places = in_order(view, slots)
            own = run.keys.numbers_of(view, distinct)[places]
            rows = np.flatnonzero(own >= 0)
            if len(rows):
                yield run, rows, own[rows]

    def runs(self, low: int, high: int) -> tuple[Run, ...]:
        """Return the runs that may have rows in a span of time (inclusive)."""
        found = tuple(run for run in self._every if run.low <= high and run.high >= low)
        self._read += [run for run in found if run.keys is not None]
        return found

    @property
    def _every(self) -> Iterator[Run]:
        """The local runs, in order of arrival of their rows."""
        return iter(self._runs) if self._remote is None else itertools.chain(self._remote.runs, self._runs)

    def within(self, low: int, high: int, part: HashRange = ALL_HASHES) -> Run | None:
        """Return all rows of a span of time (inclusive) and a hash range as one run; None if there are none.

        Keys that are not in memory get slots.
        """
        parts, low = [], max(low, self._cleaned + 1)
        if self._remote is not None:
            self._remote.owner.fetch_span(low, high, part)
        for run in self.runs(low, high):
            first, stop = 0, len(run.times)
            if run.keys is not None:
                first, stop = np.searchsorted(run.slots, run.keys.between(part)).tolist()
            inside = (run.times[first:stop] >= low) & (run.times[first:stop] <= high)
            if run.keys is None and part != ALL_HASHES:
                hashes = self._state.index.hashes[run.slots]
                inside &= (hashes >= part.low) & (hashes <= part.high)
            if inside.any():
                parts.append((run, first + np.flatnonzero(inside)))
        if len(parts) == 1 and parts[0][0].keys is None:
            run, rows = parts[0]
            return run if len(rows) == len(run.times) else run.taken(rows)
        return join_runs.joined([run.rows(rows, self._state.upsert) for run, rows in parts]) if parts else None

    def file_bytes(self, low: int, high: int) -> int:
        """Return the approximate bytes in files of the rows of a span of time."""
        total = 0
        for run in self._every:
            both = min(high, run.high) - max(low, run.low)
            if run.keys is not None and both >= 0:
                total += run.length * (both + 1) // (run.high - run.low + 1)
        return total

    def look_up(self, keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
        """Return the first `most` rows of one key, in order of time; see `state.store.StateTable`."""
        view, slots, in_memory = self._state.find(keys, hashes)
        if self._remote is not None:
            self._remote.owner.fetcher.ensure(hashes)
        found = []
        for run in self.runs(MIN_TIMESTAMP, MAX_TIMESTAMP):
            own = slots if run.keys is None else run.keys.numbers_of(view, slots)
            mine = (run.slots == own[0]) & (run.times > self._cleaned)
            if (in_memory or run.keys is not None) and mine.any():
                found.append(run.chosen(mine))
        times = np.concatenate([np.empty(0, np.int64), *(run.times for run in found)])
        order = np.argsort(times, kind="stable")[:most]
        given = {NAMESPACE: pa.array(times[order]), ROW: pa.array(np.arange(len(order)))}
        for place, name in enumerate(self.spec.value_names):
            parts = pa.chunked_array([run.values[place] for run in found], self.spec.segment_schema.field(name).type)
            given[name] = parts.combine_chunks().take(pa.array(order))
        return self.spec.rows_of_key((view, slots), given, len(order))

    def counts(self) -> KeyCounts:
        """Return the number of rows of every key, in memory and in files; a key may occur more than once."""
        own = self._state.index.hashes
        hashes, counts = [own], [np.zeros(len(own), np.int64)]
        keys: list[Keys] = [self._state.index.view()]
        for run in self.runs(MIN_TIMESTAMP, MAX_TIMESTAMP):
            if run.keys is None:
                counts[0] += np.bincount(run.slots, minlength=len(own))
            else:
                keys.append(run.keys)
                hashes.append(run.keys.hashes)
                counts.append(np.bincount(run.slots, minlength=len(hashes[-1])))
        places = tuple(zip(keys, map(len, hashes), strict=True))
        return KeyCounts(np.concatenate(hashes), np.concatenate(counts), places)

    def clean(self, up_to: int) -> None:
        """Remove all rows up to a time (inclusive)."""
        if up_to <= self._cleaned:
            return
        self._cleaned = up_to
        if self._remote is not None:
            self._remote.clean(up_to)
        if any(up_to >= run.clean_at for run in self._runs):
            left = (run.without(up_to) if up_to >= run.clean_at else run for run in self._runs)
            self._runs = [run for run in left if run is not None]

    def hide_loaded(self, up_to: int) -> None:
        """Remove restored rows up to a time (inclusive); none with such a time may be loaded later."""
        self.clean(up_to)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def freeze(self) -> FrozenTable:
        """Freeze the rows."""
        log = self.source.log
        if self._cleaned > self._tombstone_at:
            self._tombstone_at = self._cleaned
            log.add_tombstone(log.hash_range, MIN_TIMESTAMP, self._cleaned)
        added = [run for run in self._runs if not run.saved and run.high > self._cleaned]
        for run in added:
            self._next_row += len(run.slots)
            run.stop = self._next_row
        if added:
            self._unmerged = True
            runs = tuple(dataclasses.replace(run) for run in added)  # slots may be renumbered
            segment = self.source.add(FrozenJoinRows(self.spec, self._state.index.view(), runs, self._cleaned))
            if self._remote is not None:
                self._frozen = [*self._undurable, (segment.position, runs[0].first)]
        return self.source.frozen()

    def load(self, table: pa.Table) -> None:
        """Add restored rows."""
        batch, keys, hashes = keyed_batch(table, self.spec.key_schema)
        slots = self._state.upsert(keys, hashes)
        self._next_row = max(self._next_row, int(batch.column(ROW).to_numpy().max()) + 1)
        values = [batch.column(name) for name in self.spec.value_names]
        run = Run.of(slots, batch.column(NAMESPACE).to_numpy(), values)
        run.stop = self._next_row
        self._put(run)
        self._state.settle_load()

    @property
    def hot_bytes(self) -> int:
        """The bytes of the rows in memory, without those in files."""
        return sum(run.size for run in self._runs)

    def close(self) -> None:
        """Drop all rows, so that no file is kept open."""
        self._merging = None
        self._runs, self._read = [], []

    # --- slots ------------------------------------------------------------------------------------------------------

    def mark_used(self, used: np.ndarray) -> None:
        """Set the slots that have a row in memory, saved or not."""
        self._runs = [kept for run in self._runs if (kept := run.without(self._cleaned)) is not None]
        for run in self._runs:
            if run.keys is None:
                used[run.slots] = True

    def renumber(self, numbers: I32) -> None:
        """Renumber slots: slot s becomes `numbers[s]`; the order is kept, so runs stay sorted."""
        for run in self._runs:
            if run.keys is None:
                run.slots = numbers[run.slots]

    # --- files ------------------------------------------------------------------------------------------------------

    def spill(self, least: int = 0) -> None:
        """Write the rows in memory to files, if they take at least `least` bytes."""
        run_files, keys = self._run_files, self._state.index.view()
        if run_files is None or not 0 < max(least, 1) <= self.hot_bytes:
            return
        runs, self._runs, group = self._runs, [], run_files.new_group()
        for run in runs:  # in order of arrival: of rows with equal key and time the last one stays last
            if run.keys is not None:
                self._runs.append(run)
            else:
                self._runs += join_runs.spilled_to_files(run, keys, run_files, self._cleaned, group)
        self._unmerged = True
        self._read += [run for run in self._runs if run.keys is not None]
        self.release()

    def release(self) -> None:
        """Unmap the pages of files that were read."""
        read, self._read = self._read, []
        for run in read:
            run.release()

    def merge_some(self, piece: int) -> None:
        """Continue merging groups of files, by one file of about `piece` bytes, if there are too many."""
        run_files = self._run_files
        if run_files is not None and self._merging is None and self._unmerged:
            saved, added = ([run for run in self._runs if run.saved is which] for which in (True, False))
            fan = run_files.limits.fan
            inputs = join_runs.to_merge(saved, fan) or join_runs.to_merge(added, fan)
            self._unmerged = bool(inputs)
            if inputs:
                files = join_runs.parts_of_time(inputs, piece, run_files.limits)
                self._merging = Merge(inputs, run_files, lambda: self._cleaned, files)
        if self._merging is not None and not self._merging.write_next():
            self._runs = self._merging.replace_inputs(self._runs, self._cleaned)
            self._merging = None

    def _put(self, run: Run) -> None:
        """Add a run in memory."""
        self._merge_last()  # their rows may have been saved since the last call
        self._runs.append(run)
        self._merge_last()

    def _merge_last(self) -> None:
        """Merge the last runs in memory while one is small, or not twice as large as the next."""
        while len(self._runs) > 1:
            last, new = self._runs[-2:]
            large = len(last.slots) > max(self._small_rows, 2 * len(new.slots)) or last.size + new.size > _MOST_BYTES
            if large or last.keys is not None or new.keys is not None or last.saved != new.saved:
                return
            kept = last.without(self._cleaned)
            if kept is not None:
                new = join_runs.joined([(run.slots, run.times, run.values) for run in (kept, new)])
                new.stop = self._runs[-1].stop
            self._runs[-2:] = [new]

    # --- rows that the log takes over -------------------------------------------------------------------------------

    def watch_fetched(self, on_fetched: Callable[[I64], None]) -> None:
        """Set a callback that receives the times of rows fetched from the object store."""
        if self._remote is not None:
            self._remote.on_fetched = on_fetched

    @property
    def own_bytes(self) -> int:
        """The bytes in files of rows that do not belong to the log."""
        return sum(run.length for run in self._runs)

    @property
    def _undurable(self) -> list[tuple[int, int]]:
        """Earlier freezes of which rows are not in a durable segment yet."""
        waiting = {entry.position for entry in self.source.log.entries if entry.segment is None}
        return [(position, first) for position, first in self._frozen if position in waiting]

    def forget_durable(self) -> bool:
        """Leave the oldest received rows to the log, as long as all of them are in durable segments; whether any."""
        least = min((first for _, first in self._undurable), default=self._next_row)
        runs, gone = self._runs, list(itertools.takewhile(lambda run: run.saved and run.stop <= least, self._runs))
        if not gone or self._remote is None:
            return False
        self._runs, self._merging = runs[len(gone) :], None
        self._remote.below = gone[-1].stop
        return True
