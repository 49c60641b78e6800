"""`.reduce(f)` on a keyed stream as a process function: emits the reduced row of a key after every row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.functions.folding_states import ReducingState, reducing_state
from penstock.functions.process_function import KeyedProcessFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Name of the state.
REDUCED = "reduced"


class ReduceFunction(KeyedProcessFunction):
    """Reduces each row into its key's and emits the result; made by `api.functions.process_functions.reduced`."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        """Make it of `function`, which takes the reduced row so far and the next row, and returns a row."""
        self.reduced: ReducingState[Any] = reducing_state(function)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        """Reduce a row and emit the result."""
        del ctx
        self.reduced.add(row)
        yield self.reduced.get()
