"""State of a function without keys: lists of elements by subtask, as users declare them.

A rescale deals the elements of an `OperatorListState` out round robin. Of a `UnionState`, every subtask receives all
elements of all. Declared on a `ps.ProcessFunction`; bound by `penstock.operators.process.operator_state_binding`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.functions.state_handles import PLAIN, Declaration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


class OperatorElements:
    """Elements of an `OperatorListState` or a `UnionState`."""

    __slots__ = ("elements", "looked_at", "restored")

    def __init__(self) -> None:
        """Nothing yet."""
        self.elements: list[Any] = []
        #: Of a union: what the function has to look at in `open`, and whether it has.
        self.restored: tuple[Any, ...] = ()
        self.looked_at = True


class OperatorListState(Generic[T]):
    """Elements of this subtask, in order; a restart with another parallelism gives each to one subtask."""

    __slots__ = ("_declaration", "_held")

    def __init__(self, held: OperatorElements, declaration: Declaration = PLAIN) -> None:
        """Made as a declaration, and by the operator for its subtask."""
        self._held = held
        self._declaration = declaration

    def get(self) -> list[T]:
        """Return this subtask's elements, as a list of their own."""
        return list(self._held.elements)

    def add(self, element: T) -> None:
        """Append an element."""
        self._held.elements.append(element)

    def extend(self, elements: Iterable[T]) -> None:
        """Append elements."""
        self._held.elements.extend(elements)

    def set(self, elements: Iterable[T]) -> None:
        """Put these in place of all elements."""
        self._held.elements = list(elements)

    def clear(self) -> None:
        """Remove all elements."""
        self._held.elements = []

    def __len__(self) -> int:
        """How many elements this subtask has."""
        return len(self._held.elements)

    def __iter__(self) -> Iterator[T]:
        """Iterate over this subtask's elements; do not change the state meanwhile."""
        return iter(self._held.elements)


class UnionState(OperatorListState[T]):
    """As an `OperatorListState`, but at a restart every subtask is shown what all of them had saved, in `restored`.

    Its own elements begin empty then: the function takes over in `open` what concerns it. One that does not look would
    lose them all at the next checkpoint, so the job fails.
    """

    __slots__ = ()

    @property
    def restored(self) -> tuple[T, ...]:
        """All elements that the subtasks had saved, in the order of subtasks; empty at a first start."""
        self._held.looked_at = True
        return self._held.restored


def operator_list_state(*, renamed: dict[str, str] | None = None) -> OperatorListState[Any]:
    """Declare a list by subtask: `open_files: ps.OperatorListState[str] = ps.operator_list_state()`.

    Types of elements, and how their fields may change between versions of a job, are those of `ps.value_state`.
    """
    return OperatorListState(OperatorElements(), Declaration(renamed=dict(renamed or {})))


def union_state(*, renamed: dict[str, str] | None = None) -> UnionState[Any]:
    """Declare a union: `offsets: ps.UnionState[tuple[str, int]] = ps.union_state()`; types as of a list by subtask."""
    return UnionState(OperatorElements(), Declaration(renamed=dict(renamed or {})))
