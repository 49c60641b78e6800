"""`ChangeLog`: changes to timers, or to entries of lists and maps, since the last freeze, as columns.

Rows are appended after every batch and never changed. When the log has grown, superseded rows are removed, and also
deletions if no saved row exists that they could hide. Used by `state.tables.collection_table` and
`state.tables.timer_table` in the owner's thread. A frozen log may be encoded in any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.elements import MIN_TIMESTAMP
from penstock.state.log.segment_columns import DELETED, NAMESPACE, segment_table
from penstock.state.log.segments import last_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.log.segment_log import SegmentLog

_SLOT = "__slot"
#: The columns of timers, which have no entries.
_TIMES = (pa.field(NAMESPACE, pa.int64()),)


@dataclass(frozen=True, slots=True)
class FrozenChanges:
    """The changes between two freezes."""

    spec: RowSpec
    keys: KeyView
    parts: tuple[pa.RecordBatch, ...]
    #: The number of rows before the last firing of timers, and the time that it reached.
    fired: tuple[int, int]

    @property
    def memory_bytes(self) -> int:
        """The bytes of the changes."""
        return sum(part.nbytes for part in self.parts)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the effective changes as columns of a segment, sorted by hash; those of a key stay in order."""
        changes = reduced(self.parts, self.spec, self.fired)
        slots = _slots(changes)
        order = np.argsort(self.keys.hashes[slots], kind="stable")
        changes, slots = changes.take(pa.array(order)), slots[order]
        deleted = changes.column(DELETED).to_numpy(zero_copy_only=False)
        values, times = changes.columns[1:-1], None
        if not self.spec.entries:
            values, times = [], changes.column(NAMESPACE).to_numpy()
        yield segment_table(self.spec, self.keys, slots, values=values, deleted=deleted, namespaces=times)


class ChangeLog:
    """Changes in order: puts, removals, and clearings of slots."""

    def __init__(self, spec: RowSpec, saved: SegmentLog) -> None:
        """Start without changes; `saved` is the log with earlier freezes."""
        self._spec = spec
        self._saved = saved
        fields = [f.with_nullable(True).remove_metadata() for f in (*(spec.entries or _TIMES), *spec.stored)]
        self._schema = pa.schema([(_SLOT, pa.int32()), *fields, (DELETED, pa.bool_())])
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0
        #: The number of rows before the last firing of timers.
        self._fired_rows = 0
        #: The time that it reached.
        self.fired = MIN_TIMESTAMP
        #: Changes are reduced to the effective ones when they have grown by this many rows or bytes.
        self._many, self._large = saved.limits.many_changes, saved.limits.large_changes_bytes
        self._reduce_rows, self._reduce_bytes = self._many, self._large
        #: The bytes of the changes.
        self.nbytes = 0

    def clear(self, slots: I32) -> None:
        """Record that all entries of the slots were removed."""
        nulls = [pa.nulls(len(slots), field.type) for field in self._schema][1:-1]
        self.add(slots, nulls, np.ones(len(slots), np.bool_))

    def remove(self, slots: I32, entries: Sequence[pa.Array]) -> None:
        """Record that one entry of each of the slots was removed."""
        nulls = [pa.nulls(len(slots), field.type) for field in self._spec.stored]
        self.add(slots, [*entries, *nulls], np.ones(len(slots), np.bool_))

    def put(self, slots: I32, entries: Sequence[pa.Array], values: Sequence[pa.Array]) -> None:
        """Record a new value for one entry of each of the slots."""
        self.add(slots, [*entries, *values], np.zeros(len(slots), np.bool_))

    def add(self, slots: I32, columns: list[pa.Array], deleted: np.ndarray) -> None:
        """Append rows, in order: entry and value columns, and whether they are deletions."""
        if len(slots) == 0:
            return
        arrays = [pa.array(slots, pa.int32()), *columns, pa.array(deleted, pa.bool_())]
        part = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._parts.append(part)
        self._rows += len(slots)
        self.nbytes += part.nbytes
        if self._rows >= self._reduce_rows or self.nbytes >= self._reduce_bytes:
            self.reduce()

    def fire(self, until: int) -> None:
        """Record that all timers up to a time fired: changes to them so far have no effect."""
        self._fired_rows, self.fired = self._rows, until

    def freeze(self, keys: KeyView) -> FrozenChanges | None:
        """Take the changes out; None if there are none."""
        frozen = FrozenChanges(self._spec, keys, tuple(self._parts), (self._fired_rows, self.fired))
        self._keep([])
        self._fired_rows, self.fired = 0, MIN_TIMESTAMP
        return frozen if frozen.parts else None

    def deletions(self) -> Iterator[tuple[I32, I64]]:
        """Yield slots and times of the timers that were deleted."""
        for part in self._parts:
            deleted = part.column(DELETED).to_numpy(zero_copy_only=False)
            if deleted.any():
                yield _slots(part)[deleted], part.column(NAMESPACE).to_numpy()[deleted]

    def mark_used(self, used: np.ndarray) -> None:
        """Set the slots that have an unsaved change."""
        for part in self._parts:
            used[_slots(part)] = True

    def renumber(self, numbers: I32) -> None:
        """Renumber slots: slot s becomes `numbers[s]`."""
        self._keep([part.set_column(0, _SLOT, pa.array(numbers[_slots(part)])) for part in self._parts])

    def reduce(self) -> None:
        """Keep only the effective changes."""
        if not self._parts:
            return
        changes = reduced(self._parts, self._spec, (self._fired_rows, self.fired))
        if not self._saved.entries and not self._saved.gathering:
            changes = changes.filter(pc.invert(changes.column(DELETED)))
        self._keep([changes] if changes.num_rows else [])
        self._fired_rows = 0  # what remains from before the last firing is later than it
        self._reduce_rows, self._reduce_bytes = 2 * self._rows + self._many, 2 * self.nbytes + self._large

    def _keep(self, parts: list[pa.RecordBatch]) -> None:
        self._parts = parts
        self._rows, self.nbytes = sum(part.num_rows for part in parts), sum(part.nbytes for part in parts)
        if not parts:
            self._reduce_rows, self._reduce_bytes = self._many, self._large


def reduced(parts: Sequence[pa.RecordBatch], spec: RowSpec, fired: tuple[int, int]) -> pa.RecordBatch:
    """Return the effective changes, in order, as one batch; `fired` as in `FrozenChanges`."""
    every = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    rows, until = fired
    if rows:
        ahead = every.column(NAMESPACE).to_numpy() > until
        ahead[rows:] = True
        every = every.filter(pa.array(ahead))
    places = last_entries(_slots(every), every.columns[1 : 1 + max(1, len(spec.entries))])
    return every if len(places) == every.num_rows else every.take(pa.array(places))


def _slots(part: pa.RecordBatch) -> I32:
    slots: I32 = part.column(_SLOT).to_numpy()
    return slots
