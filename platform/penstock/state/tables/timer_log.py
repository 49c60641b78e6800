"""Log of changes to the timers of a state since the last freeze: registrations and deletions, in order.

Rows are appended and never changed, so a frozen part may be encoded in any thread. Used by `state.tables.timer_table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.state.log.segment_rows import segment_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.row_spec import RowSpec


@dataclass(frozen=True, slots=True)
class Changes:
    """Registrations and deletions in order."""

    slots: I32
    times: I64
    deleted: np.ndarray

    @property
    def memory_bytes(self) -> int:
        """The bytes of the arrays."""
        return int(self.slots.nbytes + self.times.nbytes + self.deleted.nbytes)


def joined(parts: list[Changes]) -> Changes:
    """Return the concatenated changes."""
    if len(parts) == 1:
        return parts[0]
    return Changes(
        np.concatenate([np.empty(0, np.int32), *(p.slots for p in parts)]),
        np.concatenate([np.empty(0, np.int64), *(p.times for p in parts)]),
        np.concatenate([np.empty(0, np.bool_), *(p.deleted for p in parts)]),
    )


def reduced(parts: list[Changes], fired_rows: int, fired: int) -> Changes:
    """Return the last change of every timer, without changes before `fired_rows` of timers fired up to `fired`."""
    every = joined(parts)
    open_still = every.times > fired
    open_still[fired_rows:] = True
    places = np.flatnonzero(open_still)
    slots, times = every.slots[places], every.times[places]
    order = np.lexsort((times, slots))
    slots, times = slots[order], times[order]
    last = np.ones(len(order), np.bool_)
    last[:-1] = (slots[1:] != slots[:-1]) | (times[1:] != times[:-1])
    kept = np.sort(places[order[last]])
    return Changes(every.slots[kept], every.times[kept], every.deleted[kept])


@dataclass(frozen=True, slots=True)
class FrozenTimers:
    """The changes between two freezes."""

    spec: RowSpec
    keys: KeyView
    parts: tuple[Changes, ...]
    fired_rows: int
    fired: int

    @property
    def memory_bytes(self) -> int:
        """The bytes of the changes."""
        return sum(part.memory_bytes for part in self.parts)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the effective changes as columns of a segment, sorted by hash."""
        changes = reduced(list(self.parts), self.fired_rows, self.fired)
        order = np.argsort(self.keys.hashes[changes.slots], kind="stable")
        yield segment_table(
            self.spec,
            self.keys,
            changes.slots[order],
            namespaces=changes.times[order],
            values=(),
            deleted=changes.deleted[order],
        )
