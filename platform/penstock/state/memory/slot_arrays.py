"""Arrays by slot that grow with the number of slots, and arrays in pieces; used by tables and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator


def with_room(array: np.ndarray, count: int, fill: Any = 0) -> np.ndarray:
    """Return an array with room for `count` slots: itself, or one at least twice as large; new slots have `fill`."""
    if count <= len(array):
        return array
    wider = np.full(max(count, 2 * len(array)), fill, array.dtype)
    wider[: len(array)] = array
    return wider


def renumbering(kept: np.ndarray, count: int) -> np.ndarray:
    """Return the new number of each of `count` slots, of which only `kept` stay, in this order; of others -1."""
    numbers = np.full(count, -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    return numbers


def pieces(array: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Yield an array in pieces of at most `most` elements, for work that takes several times their memory."""
    for first in range(0, len(array), most):
        yield array[first : first + most]
