"""Elements of lists and entries of maps as columns: the codec's protocol, and the log of changes.

Rows of the log are appended after every batch and never changed. When it has grown, superseded rows are removed, and
also deletions if no saved row exists that they could hide. The codecs are in `penstock.operators`; used by
`state.tables.collection_table` in the owner's thread. A frozen part of the log may be encoded in any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.log.segment_columns import DELETED, segment_table
from penstock.state.log.segments import last_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.kernels.compiler.compile import I32
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.log.segment_log import SegmentLog

_SLOT = "__slot"


class EntryCodec(Protocol):
    """Codec between columns and the objects that functions use, with their sizes in memory."""

    def decode_keys(self, columns: list[list[Any]]) -> list[Any]:
        """Return map keys (for a list: indices) from their columns."""

    def encode_keys(self, keys: Sequence[Any]) -> list[pa.Array]:
        """Return the entry columns of map keys or indices."""

    def decode_values(self, columns: list[list[Any]]) -> list[Any]:
        """Return values from their columns."""

    def encode_values(self, values: Sequence[Any]) -> list[pa.Array]:
        """Return the value columns of values."""

    @property
    def object_bytes(self) -> int:
        """The bytes of a key and its value as objects, without the text of strings."""

    def text_bytes(self, columns: Sequence[pa.Array]) -> int:
        """Return the bytes that the strings of entry and value columns take as objects; 0 for types without any."""

    def measured(self, container: Any) -> int:
        """Return the bytes that the strings of a list or dict take."""


@dataclass(frozen=True, slots=True)
class FrozenEntries:
    """The changes between two freezes."""

    spec: RowSpec
    keys: KeyView
    parts: tuple[pa.RecordBatch, ...]

    @property
    def memory_bytes(self) -> int:
        """The bytes of the changes."""
        return sum(part.nbytes for part in self.parts)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the effective changes as columns of a segment, sorted by hash; those of a key stay in order."""
        changes = reduced(self.parts, len(self.spec.entries))
        slots = _slots(changes)
        order = np.argsort(self.keys.hashes[slots], kind="stable")
        changes, slots = changes.take(pa.array(order)), slots[order]
        deleted = changes.column(DELETED).to_numpy(zero_copy_only=False)
        yield segment_table(self.spec, self.keys, slots, values=changes.columns[1:-1], deleted=deleted)


class EntryLog:
    """Changes in order: puts, removals, and clearings of slots."""

    def __init__(self, spec: RowSpec, saved: SegmentLog) -> None:
        """Start without changes; `saved` is the log with earlier freezes."""
        self._spec = spec
        self._saved = saved
        fields = [f.with_nullable(True).remove_metadata() for f in (*spec.entries, *spec.stored)]
        self._schema = pa.schema([(_SLOT, pa.int32()), *fields, (DELETED, pa.bool_())])
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0
        #: Changes are reduced to the effective ones when they have grown by this many rows or bytes.
        self._many, self._large = saved.limits.many_changes, saved.limits.large_changes_bytes
        self._reduce_rows, self._reduce_bytes = self._many, self._large
        #: The bytes of the changes.
        self.nbytes = 0

    def clear(self, slots: I32) -> None:
        """Record that all entries of the slots were removed."""
        nulls = [pa.nulls(len(slots), field.type) for field in self._schema][1:-1]
        self._append(slots, nulls, pa.repeat(pa.scalar(True), len(slots)))

    def remove(self, slots: I32, entries: Sequence[pa.Array]) -> None:
        """Record that one entry of each of the slots was removed."""
        nulls = [pa.nulls(len(slots), field.type) for field in self._spec.stored]
        self._append(slots, [*entries, *nulls], pa.repeat(pa.scalar(True), len(slots)))

    def put(self, slots: I32, entries: Sequence[pa.Array], values: Sequence[pa.Array]) -> None:
        """Record a new value for one entry of each of the slots."""
        self._append(slots, [*entries, *values], pa.repeat(pa.scalar(False), len(slots)))

    def freeze(self, keys: KeyView) -> FrozenEntries | None:
        """Take the changes out; None if there are none."""
        if not self._parts:
            return None
        frozen = FrozenEntries(self._spec, keys, tuple(self._parts))
        self._keep([])
        return frozen

    def mark_used(self, used: np.ndarray) -> None:
        """Set the slots that have an unsaved change."""
        for part in self._parts:
            used[_slots(part)] = True

    def renumber(self, numbers: I32) -> None:
        """Renumber slots: slot s becomes `numbers[s]`."""
        self._keep([part.set_column(0, _SLOT, pa.array(numbers[_slots(part)])) for part in self._parts])

    def _append(self, slots: I32, columns: list[pa.Array], flags: pa.Array) -> None:
        if len(slots) == 0:
            return
        part = pa.RecordBatch.from_arrays([pa.array(slots, pa.int32()), *columns, flags], schema=self._schema)
        self._parts.append(part)
        self._rows += len(slots)
        self.nbytes += part.nbytes
        if self._rows >= self._reduce_rows or self.nbytes >= self._reduce_bytes:
            self._reduce()

    def _reduce(self) -> None:
        changes = reduced(self._parts, len(self._spec.entries))
        if not self._saved.entries and not self._saved.gathering:
            changes = changes.filter(pc.invert(changes.column(DELETED)))
        self._keep([changes] if changes.num_rows else [])
        self._reduce_rows, self._reduce_bytes = 2 * self._rows + self._many, 2 * self.nbytes + self._large

    def _keep(self, parts: list[pa.RecordBatch]) -> None:
        self._parts = parts
        self._rows, self.nbytes = sum(part.num_rows for part in parts), sum(part.nbytes for part in parts)
        if not parts:
            self._reduce_rows, self._reduce_bytes = self._many, self._large


def reduced(parts: Sequence[pa.RecordBatch], entries: int) -> pa.RecordBatch:
    """Return the effective changes, in order, as one batch; `entries` columns after the slot identify the entry."""
    every = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    places = last_entries(_slots(every), every.columns[1 : 1 + entries])
    return every if len(places) == every.num_rows else every.take(pa.array(places))


def _slots(part: pa.RecordBatch) -> I32:
    slots: I32 = part.column(_SLOT).to_numpy()
    return slots
