"""Lists and maps by key, as used by authors of process functions: `ListState` and `MapState`.

`penstock.operators.process.keyed_process` passes a handle the batch's keys before a batch, and the index of the row's
key before a row. A handle changes the list or dict of the table in place and records the changes; only these are
written back after the batch. The module does not depend on Arrow or on slots.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from penstock.functions.state_handles import PLAIN, Cells, Current, Declaration

if TYPE_CHECKING:
    from penstock.functions.migration import MigrateValues
    from penstock.functions.state_ttl import TimeToLive

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
_NOTHING: dict[Any, Any] = {}
#: Default value that no map contains.
MISSING: Any = object()


class Elements(Sequence[T]):
    """The elements of a list state, read in place."""

    __slots__ = ("_list",)

    def __init__(self, elements: list[T]) -> None:
        """Made by `ListState.get`."""
        self._list = elements

    def __len__(self) -> int:
        return len(self._list)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._list[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._list)

    def __contains__(self, value: object) -> bool:
        return value in self._list

    def __eq__(self, other: object) -> bool:
        return self._list == (other._list if isinstance(other, Elements) else other)

    __hash__ = None  # type: ignore[assignment] # mutable

    def __repr__(self) -> str:
        return repr(self._list)


class ListChanges:
    """Changes of a `ListState` for the keys of a batch; the engine writes them back."""

    __slots__ = ("cleared", "read", "starts")

    def __init__(self) -> None:
        """Start without changes."""
        #: With a time-to-live: indices of keys that were read.
        self.read: set[int] = set()
        #: Index of the key -> number of elements already saved: later elements are new.
        self.starts: dict[int, int] = {}
        #: Indices of keys whose saved elements were all removed.
        self.cleared: set[int] = set()


class ListState(Generic[T]):
    """A list for every key; declared as a class attribute: `last: ps.ListState[int] = ps.list_state()`."""

    __slots__ = ("_cells", "_changes", "_current", "_declaration", "_lists", "_starts")

    def __init__(self, cells: Cells, changes: ListChanges, declaration: Declaration = PLAIN) -> None:
        """Made by `ps.list_state` as a declaration, and by the operator for its keys."""
        self._cells = cells
        self._changes = changes
        self._declaration = declaration
        # Used by each call, in one step.
        self._current = cells.current
        self._lists = cells.items
        self._starts = changes.starts

    def append(self, value: T) -> None:
        """Add an element at the end."""
        self._own().append(value)

    def extend(self, values: Iterable[T]) -> None:
        """Add elements at the end."""
        self._own().extend(values)

    def get(self) -> Elements[T]:
        """Return the current key's elements, in order; not a copy, and valid only for this row."""
        return Elements(self._here() or [])

    def set(self, values: Iterable[T]) -> None:
        """Replace all elements."""
        fresh = list(values)
        self.clear()
        if fresh:
            self._own().extend(fresh)

    def clear(self) -> None:
        """Remove all elements."""
        if self._found():
            at = self._current.at
            self._lists[at] = None
            self._starts[at] = 0
            self._changes.cleared.add(at)

    def __len__(self) -> int:
        return len(self._here() or ())

    def __iter__(self) -> Iterator[T]:
        return iter(self._here() or ())

    def __contains__(self, value: object) -> bool:
        return value in (self._here() or ())

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        found: T | list[T] = (self._here() or [])[index]
        return found

    def _here(self) -> list[T] | None:
        """Return the elements of the current key for reading."""
        return self._found()

    def _found(self) -> list[T] | None:
        try:
            found: list[T] | None = self._lists[self._current.at]
        except IndexError:  # the first use in this batch
            self._cells.fill()
            found = self._lists[self._current.at]
        return found

    def _own(self) -> list[T]:
        """Return the list of the current key for appending."""
        elements, at = self._found(), self._current.at
        if elements is None:
            elements = self._lists[at] = []
        if at not in self._starts:
            self._starts[at] = len(elements)
        return elements


class MapChanges:
    """Changes of a `MapState` for the keys of a batch; the engine writes them back."""

    __slots__ = ("changed", "cleared", "read")

    def __init__(self) -> None:
        """Start without changes."""
        #: With a time-to-live: index of the key -> map keys that were read.
        self.read: dict[int, dict[Any, None]] = {}
        #: Index of the key -> map keys that were put or removed.
        self.changed: dict[int, dict[Any, None]] = {}
        #: Indices of keys whose saved entries were all removed.
        self.cleared: set[int] = set()


