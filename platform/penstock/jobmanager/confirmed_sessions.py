"""The sessions of TaskManagers, whose end counts only while this JobManager leads.

A TaskManager leaves a leader that did not answer for a while as soon as a standby leads. The earlier leader must not
take it for lost: it would kill the other workers of its jobs, which the new leader keeps. Made by `jobmanager.main`,
between `rpc.stream` and `cluster.taskmanagers`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from penstock.core.errors import LeadershipLostError, StorageError
from penstock.jobmanager.leadership import Leadership
from penstock.rpc.messages import TaskManagerReport
from penstock.rpc.stream import Session, SessionHandler


class ConfirmedSessions:
    """A `SessionHandler` that passes everything on to another one, after a confirmation where that is due."""

    def __init__(
        self, handler: SessionHandler, leadership: Leadership, failed: Callable[[BaseException], None]
    ) -> None:
        """`failed` is called when another process leads."""
        self._handler, self._leadership, self._failed = handler, leadership, failed
        self._confirming: set[asyncio.Task[None]] = set()

    def connected(self, session: Session) -> None:
        """Pass on a registration."""
        self._handler.connected(session)

    def received(self, session: Session, report: TaskManagerReport) -> None:
        """Pass on a message."""
        self._handler.received(session, report)

    def disconnected(self, session: Session, reason: str) -> None:
        """Pass on the end of a stream, at once while no renewal of the lease is late."""
        if not self._leadership.late:
            self._handler.disconnected(session, reason)
            return
        task = asyncio.get_running_loop().create_task(self._confirm(session, reason))
        self._confirming.add(task)
        task.add_done_callback(self._confirming.discard)

    async def _confirm(self, session: Session, reason: str) -> None:
        try:
            with contextlib.suppress(StorageError):  # as far as is known, this process leads
                await self._leadership.confirm()
        except LeadershipLostError as error:
            self._failed(error)
        else:
            self._handler.disconnected(session, reason)
