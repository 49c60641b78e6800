"""Queries to running subtasks and workers: bounded in number and time; on the event loop.

Owned by `jobmanager.cluster.taskmanagers`, which delivers the answers; used by `jobmanager.observe.live_state` and
`jobmanager.observe.profiling`. The job master is not involved, so a query cannot influence its decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock.rpc.messages import SubtaskAnswer
from penstock.rpc.worker_commands import AskSubtask, DumpThreads, SampleStacks, WorkerCommand

#: Limit of open queries; further ones are refused.
_MOST_OPEN = 4096
#: Time limit of an answer: a subtask answers between two batches.
_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Worker:
    """The worker process that runs a subtask."""

    taskmanager_id: str
    worker_id: str


class Questions:
    """All open queries."""

    def __init__(
        self,
        send: Callable[[str, tuple[str, ...], WorkerCommand], None],
        *,
        deadline_s: float = _DEADLINE_S,
        most_open: int = _MOST_OPEN,
    ) -> None:
        """Start without queries; `send(taskmanager, workers, command)` relays, or drops what it cannot deliver."""
        self._send = send
        self._deadline_s, self._most_open = deadline_s, most_open
        self._number = 0
        self._open: dict[str, tuple[str, asyncio.Future[SubtaskAnswer]]] = {}

    async def ask(self, worker: Worker, question: AskSubtask | SampleStacks | DumpThreads) -> dict[str, Any]:
        """Return the answer of the subtask that `question` names, or of the worker as a whole, as JSON values.

        Raises:
            NotFoundError, UsageError: the subtask rejected the query.
            PenstockError: it is not running, did not answer in time, or too many queries are open.
        """
        if len(self._open) >= self._most_open:
            msg = f"{self._most_open} queries to running jobs are already open"
            raise PenstockError(msg, hint="try again later")
        self._number += 1
        request_id = str(self._number)
        future: asyncio.Future[SubtaskAnswer] = asyncio.get_running_loop().create_future()
        self._open[request_id] = worker.worker_id, future
        try:
            asked = msgspec.structs.replace(question, request_id=request_id)
            if isinstance(asked, AskSubtask):
                asked = msgspec.structs.replace(asked, wait_ms=self._deadline_s * 1000)
            self._send(worker.taskmanager_id, (worker.worker_id,), asked)
            found = await asyncio.wait_for(future, self._deadline_s)
        except TimeoutError as error:
            whom = f"subtask {question.subtask}" if isinstance(question, AskSubtask) else f"worker {worker.worker_id}"
            msg = f"{whom} did not answer within {self._deadline_s:g} s"
            way = "subtasks answer between batches: a user function may be slow, or the job is restarting"
            raise PenstockError(msg, hint=way) from error
        finally:
            del self._open[request_id]
        if found.error:
            kinds: dict[str, type[PenstockError]] = {"not-found": NotFoundError, "usage": UsageError}
            raise kinds.get(found.kind, PenstockError)(found.error)
        return found.answer

    def answered(self, answer: SubtaskAnswer) -> None:
        """Deliver an answer; drop it if no caller waits for it any longer."""
        _, future = self._open.get(answer.request_id, ("", None))
        if future is not None and not future.done():
            future.set_result(answer)

    def lost(self, worker_id: str) -> None:
        """Fail the queries to a worker that was lost."""
        for request_id, (asked, future) in self._open.items():
            if asked == worker_id and not future.done():
                error = f"worker {worker_id} was lost during the query; try again when the job is running"
                future.set_result(SubtaskAnswer(job_id="", request_id=request_id, error=error))
