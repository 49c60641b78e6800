"""Kernel of the row path: the distinct slots of a batch, numbered in order of first appearance.

Called by `penstock.state.tables.row_state`.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.compiler.compile import I32, I32_IN, I32_OUT, i8, kernel


@kernel(i8(I32_IN, I32_OUT, I32_OUT, I32_OUT))
def number_slots(slots: I32, numbers: I32, local: I32, distinct: I32) -> int:
    """Write each row's number to `local` and the slot of each number to `distinct`; return how many there are.

    `numbers` has an entry for every slot, all zero before and after.
    """
    count = 0
    for i in range(len(slots)):
        slot = slots[i]
        number = numbers[slot]
        if number == 0:
            distinct[count] = slot
            count += 1
            number = count
            numbers[slot] = number
        local[i] = number - 1
    for j in range(count):
        numbers[distinct[j]] = 0
    return count


def number_slots_plain(slots: I32) -> tuple[I32, I32]:
    """Return (local, distinct) as `number_slots` writes them, in plain numpy."""
    found, first, inverse = np.unique(slots, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank[inverse], found[order].astype(np.int32)
