"""One slot worker as its supervisor sees it: control socket, process id, exit; no decisions.

A worker is over when both its control socket is read to the end and its exit status is known, so that what it
reported last is passed on before the news of its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.taskmanager.control import SIGN_OF_LIFE, frame, read_frame
from penstock.taskmanager.template_messages import WorkerSpec

#: A worker that lets this much pile up does not read and is killed.
MAX_UNREAD_BYTES = 256 << 20
#: How long the other half of a worker's end may take once one half is known.
_END_GRACE_SECONDS = 2.0
_KILLED = -int(signal.SIGKILL)
#: A worker that answers nothing for its lease and this much more is stopped (its timer would have ended it) and killed.
SILENCE_MARGIN_MS = 1000


@dataclass(slots=True)
class WorkerProcess:
    """A worker from the moment it was asked for until it is gone."""

    spec: WorkerSpec
    on_report: Callable[[WorkerProcess, bytes], None]
    on_end: Callable[[WorkerProcess, int], None]
    pid: int = 0
    #: Set when it is to be killed, with the reason if that is a failure.
    stopping: bool = False
    kill_reason: str = ""
    _pidfd: int = -1
    _ours: socket.socket | None = None
    _writer: asyncio.StreamWriter | None = None
    _backlog: list[bytes] = field(default_factory=list)
    _exit: asyncio.Future[int] | None = None
    _reading: asyncio.Task[None] | None = None
    #: When it was last heard, in seconds of the event loop; None before its first message.
    _heard: float | None = None

    @property
    def worker_id(self) -> str:
        """The id the JobManager gave it."""
        return self.spec.worker_id

    def open_control(self) -> socket.socket:
        """Make the control socket and start to read; returns the worker's end, to be passed on and then closed."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._exit = loop.create_future()
        self._reading = loop.create_task(self._read())
        return theirs

    def started(self, pid: int) -> None:
        """The process exists."""
        self.pid = pid
        with contextlib.suppress(ProcessLookupError, AttributeError):
            self._pidfd = os.pidfd_open(pid)
        if self.stopping:
            self.kill()

    def send(self, command: bytes) -> None:
        """Pass a command on; kept until the socket is open."""
        if self._writer is None:
            self._backlog.append(command)
            return
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.kill(f"worker {self.worker_id} does not read its commands")
            return
        silent_ms = 0.0 if self._heard is None else (asyncio.get_running_loop().time() - self._heard) * 1000
        if silent_ms > self.spec.lease_ms + SILENCE_MARGIN_MS:
            self.kill(f"worker {self.worker_id} has not answered for {silent_ms / 1000:.0f} s")
            return
        self._writer.write(frame(command))

    def kill(self, reason: str = "") -> None:
        """SIGKILL, exactly this process (a pid may be somebody else's by now, a pidfd never)."""
        self.stopping = True
        self.kill_reason = self.kill_reason or reason
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif self._exit is not None and not self._exit.done():
                os.kill(self.pid, signal.SIGKILL)

    def exited(self, returncode: int) -> None:
        """Its exit status is known."""
        if self._exit is not None and not self._exit.done():
            self._exit.set_result(returncode)

    async def ended(self) -> None:
        """Wait until it is over (with a deadline; the process itself was killed before)."""
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=2 * _END_GRACE_SECONDS)
            self._reading.cancel()

    async def _read(self) -> None:
        assert self._ours is not None  # noqa: S101 - set by open_control, which starts this task
        assert self._exit is not None  # noqa: S101
        reader, writer = await asyncio.open_connection(sock=self._ours)
        self._writer = writer
        for command in self._backlog:
            writer.write(frame(command))
        self._backlog.clear()
        drained = asyncio.ensure_future(self._relay(reader))
        await asyncio.wait((drained, self._exit), return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            # The socket ended first: a worker that closed it without ending has no business left.
            await asyncio.wait((self._exit,), timeout=_END_GRACE_SECONDS / 2)
            if not self._exit.done():
                self.kill()
                await asyncio.wait((self._exit,), timeout=_END_GRACE_SECONDS)
        else:
            await asyncio.wait((drained,), timeout=_END_GRACE_SECONDS)
            drained.cancel()
        writer.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self.on_end(self, self._exit.result() if self._exit.done() else _KILLED)

    async def _relay(self, reader: asyncio.StreamReader) -> None:
        while (data := await read_frame(reader)) is not None:
            self._heard = asyncio.get_running_loop().time()
            if data != SIGN_OF_LIFE:
                self.on_report(self, data)
