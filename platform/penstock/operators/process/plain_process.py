"""The operator of a `ProcessFunction` (kind `plain_process`), and its operator state.

Elements are in memory, and saved per subtask as JSON items. The API reads the schema of a state here.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

import base64
import math
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import StateMismatchError, did_you_mean
from penstock.core.evolution import MODE, UNSAVED, Evolution, conform_table, evolve, value_columns
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.functions.operator_lists import OperatorElements, OperatorListState, UnionState
from penstock.functions.process_function import OpenContext, RowContext
from penstock.kernels.rows.python_values import plain_values
from penstock.operators.operator import NO_CAPABILITIES, Operator, OperatorSnapshot
from penstock.operators.process.state_binding import ValueCodec, saved_state
from penstock.operators.rows.columns import ts_of
from penstock.operators.rows.row_codec import ProcessOutput, RowDecoder, read_columns
from penstock.operators.rows.user_functions import UserFunctionError, gc_paused, load_function, user_error
from penstock.state.log.row_spec import RowSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.elements import Barrier, Batch, Watermark
    from penstock.functions.process_function import ProcessFunction
    from penstock.operators.operator import Capabilities, Collector, OperatorContext


def to_items(arrays: Sequence[pa.Array], schema: pa.Schema) -> tuple[list[Any], ...]:
    """Convert columns to items."""
    columns = [_plain(array.cast(field.type)) for array, field in zip(arrays, schema, strict=True)]
    return tuple(list(row) for row in zip(*columns, strict=True))


def from_items(items: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Convert items to a table of the schema they were saved with."""
    columns = [_array([item[place] for item in items], field.type) for place, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _plain(array: pa.Array) -> list[Any]:
    kind = array.type
    if _counted(kind):
        values: list[Any] = array.cast(pa.int32() if pt.is_date32(kind) else pa.int64()).to_pylist()
        return values
    values = array.to_pylist()
    if pt.is_floating(kind):
        return [value if value is None or math.isfinite(value) else str(value) for value in values]
    if pt.is_decimal(kind):
        return [None if value is None else str(value) for value in values]
    if pt.is_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    return values


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if _counted(kind):
        return pa.array(values, pa.int32() if pt.is_date32(kind) else pa.int64()).cast(kind)
    if pt.is_floating(kind):
        values = [None if value is None else float(value) for value in values]
    elif pt.is_decimal(kind):
        values = [None if value is None else Decimal(value) for value in values]
    elif pt.is_binary(kind):
        values = [None if value is None else base64.b64decode(value) for value in values]
    return pa.array(values, kind)


def _counted(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) or pt.is_date32(kind))


#: Name of a declaration in the operator's config -> mode of redistribution at a rescale.
MODES = {"operator_list": "list", "union": "union"}


def saved_schema(values: pa.Schema, kind: str, evolution: Evolution = UNSAVED) -> pa.Schema:
    """Return the schema of a state's elements in a snapshot; `evolution` preserves their field ids."""
    spec = RowSpec(pa.schema([]), tuple(values), evolves=True, evolution=evolution)
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
            rows = conform_table(from_items(part.items, saved), self._schema)
            found += self._codec.decode([plain_values(column.combine_chunks()) for column in rows.columns])
        if self._union:
            self._held.restored, self._held.looked_at = tuple(found), not found
        else:
            self._held.elements = found

    def require_restored_read(self) -> None:
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
            raise StateMismatchError(msg, hint=f"declare it ({did_you_mean(part.name, by_name)}), or give a new uid")
    for name, state in by_name.items():
        state.restore([part for part in restored if part.name == name and part.items])


class PlainProcessOperator(Operator):
    """Runs one `ProcessFunction`."""

    _function: ProcessFunction | None = None

    def open(self, context: OperatorContext) -> Capabilities:
        """Load the function, restore its states, call its `open`."""
        spec = context.spec
        self._uid, self._where = spec.uid, f"process {spec.uid or spec.name!r}"
        function, row_type, types = load_function(spec.payload, self._where)
        self._states = [
            BoundOperatorState(
                name, spec.config["kinds"][name]["kind"], schema_from_text(text), types.get(name), self._where
            )
            for name, text in spec.config["states"].items()
        ]
        restore_all(self._states, context.restored, self._where)
        for state in self._states:
            setattr(function, state.name, state.handle)
        self._decoder = RowDecoder(read_columns(context.input_schemas[0], row_type), row_type)
        sides = {tag: schema_from_text(text) for tag, text in spec.config["sides"].items()}
        self._output = ProcessOutput(schema_from_text(spec.output_schema), sides, self._where)
        self._context = RowContext(context.clock, self._output.sides)
        try:
            function.open(OpenContext(context.job_name, context.subtask, context.parallelism))
        except Exception as error:
            raise user_error(self._where, error) from error
        self._function = function
        for state in self._states:
            state.require_restored_read()
        return NO_CAPABILITIES

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Call the function for every row."""
        assert self._function is not None  # noqa: S101 - opened
        process, context, output = self._function.process, self._context, self._output
        ts = ts_of(batch.data)
        times = [None] * batch.num_rows if ts is None else ts.to_numpy().tolist()
        count = 0
        with gc_paused():
            try:
                for row, context.timestamp in zip(self._decoder.rows(batch.data), times, strict=True):
                    found = process(row, context)
                    if found is not None:
                        output.rows.extend(found)
                        if len(output.rows) != count:
                            count = len(output.rows)
                            output.ends.append(count)
                            output.times.append(context.timestamp)
            except Exception as error:
                raise user_error(self._where, error, self._decoder.newest(batch.data)) from error
            output.emit(out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Set the watermark in the function's context, and emit it."""
        self._context.watermark = max(self._context.watermark, watermark.timestamp)
        out.watermark(watermark)

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Call the function's hook that updates its states, then save them."""
        assert self._function is not None  # noqa: S101 - opened
        if not self._states:
            return OperatorSnapshot()
        try:
            self._function.snapshot_state()
        except Exception as error:
            raise user_error(self._where, error) from error
        saved = (saved_state(partial(state.saved, self._uid), self._function, state.name) for state in self._states)
        return OperatorSnapshot(operator=tuple(saved))

    def close(self) -> None:
        """Close the function."""
        function, self._function = self._function, None
        if function is not None:
            function.close()
