"""Handles of states with a time-to-live that reading renews; `state_ttl` says which ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.functions.keyed_states import MISSING, ListState, MapState
from penstock.functions.process_function import ValueState

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, ValuesView


class ReadValueState(ValueState[Any]):
    """A value whose time-to-live restarts when it is read."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the value, and write it back with the present time."""
        found = super().value()
        if found is not None and self._current.at not in self._changes.stale:
            self._marks[self._current.at] = 1
        return found


class ReadListState(ListState[Any]):
    """A list whose elements' time-to-live restarts when it is read."""

    __slots__ = ()

    def _here(self) -> list[Any] | None:
        found = super()._here()
        if found:
            self._changes.read.add(self._current.at)
        return found


class ReadMapState(MapState[Any, Any]):
    """A map whose entries' time-to-live restarts when they are read."""

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a map key and renew its entry."""
        found = super().get(key, MISSING)
        if found is MISSING:
            return default
        name = key if self._normal is None else self._normal(key)
        self._changes.read.setdefault(self._current.at, {})[name] = None
        return found

    def keys(self) -> KeysView[Any]:
        """Return the map keys and renew all entries."""
        self._read_all()
        return super().keys()

    def values(self) -> ValuesView[Any]:
        """Return the values and renew all entries."""
        self._read_all()
        return super().values()

    def items(self) -> ItemsView[Any, Any]:
        """Return the entries and renew all of them."""
        self._read_all()
        return super().items()

    def __iter__(self) -> Iterator[Any]:
        self._read_all()
        return super().__iter__()

    def _read_all(self) -> None:
        self._changes.read.setdefault(self._current.at, {}).update(dict.fromkeys(super().keys()))
