"""State of a function without keys: lists of elements by subtask, as declared by users.

A rescale distributes the elements of an `OperatorListState` round robin. Of a `UnionState`, every subtask receives the
elements of all subtasks. Declared on a `ps.ProcessFunction`; bound by
`penstock.operators.process.plain_process`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.functions.state_handles import PLAIN, Declaration, renames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


class OperatorElements:
    """Elements of an `OperatorListState` or a `UnionState`."""

    __slots__ = ("elements", "looked_at", "restored")

    def __init__(self) -> None:
        """Start empty."""
        self.elements: list[Any] = []
        #: Of a union: the restored elements for `open`, and whether the function has read them.
        self.restored: tuple[Any, ...] = ()
        self.looked_at = True


class OperatorListState(Generic[T]):
    """The elements of this subtask, in order; a restart with another parallelism assigns each to one subtask."""

    __slots__ = ("_declaration", "_held")

    def __init__(self, held: OperatorElements, declaration: Declaration = PLAIN) -> None:
        """Made as a declaration, and by the operator for its subtask."""
        self._held = held
        self._declaration = declaration

    def get(self) -> list[T]:
        """Return a new list of this subtask's elements."""
        return list(self._held.elements)

    def add(self, element: T) -> None:
        """Append an element."""
        self._held.elements.append(element)

    def extend(self, elements: Iterable[T]) -> None:
        """Append elements."""
        self._held.elements.extend(elements)

    def set(self, elements: Iterable[T]) -> None:
        """Replace all elements."""
        self._held.elements = list(elements)

    def clear(self) -> None:
        """Remove all elements."""
        self._held.elements = []

    def __len__(self) -> int:
        """Return the number of this subtask's elements."""
        return len(self._held.elements)

    def __iter__(self) -> Iterator[T]:
        """Iterate over this subtask's elements; do not change the state during the iteration."""
        return iter(self._held.elements)


class UnionState(OperatorListState[T]):
    """An `OperatorListState` for which a restart gives every subtask the saved elements of all subtasks, in `restored`.

    The state then starts empty: `open` adds the elements of this subtask. If `open` does not read `restored`, the job
    fails, since the next checkpoint would lose all elements.
    """

    __slots__ = ()

    @property
    def restored(self) -> tuple[T, ...]:
        """The saved elements of all subtasks, in order of subtasks; empty at a first start."""
        self._held.looked_at = True
        return self._held.restored


def operator_list_state(*, renamed: dict[str, str] | None = None) -> OperatorListState[Any]:
    """Declare a list by subtask: `open_files: ps.OperatorListState[str] = ps.operator_list_state()`.

    The types of elements, and the changes of their fields between versions of a job, are as for `ps.value_state`.
    """
    return OperatorListState(OperatorElements(), Declaration(renamed=renames(renamed)))


def union_state(*, renamed: dict[str, str] | None = None) -> UnionState[Any]:
    """Declare a union: `offsets: ps.UnionState[tuple[str, int]] = ps.union_state()`; types as of a list by subtask."""
    return UnionState(OperatorElements(), Declaration(renamed=renames(renamed)))
