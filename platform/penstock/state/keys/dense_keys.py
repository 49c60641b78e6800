"""Direct lookup for dense integer keys, such as numbered ids: an array of slots by key, before the hash table.

The array repeats entries of the hash table, so it may be rebuilt or dropped at any time. Kept by
`state.keys.key_index`; `kernels.keys.integer_keys.probe_dense` reads and fills it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.keys.key_columns import FixedColumn

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns

#: The span of keys may be this many times their number: then the array is no larger than the hash table.
_SPREAD = 4
_LEAST_KEYS = 64


class DenseKeys:
    """The slots of the keys from `first` upwards; empty while keys are few or far apart."""

    def __init__(self) -> None:
        """Start without keys."""
        self.first = 0
        #: Slot + 1 at index key - first, 0: unknown; the last element is for all keys outside the array.
        self.places: I32 = np.zeros(1, np.int32)
        self._due = _LEAST_KEYS

    @property
    def worth(self) -> bool:
        """Whether the array is in use."""
        return len(self.places) > 1

    def leave_out(self) -> bool:
        """Drop the array until the number of keys has doubled; return False if there was none."""
        had, self.places = self.worth, np.zeros(1, np.int32)
        return had

    def follow(self, keys: I64) -> None:
        """Rebuild or drop the array for `keys`, by slot, each time their number has doubled."""
        if len(keys) < self._due:
            return
        self._due = 2 * len(keys)
        self.first, high = int(keys.min()), int(keys.max())
        span = high - self.first + 1
        if span > _SPREAD * len(keys):
            self.leave_out()
            return
        # ids mostly grow: leave room until the number of keys doubles
        self.places = np.zeros(2 * span + 1, np.int32)
        self.places[keys - self.first] = np.arange(1, len(keys) + 1, dtype=np.int32)


def numbers_of_near_keys(keys: KeyColumns, most: int) -> tuple[I32, int] | None:
    """Return each row's key minus the lowest, and the span of keys; None if above `most` or no plain integers."""
    column = keys[0]
    if len(keys) > 1 or not isinstance(column, FixedColumn) or column.nullable:
        return None
    low = int(column.values.min())
    span = int(column.values.max()) - low + 1
    return None if span > most else ((column.values - low).astype(np.int32), span)
