"""State by key that folds added values: `ReducingState`, `AggregatingState`, and the function of `.reduce(f)`.

Declared by users, bound by `operators.process.keyed_process`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.functions.process_function import KeyedProcessFunction, ValueState, value_state
from penstock.functions.state_handles import Declaration, declaration_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.functions.state_ttl import TimeToLive

T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")
Acc = TypeVar("Acc")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class Aggregator(Protocol[In_contra, Acc, Out_co]):
    """A user-defined aggregate: `class Mean(ps.Aggregator[int, tuple[int, int], float])`.

    The accumulator's type is the return annotation of `create_accumulator`: any type a value can have.
    """

    def create_accumulator(self) -> Acc:
        """Return the initial accumulator, before any value."""

    def add(self, value: In_contra, accumulator: Acc) -> Acc:
        """Return the accumulator with one more value."""

    def get_result(self, accumulator: Acc) -> Out_co:
        """Return the result for an accumulator."""

    def merge(self, left: Acc, right: Acc) -> Acc:
        """Return the accumulator of the values of both; called for the parts of a spread key, in any order."""


class ReducingState(Generic[T]):
    """One value for every key that reduces added values: `most: ps.ReducingState[int] = ps.reducing_state(max)`."""

    __slots__ = ("_declaration", "_function", "_reduced")

    def __init__(self, declaration: Declaration, reduced: ValueState[T]) -> None:
        """Made by `ps.reducing_state` as a declaration, and by `fold_into`."""
        self._declaration = declaration
        self._function: Callable[[T, T], T] = declaration.fold
        self._reduced = reduced

    def add(self, value: T) -> None:
        """Set the current key's value to `function(current value, value)`; the first value is stored unchanged."""
        reduced = self._reduced.value()
        self._reduced.update(value if reduced is None else self._function(reduced, value))

    def get(self) -> T | None:
        """Return the reduced value of the current key; None if no value was added."""
        return self._reduced.value()

    def clear(self) -> None:
        """Remove the current key's value."""
        self._reduced.clear()


class AggregatingState(Generic[In, Out]):
    """One accumulator for every key: `mean: ps.AggregatingState[int, float] = ps.aggregating_state(Mean())`."""

    __slots__ = ("_accumulator", "_aggregator", "_declaration")

    def __init__(self, declaration: Declaration, accumulator: ValueState[Any]) -> None:
        """Made by `ps.aggregating_state` as a declaration, and by `fold_into`."""
        self._declaration = declaration
        self._aggregator: Aggregator[In, Any, Out] = declaration.fold
        self._accumulator = accumulator

    def add(self, value: In) -> None:
        """Add a value to the current key's accumulator."""
        held, aggregator = self._accumulator.value(), self._aggregator
        self._accumulator.update(aggregator.add(value, aggregator.create_accumulator() if held is None else held))

    def get(self) -> Out | None:
        """Return the result of the current key's accumulator; None if no value was added."""
        held = self._accumulator.value()
        return None if held is None else self._aggregator.get_result(held)

    def clear(self) -> None:
        """Remove the current key's accumulator."""
        self._accumulator.clear()


def fold_into(
    declared: ReducingState[Any] | AggregatingState[Any, Any], held: ValueState[Any]
) -> ReducingState[Any] | AggregatingState[Any, Any]:
    """Return a state that folds as the declared one, into the given value."""
    if isinstance(declared, ReducingState):
        return ReducingState(declaration_of(declared), held)
    return AggregatingState(declaration_of(declared), held)


def reducing_state(function: Callable[[Any, Any], Any], *, ttl: TimeToLive = None) -> ReducingState[Any]:
    """Declare a value by key that reduces added values: `most: ps.ReducingState[int] = ps.reducing_state(max)`.

    `function(old, new)` returns a value of the annotation's type; types and `ttl` are as for `ps.value_state`.
    """
    return ReducingState(Declaration(ttl=ttl, fold=function), value_state())


def aggregating_state(aggregator: Aggregator[In, Any, Out], *, ttl: TimeToLive = None) -> AggregatingState[In, Out]:
    """Declare an accumulator by key: `mean: ps.AggregatingState[int, float] = ps.aggregating_state(Mean())`.

    The saved value is the accumulator, of the return type of `create_accumulator`; `ttl` as for `ps.value_state`.
    """
    return AggregatingState(Declaration(ttl=ttl, fold=aggregator), value_state())


#: Name of the state.
REDUCED = "reduced"


class ReduceFunction(KeyedProcessFunction):
    """Reduces each row into its key's and emits the result; made by `KeyedStream.reduce`."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        """Make it of `function`, which takes the reduced row so far and the next row, and returns a row."""
        self.reduced: ReducingState[Any] = reducing_state(function)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        """Reduce a row and emit the result."""
        del ctx
        self.reduced.add(row)
        yield self.reduced.get()
