"""`TimedRows`: any number of rows by key and time until the watermark has passed them: the buffer of a join's side.

Rows lie in runs sorted by (slot, time), each about twice as large as the next, so that a row is moved a few times in
its life and what is asked for is found by a binary search a run. A freeze keeps references to what was added since the
last one. What was cleaned is one tombstone. Where there is a spill area, runs that memory has no room for are cut by
time and become files, each of which goes as a whole when the watermark has passed it. Owned by one subtask thread; a
frozen part is encoded by any.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.kernels.columns import key_columns
from penstock.state.accumulators import KEY_HASH, NAMESPACE, ROW
from penstock.state.frozen import FrozenSegment, FrozenSource, FrozenTable
from penstock.state.key_counts import KeyCounts
from penstock.state.look_up import rows_of
from penstock.state.timed_run import CHUNK, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kernels.columns import KeyColumns
    from penstock.kernels.compile import I32, I64
    from penstock.state.key_index import KeyView
    from penstock.state.row_spec import RowSpec
    from penstock.state.row_state import RowState
    from penstock.state.spilled_rows import SpillArea, SpilledRows

#: Runs are not merged beyond this: the offsets of strings are 32 bits wide.
_MOST_BYTES = 1 << 29
#: A run that becomes files becomes about so many, by time; smaller ones than this stay in memory.
_CUTS, _LEAST_SPILLED = 8, 256 << 10
#: Rows waiting for a checkpoint become files of about this size.
_ADDED_FILE = 8 << 20


@dataclass(frozen=True)
class TimedSpec:
    """Key and value columns of a state whose rows are told apart by their time and a number."""

    rows: RowSpec
    #: What the schema says of the join; see `core.join_evolution`.
    join: tuple[tuple[bytes, bytes], ...] = ()

    @cached_property
    def segment_schema(self) -> pa.Schema:
        """Columns of this state's Parquet files: those of a value by key, and `__row` behind the namespace."""
        plain = self.rows.segment_schema
        number = pa.field(ROW, pa.int64(), True, {"id": "5", "PARQUET:field_id": "5"})
        schema = plain.insert(plain.get_field_index(NAMESPACE) + 1, number)
        return schema.with_metadata({**(plain.metadata or {}), **dict(self.join)}) if self.join else schema


@dataclass(frozen=True, slots=True)
class _Added:
    """Rows as they came; their numbers go up from `first`."""

    slots: I32
    times: I64
    values: list[pa.Array]
    first: int
    #: The newest time among them.
    last: int
    spilled: SpilledRows | None = None

    @property
    def size(self) -> int:
        if self.spilled is not None:
            return 0
        return int(self.slots.nbytes + self.times.nbytes) + sum(int(value.nbytes) for value in self.values)


@dataclass(frozen=True, slots=True)
class FrozenTimedRows:
    """The rows added between two freezes."""

    spec: TimedSpec
    keys: KeyView
    pieces: tuple[_Added, ...]
    cleaned: int

    @property
    def memory_bytes(self) -> int:
        """Bytes of the rows."""
        return sum(piece.size for piece in self.pieces)

    def table(self) -> pa.Table:
        """Return the rows that were not cleaned as columns of a segment, sorted by hash."""
        slots = np.concatenate([piece.slots for piece in self.pieces])
        times = np.concatenate([piece.times for piece in self.pieces])
        numbers = np.concatenate([piece.first + np.arange(len(piece.slots)) for piece in self.pieces])
        kept = np.flatnonzero(times > self.cleaned)
        kept = kept[np.argsort(self.keys.hashes[slots[kept]], kind="stable")]
        slots, chosen = slots[kept], pa.array(kept)
        values = zip(*(piece.values for piece in self.pieces), strict=True)
        columns = [
            pa.array(self.keys.hashes[slots]),
            *self.keys.gather(slots),
            pa.array(times[kept]),
            pa.array(numbers[kept]),
            *(pa.concat_arrays(list(parts)).take(chosen) for parts in values),
            pa.array(np.zeros(len(kept), np.bool_)),
            pa.array(np.arange(len(kept))),
        ]
        return pa.Table.from_arrays(columns, schema=self.spec.segment_schema)


