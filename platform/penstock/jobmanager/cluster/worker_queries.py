"""Questions to running subtasks and workers, and who waits for answers: bounded in number and time; on the event loop.

Held by `jobmanager.cluster.taskmanagers`, which brings the answers; asked by `jobmanager.observe.live_state` and
`jobmanager.observe.profiling`. The job's master knows nothing of them: no question can change what it decides.
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

#: More open questions than this are refused.
_MOST_OPEN = 4096
#: How long a subtask may take: it answers between two batches.
_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Worker:
    """Where a subtask runs."""

    taskmanager_id: str
    worker_id: str


class Questions:
    """All that are open."""

    def __init__(
        self,
        send: Callable[[str, tuple[str, ...], WorkerCommand], None],
        *,
        deadline_s: float = _DEADLINE_S,
        most_open: int = _MOST_OPEN,
    ) -> None:
        """`send(taskmanager, workers, command)` relays, or drops what has no way."""
        self._send = send
        self._deadline_s, self._most_open = deadline_s, most_open
        self._number = 0
        self._open: dict[str, tuple[str, asyncio.Future[SubtaskAnswer]]] = {}

    async def ask(self, worker: Worker, question: AskSubtask | SampleStacks | DumpThreads) -> dict[str, Any]:
        """Return the answer of the subtask that `question` names, or of the worker as a whole, as JSON values.

        Raises:
            NotFoundError, UsageError: what the subtask says is wrong with the question.
            PenstockError: it does not run any more, does not answer in time, or too much is asked at once.
        """
        if len(self._open) >= self._most_open:
            msg = f"{self._most_open} questions to running jobs are open"
            raise PenstockError(msg, hint="ask again when they are answered")
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
            way = "it answers between two batches: a function of the job takes long, or the job is restarting"
            raise PenstockError(msg, hint=way) from error
        finally:
            del self._open[request_id]
        if found.error:
            kinds: dict[str, type[PenstockError]] = {"not-found": NotFoundError, "usage": UsageError}
            raise kinds.get(found.kind, PenstockError)(found.error)
        return found.answer

    def answered(self, answer: SubtaskAnswer) -> None:
        """An answer has come; nobody may wait for it any more."""
        _, future = self._open.get(answer.request_id, ("", None))
        if future is not None and not future.done():
            future.set_result(answer)

    def lost(self, worker_id: str) -> None:
        """The worker is gone: it will answer nothing."""
        for request_id, (asked, future) in self._open.items():
            if asked == worker_id and not future.done():
                error = f"worker {worker_id} was lost while it was asked; ask again when the job runs"
                future.set_result(SubtaskAnswer(job_id="", request_id=request_id, error=error))
