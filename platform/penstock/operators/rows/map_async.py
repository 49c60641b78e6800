"""Asynchronous function by row (kind `map_async`), with an event loop in a separate thread.

A checkpoint contains the input rows without a result. The order of output is decided by
`operators.rows.async_queue`.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.elements import TS_COLUMN, Batch, Watermark, WatermarkStatus
from penstock.core.logs import fixed_log_context
from penstock.core.schema import rows_to_text
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.operators.operator import Capabilities, OperatorSnapshot
from penstock.operators.rows.async_queue import AsyncQueue, AsyncRow
from penstock.operators.rows.columns import assemble, conform
from penstock.operators.rows.user_functions import FunctionOperator, UserFunctionError, user_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.elements import Barrier
    from penstock.operators.operator import Collector, OperatorContext

CLOSE_SECONDS = 5.0


class CallTimeoutError(Exception):
    """A call exceeded its time-out."""


class AsyncRunner:
    """Starts calls from one thread, and returns their results to the same thread."""

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        timeout_ms: int,
        wake: Callable[[], None],
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        """Start the loop; `wake` is called from its thread whenever a call has ended.

        The function's `open()` and `close()` coroutines, where it has them, are awaited first and last in the loop;
        its `timeout(row)`, plain or a coroutine, returns the result of a call that took too long.
        """
        self._function = function
        instead = getattr(function, "timeout", None)
        self._timeout_hook: Callable[[Any], Any] | None = instead if callable(instead) else None
        self._timeout_ms, self._close_seconds = timeout_ms, close_seconds
        self._wake = wake
        self._closing = False
        self._completed: deque[tuple[AsyncRow, Any, BaseException | None]] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="map-async", daemon=True)
        self._thread.start()
        try:
            self._call_hook("open")
        except BaseException:
            self._stop()
            raise

    def start(self, entries: list[AsyncRow]) -> None:
        """Start the calls for these rows."""
        self._loop.call_soon_threadsafe(self._begin, entries, context=fixed_log_context())

    @property
    def ready(self) -> bool:
        """Whether `take` has results."""
        return bool(self._completed)

    def take(self) -> list[tuple[AsyncRow, Any, BaseException | None]]:
        """Return the calls that ended since the last call: row, result, error."""
        return [self._completed.popleft() for _ in range(len(self._completed))]

    def close(self) -> None:
        """Cancel the running calls and end the thread. Idempotent."""
        if self._closing:
            return
        self._closing = True
        try:
            self._cancel_all()
            self._call_hook("close", self._close_seconds)
        finally:
            self._stop()

    def _stop(self) -> None:
        with contextlib.suppress(TimeoutError):  # a call that survives its cancellation ends with the process
            self._cancel_all()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self._close_seconds)
        if not self._thread.is_alive():
            self._loop.close()

    def _cancel_all(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel_tasks(), self._loop).result(self._close_seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call_hook(self, name: str, limit_seconds: float | None = None) -> None:
        hook = getattr(self._function, name, None)
        if inspect.iscoroutinefunction(hook):
            asyncio.run_coroutine_threadsafe(hook(), self._loop).result(limit_seconds)

    def _begin(self, entries: list[AsyncRow]) -> None:
        for entry in entries:
            self._loop.create_task(self._call(entry))

    async def _call(self, entry: AsyncRow) -> None:
        result: Any = None
        error: BaseException | None = None
        limit = asyncio.timeout(self._timeout_ms / 1000)
        try:
            async with limit:
                result = await self._function(entry.row)
        except BaseException as raised:  # noqa: BLE001 - raised again in the subtask's thread
            error = CallTimeoutError() if limit.expired() else raised
        if isinstance(error, CallTimeoutError) and self._timeout_hook is not None:
            try:
                result, error = self._timeout_hook(entry.row), None
                if inspect.isawaitable(result):
                    result = await result
            except BaseException as raised:  # noqa: BLE001 - as above
                error = raised
        if self._closing:
            return
        self._completed.append((entry, result, error))
        self._wake()

    async def _cancel_tasks(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


#: Name of the state with the rows not yet emitted.
IN_FLIGHT = "in-flight"
#: The number of parts in which a rescale can redistribute them.
_PARTS = 8


class MapAsyncOperator(FunctionOperator):
    """Starts calls for rows as they arrive, and emits results in turn."""

    _runner: AsyncRunner | None = None

    def __init__(self, close_seconds: float = CLOSE_SECONDS) -> None:
        """`close_seconds`: how long the function's `close` may take."""
        super().__init__()
        self._close_seconds = close_seconds

    def open(self, context: OperatorContext) -> Capabilities:
        super().open(context)
        config = context.spec.config
        self._timeout_ms = int(config["timeout_ms"])
        self._queue = AsyncQueue(int(config["capacity"]), ordered=bool(config["ordered"]))
        try:
            self._runner = AsyncRunner(self._function, self._timeout_ms, context.wake, self._close_seconds)
        except Exception as error:
            raise user_error(self._where, error) from error
        for state in context.restored:
            for item in state.items if state.name == IN_FLIGHT else ():
                with pa.ipc.open_stream(base64.b64decode(item)) as reader:
                    for batch in reader:
                        self._add(conform(batch, self._input_schema, self._where))
        return Capabilities(pending_output=self, available=lambda: self.available)

    @property
    def available(self) -> bool:
        """Whether calls for further rows would start at once."""
        return not self._queue.full

    @property
    def has_pending_output(self) -> bool:
        """Whether a row or a watermark after one is pending."""
        return not self._queue.empty

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        self._add(batch.data)
        self.emit_ready(out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        self._mark(watermark, out)

    def process_status(self, status: WatermarkStatus, out: Collector) -> None:
        self._mark(status, out)

    def emit_ready(self, out: Collector) -> bool:
        """Emit completed rows and start waiting calls; return whether any row was completed."""
        runner = self._runner
        if runner is None or not runner.ready:
            return False
        for entry, result, error in runner.take():
            if isinstance(error, CallTimeoutError):
                msg = f"{self._where}: no result within {self._timeout_ms / 1000:g} s"
                hint = "raise timeout=, or catch it in the function: asyncio.timeout(...)"
                raise UserFunctionError(msg, hint=hint, values=self._decoder.text(entry.batch, entry.index))
            if error is not None:
                raise user_error(self._where, error, self._decoder.text(entry.batch, entry.index)) from error
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
        unemitted = self._queue.unemitted()
        if not unemitted:
            return OperatorSnapshot()
        size = -(-len(unemitted) // _PARTS)
        items = tuple(_encoded(unemitted[start : start + size]) for start in range(0, len(unemitted), size))
        state = OperatorStateSnapshot(uid=self._uid, name=IN_FLIGHT, mode="list", items=items)
        return OperatorSnapshot(operator=(state,))

    def close(self) -> None:
        runner, self._runner = self._runner, None
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

    def _emit(self, entries: list[AsyncRow], out: Collector) -> None:
        def given(index: int) -> str:
            return self._decoder.text(entries[index].batch, entries[index].index)

        columns = self._encoder.columns([entry.result for entry in entries], given)
        times = None
        if TS_COLUMN in self._input_schema.names:
            times = pa.array([entry.batch.column(TS_COLUMN)[entry.index].as_py() for entry in entries], pa.int64())
        out.batch(Batch(assemble(columns, self._schema, times)))


def _encoded(entries: list[AsyncRow]) -> str:
    return rows_to_text(pa.concat_batches([entry.batch.slice(entry.index, 1) for entry in entries]))
