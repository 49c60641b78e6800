"""Join rows that no checkpoint has yet: in memory or in files in order of arrival, and frozen at a barrier.

Kept by `state.tables.join_buffer` in the owner's thread; a frozen part may be encoded in any.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.state.keys.run_keys import RunKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.keys.key_index import KeyView
    from penstock.state.keys.run_keys import Keys
    from penstock.state.log.row_spec import TimedSpec
    from penstock.state.spill.join_spill import SpillArea, SpilledRows


@dataclass(frozen=True, slots=True)
class Added:
    """Rows in order of arrival, numbered from `first`; keys are slots of the index or numbers of the file."""

    slots: I32
    times: I64
    values: list[pa.Array]
    first: int
    #: The latest time of the rows.
    last: int
    spilled: SpilledRows | None = None

    @property
    def size(self) -> int:
        """The bytes in memory."""
        if self.spilled is not None:
            return 0
        return int(self.slots.nbytes + self.times.nbytes) + sum(int(value.nbytes) for value in self.values)

    def renumbered(self, numbers: I32) -> Added:
        """Renumber slots: slot s becomes `numbers[s]`."""
        if self.spilled is not None:
            return self
        return Added(numbers[self.slots], self.times, self.values, self.first, self.last)


@dataclass(frozen=True)
class FrozenTimedRows:
    """The rows added between two freezes."""

    spec: TimedSpec
    keys: KeyView
    pieces: tuple[Added, ...]
    cleaned: int

    @cached_property
    def memory_bytes(self) -> int:
        """The bytes of the rows."""
        return sum(piece.size for piece in self.pieces)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the rows that are not cleaned as columns of a segment, sorted by hash."""
        parts = []
        for piece in self.pieces:
            keys: Keys = self.keys if piece.spilled is None else piece.spilled.keys
            kept = np.flatnonzero(piece.times > self.cleaned)
            slots, chosen = piece.slots[kept], pa.array(kept)
            numbers = (keys.hashes[slots], piece.times[kept], piece.first + kept)
            parts.append((numbers, [*keys.gather(slots), *(value.take(chosen) for value in piece.values)]))
        hashes, times, rows = (np.concatenate(part) for part in zip(*(numbers for numbers, _ in parts), strict=True))
        order = np.argsort(hashes, kind="stable")
        chosen = pa.array(order)
        columns = [pa.concat_arrays(list(part)).take(chosen) for part in zip(*(c for _, c in parts), strict=True)]
        key_columns = len(self.keys.schema)
        arrays = [
            pa.array(hashes[order]),
            *columns[:key_columns],
            pa.array(times[order]),
            pa.array(rows[order]),
            *columns[key_columns:],
            pa.array(np.zeros(len(order), np.bool_)),
            pa.array(np.arange(len(order))),
        ]
        yield pa.Table.from_arrays(arrays, schema=self.spec.segment_schema)


def in_files(pieces: list[Added], keys: Keys, area: SpillArea, least: int) -> Iterator[Added]:
    """Write rows to files and yield them; groups of less than `least` bytes stay in memory."""
    for group in _in_a_row(pieces, area.limits.added_file_bytes):
        if group[0].spilled is not None or sum(piece.size for piece in group) < least:
            yield from group
            continue
        columns = zip(*(piece.values for piece in group), strict=True)
        own, numbers = RunKeys.of(keys, np.concatenate([piece.slots for piece in group]))
        times = np.concatenate([piece.times for piece in group])
        file = area.write(own, numbers, times, [pa.concat_arrays(list(parts)) for parts in columns])
        file.release()
        yield Added(file.numbers, file.times, file.values, group[0].first, max(piece.last for piece in group), file)


def _in_a_row(pieces: list[Added], file_bytes: int) -> Iterator[list[Added]]:
    """Yield groups of consecutive batches, of about the size of a file; those already in a file stay alone."""
    group: list[Added] = []
    size = 0
    for piece in pieces:
        follows = group and group[-1].first + len(group[-1].slots) == piece.first and group[-1].spilled is None
        if group and (not follows or piece.spilled is not None or size >= file_bytes):
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.size
    if group:
        yield group
