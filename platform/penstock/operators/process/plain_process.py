"""The operator of a `ProcessFunction`: a Python function by row without keys, with operator state and side outputs.

Kind `plain_process`. No timers and no state by key: those are of `operators.process.keyed_process`.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.schema import schema_from_text
from penstock.functions.process_function import OpenContext, RowContext
from penstock.operators.operator import Operator, OperatorSnapshot
from penstock.operators.process.operator_state_binding import BoundOperatorState, restore_all
from penstock.operators.process.process_output import ProcessOutput
from penstock.operators.rows.columns import ts_of
from penstock.operators.rows.garbage import collector_paused
from penstock.operators.rows.rows import RowDecoder, read_columns
from penstock.operators.rows.user_functions import load_function, user_error

if TYPE_CHECKING:
    from penstock.core.elements import Barrier, Batch, Watermark
    from penstock.functions.process_function import ProcessFunction
    from penstock.operators.operator import Collector, OperatorContext


class PlainProcessOperator(Operator):
    """Runs one `ProcessFunction`."""

    _function: ProcessFunction | None

    def open(self, context: OperatorContext) -> None:
        """Load the function, restore its states, call its `open`."""
        spec = context.spec
        self._uid, self._where = spec.uid, f"process {spec.uid or spec.name!r}"
        self._function = None
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
            state.require_looked_at()

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Call the function for every row."""
        assert self._function is not None  # noqa: S101 - opened
        process, context, output = self._function.process, self._context, self._output
        ts = ts_of(batch.data)
        times = [None] * batch.num_rows if ts is None else ts.to_numpy().tolist()
        count = 0
        with collector_paused():
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
                raise user_error(self._where, error) from error
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
        return OperatorSnapshot(operator=tuple(state.saved(self._uid) for state in self._states))

    def close(self) -> None:
        """Close the function."""
        function, self._function = getattr(self, "_function", None), None
        if function is not None:
            function.close()
