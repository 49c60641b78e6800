"""`.reduce(f)` on a keyed stream as a process function: what a key's rows were reduced to, after every row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.functions.folding_states import ReducingState, reducing_state
from penstock.functions.process_function import KeyedProcessFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Name of the state.
REDUCED = "reduced"


class ReduceFunction(KeyedProcessFunction):
    """Reduces each row into its key's, and emits that; made by `penstock.api.functions.process_functions.reduced`."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        """`function` takes what there is and the next row, and returns a row."""
        self.reduced: ReducingState[Any] = reducing_state(function)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        """Reduce a row."""
        del ctx
        self.reduced.add(row)
        yield self.reduced.get()
