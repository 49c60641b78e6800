"""Broadcast state: the same map in every subtask, written for rows of a broadcast stream, read for rows of all keys.

The user's side of the state; `penstock.operators.process.broadcast_binding` binds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.core.errors import UsageError
from penstock.functions.state_handles import PLAIN, Declaration

if TYPE_CHECKING:
    from collections.abc import Iterator

K = TypeVar("K")
V = TypeVar("V")
#: Name of the operator state that holds all broadcast states of an operator.
BROADCAST = "broadcast"


class BroadcastEntries:
    """Entries of a `BroadcastState`, and whether they may be changed at present."""

    __slots__ = ("entries", "name", "writable")

    def __init__(self, name: str = "") -> None:
        """Make empty entries; a declaration gets its name when its class is created."""
        self.name = name
        self.entries: dict[Any, Any] = {}
        self.writable = False


class BroadcastState(Generic[K, V]):
    """A map that is the same in every subtask: `rules: ps.BroadcastState[str, Rule] = ps.broadcast_state()`."""

    __slots__ = ("_declaration", "_entries", "_held")

    def __init__(self, held: BroadcastEntries) -> None:
        """Made by `ps.broadcast_state` as a declaration, and by the operator for its subtask."""
        self._declaration: Declaration = PLAIN
        self._held = held
        self._entries: dict[K, V] = held.entries

    def __set_name__(self, owner: type, name: str) -> None:
        self._held.name = name

    def get(self, key: K) -> V | None:
        """Return a key's value; None when it has none."""
        return self._entries.get(key)

    def contains(self, key: K) -> bool:
        """Return whether a key has a value."""
        return key in self._entries

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all keys with their values; do not change the state during the iteration."""
        return iter(self._entries.items())

    def put(self, key: K, value: V) -> None:
        """Set a key's value; only in `process_broadcast`."""
        self._changing()[key] = value

    def remove(self, key: K) -> None:
        """Remove a key; only in `process_broadcast`."""
        self._changing().pop(key, None)

    def clear(self) -> None:
        """Remove all keys; only in `process_broadcast`."""
        self._changing().clear()

    def _changing(self) -> dict[K, V]:
        if not self._held.writable:
            msg = f"broadcast state {self._held.name!r} can only be changed in process_broadcast"
            raise UsageError(msg, hint="the rows of a key reach one subtask only, and the state must be equal in all")
        return self._entries


def broadcast_state() -> BroadcastState[Any, Any]:
    """Declare a broadcast state: `rules: ps.BroadcastState[str, Rule] = ps.broadcast_state()`.

    Types of keys and values are those of `ps.map_state`.
    """
    return BroadcastState(BroadcastEntries())
