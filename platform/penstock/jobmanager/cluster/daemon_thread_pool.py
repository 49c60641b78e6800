"""A few threads for calls that may hang; the event loop's default pool stays free for leases and records.

Used for stores that users name (`savepoint_folders`, `enumerators`) and for event logs. A hanging
call blocks its thread, but neither its caller nor the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreadPool:
    """A pool of at most `count` threads; further calls wait in order."""

    def __init__(self, name: str, count: int) -> None:
        """Prepare the pool; threads start at the first calls."""
        self._name, self._count = name, count
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._started = 0
        self._abandoned: list[Future[Any]] = []

    async def call(self, limit_s: float | None, call: Callable[..., T], *arguments: Any) -> T:
        """Run `call` in a thread and return its result; wait at most `limit_s` seconds.

        Raises:
            TimeoutError: the call did not return in time, or all threads are blocked by abandoned calls.
        """
        self._abandoned = [future for future in self._abandoned if not future.done()]
        if len(self._abandoned) >= self._count:
            msg = f"{self._count} earlier calls have not returned"
            raise TimeoutError(msg)
        future: Future[T] = Future()
        self._work.put((future, partial(call, *arguments)))
        if self._started < self._count:
            name = f"{self._name}-{self._started}"
            threading.Thread(target=_serve, args=(self._work,), name=name, daemon=True).start()
            self._started += 1
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), limit_s)
        finally:
            if future.running():
                self._abandoned.append(future)

    def close(self) -> None:
        """Let the threads end after their queued calls; no further call is allowed."""
        for _ in range(self._started):
            self._work.put(None)


def _serve(asked: SimpleQueue[_Work | None]) -> None:
    while (work := asked.get()) is not None:
        future, call = work
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            future.set_exception(error)
        del work, future, call
