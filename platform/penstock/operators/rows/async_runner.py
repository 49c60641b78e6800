"""Runs a coroutine function for rows, in an event loop with a separate thread. Made by `operators.rows.map_async`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.core.logs import settled_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.operators.rows.async_queue import Entry

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
        self._instead: Callable[[Any], Any] | None = instead if callable(instead) else None
        self._timeout_ms, self._close_seconds = timeout_ms, close_seconds
        self._wake = wake
        self._closing = False
        self._ended: deque[tuple[Entry, Any, BaseException | None]] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="map-async", daemon=True)
        self._thread.start()
        try:
            self._call_hook("open")
        except BaseException:
            self._stop()
            raise

    def start(self, entries: list[Entry]) -> None:
        """Start the calls for these rows."""
        self._loop.call_soon_threadsafe(self._begin, entries, context=settled_context())

    @property
    def ready(self) -> bool:
        """Whether `take` has results."""
        return bool(self._ended)

    def take(self) -> list[tuple[Entry, Any, BaseException | None]]:
        """Return the calls that ended since the last call: row, result, error."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

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
        asyncio.run_coroutine_threadsafe(self._give_up(), self._loop).result(self._close_seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call_hook(self, name: str, limit_seconds: float | None = None) -> None:
        hook = getattr(self._function, name, None)
        if inspect.iscoroutinefunction(hook):
            asyncio.run_coroutine_threadsafe(hook(), self._loop).result(limit_seconds)

    def _begin(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._loop.create_task(self._call(entry))

    async def _call(self, entry: Entry) -> None:
        result: Any = None
        error: BaseException | None = None
        limit = asyncio.timeout(self._timeout_ms / 1000)
        try:
            async with limit:
                result = await self._function(entry.row)
        except BaseException as raised:  # noqa: BLE001 - raised again in the subtask's thread
            error = CallTimeoutError() if limit.expired() else raised
        if isinstance(error, CallTimeoutError) and self._instead is not None:
            try:
                result, error = self._instead(entry.row), None
                if inspect.isawaitable(result):
                    result = await result
            except BaseException as raised:  # noqa: BLE001 - as above
                error = raised
        if self._closing:
            return
        self._ended.append((entry, result, error))
        self._wake()

    async def _give_up(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
