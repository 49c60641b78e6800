"""Arrays by slot, which grow with the number of slots; used by tables and by the eviction policy."""

from __future__ import annotations

from typing import Any

import numpy as np


def with_room(array: np.ndarray, count: int, fill: Any = 0) -> np.ndarray:
    """Return an array with room for `count` slots: itself, or one at least twice as large; new slots have `fill`."""
    if count <= len(array):
        return array
    wider = np.full(max(count, 2 * len(array)), fill, array.dtype)
    wider[: len(array)] = array
    return wider
