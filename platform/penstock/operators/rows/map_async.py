"""Asynchronous function by row (kind `map_async`): one result for each row, with many calls running at a time.

For functions that wait for other services, such as a web service or database. A checkpoint contains the input rows
whose results were not emitted, and a restore calls the function for them again. So the function is called at least once
for a row, and exactly one result takes effect.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.elements import TS_COLUMN, Batch, Watermark, WatermarkStatus
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.operators.operator import OperatorSnapshot
from penstock.operators.rows.async_queue import AsyncQueue, Entry
from penstock.operators.rows.async_runner import CLOSE_SECONDS, AsyncRunner, CallTimeoutError
from penstock.operators.rows.columns import assemble, conform
from penstock.operators.rows.user_functions import FunctionOperator, UserFunctionError, user_error

if TYPE_CHECKING:
    from penstock.core.elements import Barrier
    from penstock.operators.operator import Collector, OperatorContext

#: Name of the state with the rows not yet emitted.
IN_FLIGHT = "in-flight"
#: The number of parts in which a rescale can redistribute them.
_PARTS = 8


class MapAsyncOperator(FunctionOperator):
    """Starts calls for rows as they arrive, and emits results in turn."""

    def __init__(self, close_seconds: float = CLOSE_SECONDS) -> None:
        """`close_seconds`: how long the function's `close` may take."""
        super().__init__()
        self._close_seconds = close_seconds

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        config = context.spec.config
        self._timeout_ms = int(config["timeout_ms"])
        self._queue = AsyncQueue(int(config["capacity"]), ordered=bool(config["ordered"]))
        try:
            self._runner: AsyncRunner | None = AsyncRunner(
                self._function, self._timeout_ms, context.wake, self._close_seconds
            )
        except Exception as error:
            raise user_error(self._where, error) from error
        for state in context.restored:
            for item in state.items if state.name == IN_FLIGHT else ():
                with pa.ipc.open_stream(base64.b64decode(item)) as reader:
                    for batch in reader:
                        self._add(conform(batch, self._input_schema, self._where))

    @property
    def available(self) -> bool:
        """Whether calls for further rows would start at once."""
        return not self._queue.full

    @property
    def held(self) -> bool:
        """Whether a row or a watermark after one is pending."""
        return not self._queue.empty

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        self._add(batch.data)
        self.go_on(out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        self._mark(watermark, out)

    def process_status(self, status: WatermarkStatus, out: Collector) -> None:
        self._mark(status, out)

    def go_on(self, out: Collector) -> bool:
        """Emit completed rows and start waiting calls; return whether any row was completed."""
        runner = self._runner
        if runner is None or not runner.ready:
            return False
        for entry, result, error in runner.take():
            if isinstance(error, CallTimeoutError):
                msg = f"{self._where}: no result within {self._timeout_ms / 1000:g} s for {entry.row!r}"
                raise UserFunctionError(msg, hint="raise timeout=, or catch it in the function: asyncio.timeout(...)")
            if error is not None:
                raise user_error(self._where, error) from error
            self._queue.complete(entry, result)
        runner.start(self._queue.start())
        for part in self._queue.take():
            if isinstance(part, Watermark):
                out.watermark(part)
            elif isinstance(part, WatermarkStatus):
                out.status(part)
            else:
                self._emit(part, out)
        return True

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        held = self._queue.held()
        if not held:
            return OperatorSnapshot()
        size = -(-len(held) // _PARTS)
        items = tuple(_encoded(held[start : start + size]) for start in range(0, len(held), size))
        state = OperatorStateSnapshot(uid=self._uid, name=IN_FLIGHT, mode="list", items=items)
        return OperatorSnapshot(operator=(state,))

    def close(self) -> None:
        runner, self._runner = getattr(self, "_runner", None), None
        if runner is not None:
            runner.close()

    def _add(self, data: pa.RecordBatch) -> None:
        assert self._runner is not None  # noqa: S101 - only called while open
        self._queue.add(data, self._decoder.rows(data))
        self._runner.start(self._queue.start())

    def _mark(self, element: Watermark | WatermarkStatus, out: Collector) -> None:
        if not self._queue.empty:
            self._queue.mark(element)
        elif isinstance(element, Watermark):
            out.watermark(element)
        else:
            out.status(element)

    def _emit(self, entries: list[Entry], out: Collector) -> None:
        columns = self._encoder.columns([entry.result for entry in entries])
        times = None
        if TS_COLUMN in self._input_schema.names:
            times = pa.array([entry.batch.column(TS_COLUMN)[entry.index].as_py() for entry in entries], pa.int64())
        out.batch(Batch(assemble(columns, self._schema, times)))


def _encoded(entries: list[Entry]) -> str:
    rows = pa.concat_batches([entry.batch.slice(entry.index, 1) for entry in entries])
    sink: Any = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return base64.b64encode(sink.getvalue()).decode()
