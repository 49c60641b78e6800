"""State by key that folds what is added to it: `ReducingState` and `AggregatingState`, over one value by key.

The author of a process function declares them; `penstock.operators.process_states` binds them to the table of a value,
so in a snapshot they are a value: what has been reduced, or the accumulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.operators.process_function import ValueState

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.operators.state_ttl import TimeToLive

T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")
Acc = TypeVar("Acc")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class Aggregator(Protocol[In_contra, Acc, Out_co]):
    """An aggregate of one's own: `class Mean(ps.Aggregator[int, tuple[int, int], float])`.

    The accumulator's type is the return annotation of `create_accumulator`: any type a value can have.
    """

    def create_accumulator(self) -> Acc:
        """Return the accumulator of nothing."""

    def add(self, value: In_contra, accumulator: Acc) -> Acc:
        """Return the accumulator with one more value."""

    def get_result(self, accumulator: Acc) -> Out_co:
        """Return what the accumulator means."""

    def merge(self, left: Acc, right: Acc) -> Acc:
        """Return the accumulator of the values of both."""


class ReducingState(Generic[T]):
    """One value for every key that others are reduced into: `most: ps.ReducingState[int] = ps.reducing_state(max)`."""

    __slots__ = ("function", "held", "name", "ttl")

    def __init__(self, function: Callable[[T, T], T]) -> None:
        """A declaration; what the operator binds to a batch is a copy of its own."""
        self.name = ""
        self.ttl: Any = None
        self.function = function
        #: What has been reduced.
        self.held: ValueState[T] = ValueState()

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def add(self, value: T) -> None:
        """Reduce a value into the current key's: `function(what there is, value)`; the first is kept as it is."""
        held = self.held.value()
        self.held.update(value if held is None else self.function(held, value))

    def get(self) -> T | None:
        """Return what the current key's values were reduced to; None when there was none."""
        return self.held.value()

    def clear(self) -> None:
        """Forget the current key's values."""
        self.held.clear()

    def over(self, held: ValueState[Any]) -> ReducingState[T]:
        """Return a handle for the function that is bound to this value."""
        made: ReducingState[T] = ReducingState(self.function)
        made.name, made.held = self.name, held
        return made


class AggregatingState(Generic[In, Out]):
    """One accumulator for every key: `mean: ps.AggregatingState[int, float] = ps.aggregating_state(Mean())`."""

    __slots__ = ("aggregator", "held", "name", "ttl")

    def __init__(self, aggregator: Aggregator[In, Any, Out]) -> None:
        """A declaration; what the operator binds to a batch is a copy of its own."""
        self.name = ""
        self.ttl: Any = None
        self.aggregator = aggregator
        #: The accumulator.
        self.held: ValueState[Any] = ValueState()

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def add(self, value: In) -> None:
        """Add a value to the current key's accumulator."""
        held, aggregator = self.held.value(), self.aggregator
        self.held.update(aggregator.add(value, aggregator.create_accumulator() if held is None else held))

    def get(self) -> Out | None:
        """Return the result of the current key's accumulator; None when nothing was added."""
        held = self.held.value()
        return None if held is None else self.aggregator.get_result(held)

    def clear(self) -> None:
        """Forget the current key's accumulator."""
        self.held.clear()

    def over(self, held: ValueState[Any]) -> AggregatingState[In, Out]:
        """Return a handle for the function that is bound to this accumulator."""
        made = AggregatingState(self.aggregator)
        made.name, made.held = self.name, held
        return made


def reducing_state(function: Callable[[Any, Any], Any], *, ttl: TimeToLive = None) -> ReducingState[Any]:
    """Declare a value by key into which others are reduced: `most: ps.ReducingState[int] = ps.reducing_state(max)`.

    `function(old, new)` returns a value of the annotation's type, any that `ps.value_state` takes, as is `ttl`.
    """
    made: ReducingState[Any] = ReducingState(function)
    made.ttl = ttl
    return made


def aggregating_state(aggregator: Aggregator[In, Any, Out], *, ttl: TimeToLive = None) -> AggregatingState[In, Out]:
    """Declare an accumulator by key: `mean: ps.AggregatingState[int, float] = ps.aggregating_state(Mean())`.

    Saved is the accumulator, of the type that `create_accumulator` is annotated with; `ttl` as for `ps.value_state`.
    """
    made = AggregatingState(aggregator)
    made.ttl = ttl
    return made
