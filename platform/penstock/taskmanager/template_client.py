"""The supervisor's side of a template: starts the process, requests forks, reports exits.

Every call runs on the supervisor's event loop. When the template ends, the kernel kills its children too, and each
child without a report is reported as killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock.taskmanager.template_messages import (
    MAX_PACKET_BYTES,
    Exited,
    Forked,
    ForkTemplate,
    ForkWorker,
    TemplateReady,
    TemplateReport,
    WorkerSpec,
    decode_report,
    encode,
)
from penstock.taskmanager.worker_logs import tail_of

#: The first start on a machine compiles the kernels.
READY_TIMEOUT_SECONDS = 240.0
FORK_TIMEOUT_SECONDS = 20.0
_KILLED = -9
#: One thread per library: native thread pools would be lost in a fork, and slots are the unit of parallelism.
THREAD_LIMITS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "ARROW_IO_THREADS": "1",
}


class TemplateError(PenstockError):
    """Raised if a template did not start, ended, or could not fork."""


@dataclass(slots=True)
class TemplateClient:
    """A template process, forked or started; `on_exit(name, returncode)` is called for each of its children."""

    name: str
    on_exit: Callable[[str, int], None]
    log_path: Path
    #: Called when the template has ended.
    on_gone: Callable[[TemplateClient], None] = lambda _client: None
    unsafe_threads: tuple[str, ...] = ()
    error: str = ""
    pid: int = 0
    _socket: socket.socket | None = None
    _process: subprocess.Popen[bytes] | None = None
    _ready: asyncio.Future[None] | None = None
    _forks: dict[str, asyncio.Future[int]] = field(default_factory=dict)
    _children: set[str] = field(default_factory=set)

    @property
    def alive(self) -> bool:
        """Whether the template accepts requests."""
        return self._socket is not None

    async def start_process(self, import_path: tuple[str, ...] = (), preload: tuple[str, ...] = ()) -> None:
        """Start a template as a child process and wait until it is warm.

        Raises:
            TemplateError: it ended or was not ready in time; the message has the last line of its log.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, **THREAD_LIMITS, "PYTHONUNBUFFERED": "1"}
        paths = [*import_path, *filter(None, [environment.get("PYTHONPATH", "")])]
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        arguments = [str(theirs.fileno()), str(os.getpid()), *preload]
        command = [sys.executable, "-m", "penstock.taskmanager.template", *arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - fork and exec: milliseconds
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, pass_fds=[theirs.fileno()]
            )
        theirs.close()
        self.pid = self._process.pid
        await self._wait_ready(ours)

    async def start_fork(self, base: TemplateClient, request: ForkTemplate) -> None:
        """Let `base` fork this template and wait until it has imported the job's modules.

        Raises:
            TemplateError: like `start_process`.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.pid = await base.ask(request.name, request, theirs)
            except TemplateError:
                ours.close()
                raise
        await self._wait_ready(ours)

    async def fork(self, spec: WorkerSpec, control: socket.socket) -> int:
        """Fork a worker that owns `control`; return its process id.

        Raises:
            TemplateError: the template has ended or cannot fork.
        """
        return await self.ask(spec.worker_id, ForkWorker(spec), control)

    async def ask(self, name: str, request: ForkWorker | ForkTemplate, control: socket.socket) -> int:
        """Send a request with its descriptor; return the new process's id."""
        if self._socket is None:
            msg = f"template {self.name} has ended"
            raise TemplateError(msg)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forks[name] = future
        try:
            socket.send_fds(self._socket, [encode(request)], [control.fileno()])
            return await asyncio.wait_for(future, FORK_TIMEOUT_SECONDS)
        except (OSError, TimeoutError) as error:
            msg = f"template {self.name} did not fork {name}: {str(error) or 'no answer'}"
            raise TemplateError(msg) from error
        finally:
            self._forks.pop(name, None)

    def close(self) -> None:
        """End the template and with it its children; idempotent."""
        self._gone()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()

    async def _wait_ready(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._socket = ours
        self._ready = loop.create_future()
        loop.add_reader(ours.fileno(), self._readable)
        try:
            await asyncio.wait_for(self._ready, READY_TIMEOUT_SECONDS)
        except (TimeoutError, TemplateError) as error:
            self.close()
            last = tail_of(self.log_path, 2000).strip().rpartition("\n")[2]
            msg = f"the worker template {self.name} did not start: {last or str(error) or 'not ready in time'}"
            raise TemplateError(msg, hint=f"see its log {self.log_path}") from error

    def _readable(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._gone()
                return
            self._report(decode_report(data))

    def _report(self, report: TemplateReport) -> None:
        if isinstance(report, TemplateReady):
            self.unsafe_threads, self.error = report.unsafe_threads, report.error
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
        elif isinstance(report, Forked):
            future = self._forks.get(report.name)
            if report.pid:
                self._children.add(report.name)
            if future is not None and not future.done():
                if report.pid:
                    future.set_result(report.pid)
                else:
                    future.set_exception(TemplateError(report.error))
        elif isinstance(report, Exited):
            self._children.discard(report.name)
            self.on_exit(report.name, report.returncode)

    def _gone(self) -> None:
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None
        failure = TemplateError(f"template {self.name} ended")
        for future in (self._ready, *self._forks.values()):
            if future is not None and not future.done():
                future.set_exception(failure)
        children, self._children = self._children, set()
        for child in children:
            self.on_exit(child, _KILLED)
        self.on_gone(self)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
