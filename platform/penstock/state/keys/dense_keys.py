"""Integer keys that lie close together, as numbered ids do: a table of their slots by key, in front of the hash table.

What is entered here is what the hash table says, so that it may be made anew or left out at any time. Kept by
`state.keys.key_index`; `kernels.keys.integer_keys.probe_dense` reads and fills it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.keys.key_columns import FixedColumn

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns

#: Keys may lie so many times farther apart than there are keys: the table is no larger than the hash table then.
_SPREAD = 4
_LEAST_KEYS = 64


class DenseKeys:
    """Slots of the keys from `first` on; without places while keys are few or far apart."""

    def __init__(self) -> None:
        """Know no key."""
        self.first = 0
        #: Slot + 1 by key - first, 0: not known; one more for all keys that have no place.
        self.places: I32 = np.zeros(1, np.int32)
        self._due = _LEAST_KEYS

    @property
    def worth(self) -> bool:
        """Whether there is a table."""
        return len(self.places) > 1

    def leave_out(self) -> bool:
        """Do without a table until there are twice as many keys; False: there was none."""
        had, self.places = self.worth, np.zeros(1, np.int32)
        return had

    def follow(self, keys: I64) -> None:
        """See whether a table is worth it for all keys there are, by slot: whenever they have become twice as many."""
        if len(keys) < self._due:
            return
        self._due = 2 * len(keys)
        self.first, high = int(keys.min()), int(keys.max())
        span = high - self.first + 1
        if span > _SPREAD * len(keys):
            self.leave_out()
            return
        # ids mostly grow: there is room until the keys are twice as many
        self.places = np.zeros(2 * span + 1, np.int32)
        self.places[keys - self.first] = np.arange(1, len(keys) + 1, dtype=np.int32)


def numbers_of_near_keys(keys: KeyColumns, most: int) -> tuple[I32, int] | None:
    """Return each row's key less the least of them, and what that is below: at most `most`; None: other keys."""
    column = keys[0]
    if len(keys) > 1 or not isinstance(column, FixedColumn) or column.nullable:
        return None
    low = int(column.values.min())
    span = int(column.values.max()) - low + 1
    return None if span > most else ((column.values - low).astype(np.int32), span)