class TimedRows:
    """Rows by slot of the keys that all states of an operator share, and by time."""

    def __init__(self, source: FrozenSource, spec: TimedSpec, state: RowState, area: SpillArea | None = None) -> None:
        """No rows; `load` brings in restored ones; without an `area` all of them stay in memory."""
        self.source = source
        self.spec = spec
        self._state = state
        self._area = area
        #: Files that were looked at, and so may be in memory.
        self._looked_at: list[SpilledRows] = []
        source.memory = self
        self._runs: list[Run] = []
        self._added: list[_Added] = []
        self._added_bytes = 0
        self._next_row = 0
        #: Rows up to this time are gone, some of them only to whoever asks.
        self._cleaned = MIN_TIMESTAMP
        self._tombstone_at = MIN_TIMESTAMP
        self._waiting: list[FrozenSegment] = []

    # --- rows -------------------------------------------------------------------------------------------------------

    def add(self, slots: I32, times: I64, values: list[pa.Array]) -> None:
        """Add rows, none of them of a time that was cleaned; the arrays become the table's."""
        if len(slots) == 0:
            return
        added = _Added(slots, times, values, self._next_row, int(times.max()))
        self._added.append(added)
        self._added_bytes += added.size
        self._next_row += len(slots)
        self._put(slots, times, values)

    def runs(self, low: int, high: int) -> tuple[Run, ...]:
        """Return the runs that may hold rows of a span of time (inclusive)."""
        found = tuple(run for run in self._runs if run.low <= high and run.high >= low)
        self._looked_at += [run.spilled for run in found if run.spilled is not None]
        return found

    def within(self, low: int, high: int) -> Run | None:
        """Return all rows of a span of time (inclusive) as one run; None when there are none."""
        parts = []
        for run in self.runs(low, high):
            inside = (run.times >= low) & (run.times <= high) & (run.times > self._cleaned)
            if inside.any():
                parts.append(run if inside.all() else run.chosen(inside))
        if len(parts) < 2:
            return parts[0] if parts else None
        return Run.of(
            np.concatenate([part.slots for part in parts]),
            np.concatenate([part.times for part in parts]),
            [pa.concat_arrays(list(columns)) for columns in zip(*(part.values for part in parts), strict=True)],
        )

    def look_up(self, keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
        """Return the first `most` rows of one key, in order of time; see `state.store.StateTable`."""
        slots = self._state.index.find(keys, hashes)
        found = []
        for run in self.runs(MIN_TIMESTAMP, MAX_TIMESTAMP) if len(slots) else ():
            mine = (run.slots == slots[0]) & (run.times > self._cleaned)
            if mine.any():
                found.append(run.chosen(mine))
        times = np.concatenate([np.empty(0, np.int64), *(run.times for run in found)])
        order = np.argsort(times, kind="stable")[:most]
        rows, schema = self.spec.rows, self.spec.segment_schema
        given = {NAMESPACE: pa.array(times[order]), ROW: pa.array(np.arange(len(order)))}
        for place, name in enumerate(rows.value_names):
            parts = pa.chunked_array([run.values[place] for run in found], schema.field(name).type)
            given[name] = parts.combine_chunks().take(pa.array(order))
        for name, key in zip(rows.key_schema.names, self._state.keys(slots), strict=True):
            given[name] = key.take(pa.array(np.zeros(len(order), np.int64)))
        return rows_of(schema, given, len(order))

    def counts(self) -> KeyCounts:
        """Return how many rows every key has."""
        hashes = self._state.index.hashes
        rows = np.zeros(len(hashes), np.int64)
        for run in self.runs(MIN_TIMESTAMP, MAX_TIMESTAMP):
            rows += np.bincount(run.slots, minlength=len(hashes))
        return KeyCounts(hashes, rows)

    def clean(self, up_to: int) -> None:
        """Forget all rows up to a time (inclusive)."""
        if up_to <= self._cleaned:
            return
        self._cleaned = up_to
        if any(up_to >= run.look_at for run in self._runs):
            left = (run.without(up_to) if up_to >= run.look_at else run for run in self._runs)
            self._runs = [run for run in left if run is not None]
        if any(piece.last <= up_to for piece in self._added):
            self._added = [piece for piece in self._added if piece.last > up_to]
            self._added_bytes = sum(piece.size for piece in self._added)

    @property
    def count(self) -> int:
        """How many rows there are, in memory and in files."""
        return sum(len(run.slots) for run in self._runs)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def freeze(self) -> FrozenTable:
        """Freeze the rows as they are."""
        log = self.source.log
        if self._cleaned > self._tombstone_at:
            self._tombstone_at = self._cleaned
            log.add_tombstone(log.hash_range, MIN_TIMESTAMP, self._cleaned)
        pieces = tuple(piece for piece in self._added if piece.last > self._cleaned)
        self._added, self._added_bytes = [], 0
        if pieces:
            position = log.next_position()
            log.append(position)
            rows = FrozenTimedRows(self.spec, self._state.index.view(), pieces, self._cleaned)
            self._waiting.append(FrozenSegment(self.source.spec, position, rows))
        return FrozenTable(self.source, log.view(), tuple(self._undurable()))

    def copy_frozen(self, limit: int, up_to: int) -> bool:
        """Nothing has to be copied: rows are never overwritten."""
        del limit, up_to
        return True

    def load(self, table: pa.Table) -> None:
        """Put restored rows in."""
        batch = table.combine_chunks().to_batches(max_chunksize=max(1, table.num_rows))[0]
        slots = self._state.upsert(
            key_columns(batch, tuple(self.spec.rows.key_schema.names)), batch.column(KEY_HASH).to_numpy()
        )
        self._next_row = max(self._next_row, int(batch.column(ROW).to_numpy().max()) + 1)
        values = [batch.column(name) for name in self.spec.rows.value_names]
        self._put(slots.copy(), batch.column(NAMESPACE).to_numpy(), values)
        self._state.settle_load()

    @property
    def memory_bytes(self) -> int:
        """Bytes of the rows in memory and of those waiting for an upload."""
        return self.hot_bytes + sum(s.memory_bytes for s in self._undurable())

    @property
    def hot_bytes(self) -> int:
        """Bytes of the rows in memory; those of files do not count."""
        return self._added_bytes + sum(run.size for run in self._runs)

    def close(self) -> None:
        """Forget what waits."""
        self._waiting = []

    def _undurable(self) -> list[FrozenSegment]:
        self._waiting = [s for s in self._waiting if not s.durable]
        return self._waiting

    # --- room -------------------------------------------------------------------------------------------------------

    def mark_used(self, used: np.ndarray) -> None:
        """Set the slots that have a row, or one that is yet to be saved."""
        self._runs = [kept for run in self._runs if (kept := run.without(self._cleaned)) is not None]
        for run in self._runs:
            used[run.slots] = True
        for piece in self._added:
            used[piece.slots] = True

    def renumber(self, numbers: I32) -> None:
        """The keys were numbered anew: slot s is now `numbers[s]`; order is kept, so runs stay sorted."""
        for run in self._runs:
            if run.spilled is None:
                run.slots = numbers[run.slots]
        files = [run.spilled for run in self._runs] + [piece.spilled for piece in self._added]
        for file in filter(None, files):
            for first in range(0, len(file.slots), CHUNK):
                file.slots[first : first + CHUNK] = numbers[file.slots[first : first + CHUNK]]
            file.release()
        self._added = [
            p if p.spilled is not None else _Added(numbers[p.slots], p.times, p.values, p.first, p.last)
            for p in self._added
        ]

    # --- files ------------------------------------------------------------------------------------------------------

    def spill(self) -> None:
        """Write what is in memory to files, but for small runs."""
        area = self._area
        if area is None:
            return
        # in the order they came: of rows of one key and time the last one stays the last
        self._runs = [piece for run in self._runs for piece in self._cut(run, area)]
        self._added = [piece for group in _in_a_row(self._added) for piece in _written(group, area)]
        self._added_bytes = sum(piece.size for piece in self._added)
        self.release()

    def release(self) -> None:
        """Give back the memory of files that were looked at."""
        looked_at, self._looked_at = self._looked_at, []
        for file in looked_at:
            file.release()

    def _cut(self, run: Run, area: SpillArea) -> Iterator[Run]:
        if run.spilled is not None or run.size < _LEAST_SPILLED:
            yield run
            return
        width = (run.high - run.low) // _CUTS + 1
        for low in range(run.low, run.high + 1, width):
            inside = (run.times >= max(low, self._cleaned + 1)) & (run.times < low + width)
            if inside.any():
                part = run.chosen(inside)
                file = area.write(part.slots, part.times, part.values)
                self._looked_at.append(file)
                yield Run(file.slots, file.times, file.values, 0, part.low, part.high, file)

    def _put(self, slots: I32, times: I64, values: list[pa.Array]) -> None:
        """Make a run of rows; runs that are not twice as large as the next are merged with it."""
        new = Run.of(slots, times, values)
        while self._runs and len(self._runs[-1].slots) <= 2 * len(new.slots):
            if self._runs[-1].spilled is not None or self._runs[-1].size + new.size > _MOST_BYTES:
                break
            last = self._runs.pop().without(self._cleaned)
            if last is not None:
                new = Run.of(
                    np.concatenate([last.slots, new.slots]),
                    np.concatenate([last.times, new.times]),
                    [pa.concat_arrays([a, b]) for a, b in zip(last.values, new.values, strict=True)],
                )
        self._runs.append(new)


def _in_a_row(pieces: list[_Added]) -> Iterator[list[_Added]]:
    """Yield pieces whose numbers follow one another, about as many as one file takes; such as have one are alone."""
    group: list[_Added] = []
    size = 0
    for piece in pieces:
        follows = group and group[-1].first + len(group[-1].slots) == piece.first and group[-1].spilled is None
        if group and (not follows or piece.spilled is not None or size >= _ADDED_FILE):
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.size
    if group:
        yield group


def _written(group: list[_Added], area: SpillArea) -> Iterator[_Added]:
    if group[0].spilled is not None or sum(piece.size for piece in group) < _LEAST_SPILLED:
        yield from group
        return
    columns = zip(*(piece.values for piece in group), strict=True)
    file = area.write(
        np.concatenate([piece.slots for piece in group]),
        np.concatenate([piece.times for piece in group]),
        [pa.concat_arrays(list(parts)) for parts in columns],
    )
    file.release()
    yield _Added(file.slots, file.times, file.values, group[0].first, max(piece.last for piece in group), file)