class MapState(Generic[K, V]):
    """A map for every key; declared as a class attribute: `seen: ps.MapState[str, int] = ps.map_state()`.

    Iteration follows the rules of a dict. Its order is that of insertion until a restart or a fetch of remote
    state, which may change it.
    """

    __slots__ = ("_cells", "_changed", "_changes", "_current", "_declaration", "_maps", "_normal")

    def __init__(
        self,
        cells: Cells,
        changes: MapChanges,
        normal: Callable[[Any], Any] | None = None,
        declaration: Declaration = PLAIN,
    ) -> None:
        """Made by `ps.map_state` as a declaration, and by the operator for its keys.

        `normal` is for map keys that are equal as columns, but not as objects.
        """
        self._cells = cells
        self._changes = changes
        self._normal = normal
        self._declaration = declaration
        # Used by each call, in one step.
        self._current = cells.current
        self._maps = cells.items
        self._changed = changes.changed

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: T) -> V | T: ...

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a map key, or `default` if there is none."""
        try:
            entries = self._maps[self._current.at]
        except IndexError:  # the first use in this batch
            entries = self._here()
        if entries is None:
            return default
        return entries.get(key if self._normal is None else self._normal(key), default)

    def put(self, key: K, value: V) -> None:
        """Set the value of a map key."""
        at = self._current.at
        try:
            entries = self._maps[at]
        except IndexError:  # the first use in this batch
            entries = self._here()
        if entries is None:
            entries = self._maps[at] = {}
        if self._normal is not None:
            key = self._normal(key)
        entries[key] = value
        changed = self._changed.get(at)
        if changed is None:
            self._changed[at] = {key: None}
        else:
            changed[key] = None

    def update(self, entries: Mapping[K, V]) -> None:
        """Set the values of several map keys."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: K) -> None:
        """Remove a map key, if it exists."""
        self.pop(key, None)

    @overload
    def pop(self, key: K) -> V: ...

    @overload
    def pop(self, key: K, default: T) -> V | T: ...

    def pop(self, key: K, default: Any = MISSING) -> Any:
        """Remove a map key and return its value.

        Raises:
            KeyError: it is not there and no default is given.
        """
        if self._normal is not None:
            key = self._normal(key)
        entries = self._here()
        if entries is None or key not in entries:
            if default is MISSING:
                raise KeyError(key)
            return default
        self._changed.setdefault(self._current.at, {})[key] = None
        return entries.pop(key)

    def clear(self) -> None:
        """Remove all entries."""
        if self._here():
            at = self._current.at
            self._maps[at] = None
            self._changed[at] = {}
            self._changes.cleared.add(at)

    def keys(self) -> KeysView[K]:
        """Return the current key's map keys."""
        return (self._here() or _NOTHING).keys()

    def values(self) -> ValuesView[V]:
        """Return the current key's values."""
        return (self._here() or _NOTHING).values()

    def items(self) -> ItemsView[K, V]:
        """Return the current key's entries."""
        return (self._here() or _NOTHING).items()

    def __getitem__(self, key: K) -> V:
        found = self.get(key, MISSING)
        if found is MISSING:
            raise KeyError(key)
        value: V = found
        return value

    __setitem__ = put

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    def __contains__(self, key: object) -> bool:
        return self.get(key, MISSING) is not MISSING  # type: ignore[arg-type] # as for any mapping

    def __iter__(self) -> Iterator[K]:
        return iter(self._here() or _NOTHING)

    def __len__(self) -> int:
        return len(self._here() or _NOTHING)

    def _here(self) -> dict[K, V] | None:
        try:
            found: dict[K, V] | None = self._maps[self._current.at]
        except IndexError:  # the first use in this batch
            self._cells.fill()
            found = self._maps[self._current.at]
        return found


def list_state(*, ttl: TimeToLive = None, migrate: MigrateValues | None = None) -> ListState[Any]:
    """Declare a list by key: `last: ps.ListState[int] = ps.list_state()`.

    Elements have any type that a value can have, but must be immutable: of dataclasses, only frozen ones. With
    `ttl` (`"1h"`, or a `ps.StateTtlConfig`) every element expires this long after it was added. A function converts
    elements of an older version: `migrate=ps.migrate(function, was=Old)`.
    """
    return ListState(Cells(Current()), ListChanges(), Declaration(ttl=ttl, migrate=migrate))


def map_state(*, ttl: TimeToLive = None, migrate: MigrateValues | None = None) -> MapState[Any, Any]:
    """Declare a map by key: `seen: ps.MapState[str, int] = ps.map_state()`.

    Map keys have any type that a key can have, or are a tuple or NamedTuple of these, and never None; values are
    like the elements of a list. With `ttl` (`"1h"`, or a `ps.StateTtlConfig`) every entry expires this long after it
    was put. `migrate` converts the values, as for a list.
    """
    return MapState(Cells(Current()), MapChanges(), declaration=Declaration(ttl=ttl, migrate=migrate))
