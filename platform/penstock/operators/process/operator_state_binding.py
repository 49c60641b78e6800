"""The operator state of a function without keys: elements in memory, saved and restored per subtask.

A snapshot holds one operator state per name, with an item for each element and the columns as its schema. The user's
side is `functions.operator_lists`; called by `operators.process.plain_process`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.errors import StateMismatchError
from penstock.core.evolution import MODE, Evolution, conform, evolve, value_columns
from penstock.core.names import near
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.functions.operator_lists import OperatorElements, OperatorListState, UnionState
from penstock.operators.process.process_values import ValueCodec
from penstock.operators.process.state_items import from_items, to_items
from penstock.operators.rows.user_functions import UserFunctionError
from penstock.state.log.row_spec import RowSpec
from penstock.state.tables.value_columns import plain_values

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Name of a declaration in the operator's config -> mode of redistribution at a rescale.
MODES = {"operator_list": "list", "union": "union"}


def saved_schema(values: pa.Schema, kind: str, evolution: Evolution | None = None) -> pa.Schema:
    """Return the schema of a state's elements in a snapshot; `evolution` preserves their field ids."""
    ids, last, carried = ((), 0, ()) if evolution is None else (evolution.ids, evolution.last_id, evolution.carried)
    spec = RowSpec(pa.schema([]), tuple(values), evolves=True, ids=ids, last_id=last, carried=carried)
    columns = value_columns(spec.segment_schema)
    return columns.with_metadata({**(columns.metadata or {}), MODE: MODES[kind].encode()})


class BoundOperatorState:
    """An operator state of one subtask."""

    def __init__(self, name: str, kind: str, values: pa.Schema, types: Any, where: str) -> None:
        """Make an empty state, for `restore` to fill; `kind` is a key of `MODES`, `types` the elements' row type."""
        self.name = name
        self._held, self._union = OperatorElements(), kind == "union"
        self.handle: OperatorListState[Any] = (UnionState if self._union else OperatorListState)(self._held)
        self._where, self._mode = f"{where}: state {name!r}", MODES[kind]
        self._codec = ValueCodec(values, types, self._where)
        self._values, self._kind = values, kind
        self._schema = saved_schema(values, kind)

    def saved(self, uid: str) -> OperatorStateSnapshot:
        """Return the elements in their snapshot form."""
        elements = self._held.elements
        arrays = self._codec.encode(elements) if elements else []
        return OperatorStateSnapshot(
            uid=uid,
            name=self.name,
            mode=self._mode,
            items=to_items(arrays, self._schema) if elements else (),
            schema=schema_to_text(self._schema),
        )

    def restore(self, parts: Sequence[OperatorStateSnapshot]) -> None:
        """Restore results of `saved`, as assigned by the JobMaster.

        Raises:
            StateMismatchError: its elements had fields that cannot be converted to the present ones.
        """
        found: list[Any] = []
        for part in parts:
            saved = schema_from_text(part.schema)
            self._schema = self._evolved(part, saved)
            rows = conform(from_items(part.items, saved), self._schema)
            found += self._codec.decode([plain_values(column.combine_chunks()) for column in rows.columns])
        if self._union:
            self._held.restored, self._held.looked_at = tuple(found), not found
        else:
            self._held.elements = found

    def require_looked_at(self) -> None:
        """Check, after `open`, that no restored element is lost.

        Raises:
            UserFunctionError: it is a union, elements were restored, and the function has not read them.
        """
        if not self._held.looked_at:
            msg = f"{self._where} was restored, but `open` has not read its `restored`: all elements would be lost"
            way = "add the elements of the subtask in open (unlike in Flink, a union starts empty)"
            raise UserFunctionError(msg, hint=f"{way}, or declare ps.operator_list_state()")

    def _evolved(self, part: OperatorStateSnapshot, saved: pa.Schema) -> pa.Schema:
        """Return the present columns with the field ids of the saved ones."""
        if part.mode != self._mode:
            msg = f"{self._where}: it was handed out as {part.mode!r}, and is now {self._mode!r}"
            raise StateMismatchError(msg, hint="declare it as it was, or give it another name")
        try:
            return saved_schema(self._values, self._kind, evolve(saved, saved_schema(self._values, self._kind)))
        except StateMismatchError as error:
            msg = f"{self._where}: {error.message}"
            raise StateMismatchError(msg, hint=error.hint or "give the operator a new uid") from error


def restore_all(bound: Sequence[BoundOperatorState], restored: Sequence[OperatorStateSnapshot], where: str) -> None:
    """Restore every state from the elements saved under its name.

    Raises:
        StateMismatchError: elements are left over, or were of a state of another kind.
    """
    by_name = {state.name: state for state in bound}
    for part in restored:
        if part.items and part.name not in by_name:
            msg = f"{where}: the snapshot holds operator state {part.name!r}, which the function does not declare"
            raise StateMismatchError(msg, hint=f"declare it ({near(part.name, by_name)}), or give a new uid")
    for name, state in by_name.items():
        state.restore([part for part in restored if part.name == name and part.items])
