"""The control socket of a worker: frames, the worker's end with its loop, the supervisor's end with the process.

A worker has ended when its control socket is read to the end and its exit status is known. Its last reports are
therefore relayed before its end. A peer that sends invalid data or does not read in time causes an error, never an
endless wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.metrics.process import thread_dump
from penstock.rpc.messages import (
    DumpThreads,
    LeaseRenewed,
    NetworkNeed,
    SampleStacks,
    SubtaskAnswer,
    WorkerMessage,
    decode_worker_command,
    encode,
)
from penstock.taskmanager.process_control import arm_lease, is_stopped, resident_bytes
from penstock.taskmanager.template_messages import WorkerSpec

if TYPE_CHECKING:
    from penstock.task.drive.runtime import TaskRuntime
    from penstock.task.drive.stack_sampler import StackSampler

_LENGTH = struct.Struct("<I")
#: Deployments and acks contain small state; a larger message is a bug.
MAX_FRAME_BYTES = 256 << 20
#: Bytes that a worker asks for at a time: usually all commands that have arrived.
_RECEIVED_BYTES = 8 << 10
#: A supervisor that has not read for this long has ended or hangs; the worker's lease would soon end too.
SEND_DEADLINE_SECONDS = 10.0
#: A worker's answer to every lease renewal, which shows that its control loop runs.
LEASE_ACK = b""
#: First byte of a worker's `NetworkNeed`, which is for its supervisor; it begins no encoded message.
NETWORK_NEED = b"\x00"


#: Metrics are sent with the first lease renewal after this time.
_METRICS_INTERVAL_MS = 1000.0


class ControlClosedError(PenstockError):
    """Raised if the other end of the control socket has closed it."""


def frame(data: bytes) -> bytes:
    """Return `data` prefixed by its length.

    Raises:
        ValueError: longer than MAX_FRAME_BYTES.
    """
    if len(data) > MAX_FRAME_BYTES:
        msg = f"a control message of {len(data)} bytes is larger than {MAX_FRAME_BYTES}"
        raise ValueError(msg)
    return _LENGTH.pack(len(data)) + data


class FrameReader(asyncio.Protocol):
    """The supervisor's end: calls `on_message` for each message; `ended` is set at the end of the stream.

    An incomplete message counts as the end, and so does a length beyond the limit.
    """

    def __init__(self, on_message: Callable[[bytes], None]) -> None:
        """Start without bytes; made on the event loop."""
        self._on_message = on_message
        self._unread = bytearray()
        self._transport: asyncio.BaseTransport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass on the messages that are complete."""
        unread, start = self._unread, 0
        unread += data
        while len(unread) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(unread, start)
            if length > MAX_FRAME_BYTES:
                self._end()
                return
            stop = start + _LENGTH.size + length
            if stop > len(unread):
                break
            self._on_message(bytes(unread[start + _LENGTH.size : stop]))
            start = stop
        del unread[:start]

    def eof_received(self) -> bool:
        """Keep the socket open for writing."""
        self._end()
        return True

    def connection_lost(self, _: Exception | None) -> None:
        """Count a broken connection as the end."""
        self._end()

    def _end(self) -> None:
        self._unread.clear()
        if isinstance(self._transport, asyncio.ReadTransport) and not self._transport.is_closing():
            self._transport.pause_reading()
        if not self.ended.done():
            self.ended.set_result(None)


class WorkerControl:
    """The worker's end: one thread receives, any thread sends."""

    def __init__(self, control: socket.socket) -> None:
        """Take over a connected stream socket."""
        self._socket = control
        self._socket.setblocking(True)
        # A kernel send timeout: receiving stays without a timeout.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(SEND_DEADLINE_SECONDS), 0))
        self._send_lock = threading.Lock()
        #: Bytes that were received but not returned: commands sent together take one call of the system.
        self._unread = bytearray()

    def receive(self) -> bytes:
        """Wait for the next message; the kernel lease limits the wait for a silent supervisor.

        Raises:
            ControlClosedError: the supervisor has closed the socket.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            msg = f"control frame of {length} bytes"
            raise ControlClosedError(msg, hint="the supervisor uses another protocol")
        return self._exactly(length)

    def send(self, data: bytes) -> None:
        """Send a message; after the return it is in the kernel and arrives even if this process is killed.

        Raises:
            ControlClosedError: the supervisor has closed the socket or has not read for SEND_DEADLINE_SECONDS.
        """
        try:
            with self._send_lock:
                self._socket.sendall(frame(data))
        except OSError as error:
            msg = f"cannot send a report to the supervisor: {error}"
            raise ControlClosedError(msg) from error

    def report(self, message: WorkerMessage) -> None:
        """Send a message of any thread; end the process if the supervisor has gone: no work may have an effect then."""
        self._send_or_exit(encode(message))

    def tell_need(self, need: NetworkNeed) -> None:
        """Send a message to the supervisor itself; end the process if it has gone."""
        self._send_or_exit(NETWORK_NEED + encode(need))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send_or_exit(self, data: bytes) -> None:
        try:
            self.send(data)
        except ControlClosedError as error:
            sys.stderr.write(f"penstock worker: {error}\n")
            sys.stderr.flush()
            os._exit(0)

    def _exactly(self, count: int) -> bytes:
        while len(self._unread) < count:
            try:
                part = self._socket.recv(max(_RECEIVED_BYTES, min(count - len(self._unread), 1 << 20)))
            except OSError as error:
                msg = f"the control socket failed: {error}"
                raise ControlClosedError(msg) from error
            if not part:
                msg = "the supervisor closed the control socket"
                raise ControlClosedError(msg)
            self._unread += part
        taken = bytes(self._unread[:count])
        del self._unread[:count]
        return taken


class ControlLoop:
    """The worker's main thread: reads commands, renews the kernel lease, passes other commands to the `TaskRuntime`."""

    def __init__(
        self, spec: WorkerSpec, clock: Clock, control: WorkerControl, runtime: TaskRuntime, sampler: StackSampler
    ) -> None:
        """Nothing is read before `run`."""
        self._spec = spec
        self._clock = clock
        self._control = control
        self._runtime = runtime
        self._sampler = sampler
        self._metrics_sent_ms = clock.monotonic_ms()

    def run(self) -> NoReturn:
        """Run until ControlClosedError."""
        while True:
            command = decode_worker_command(self._control.receive())
            if isinstance(command, LeaseRenewed):
                self._renew(command)
                self._control.send(LEASE_ACK)
                self._send_metrics()
                self._runtime.release()
            if isinstance(command, SampleStacks):
                self._sampler.ask(command)
            elif isinstance(command, DumpThreads):
                self._dump_threads(command)
            else:
                self._runtime.handle(command)

    def _renew(self, command: LeaseRenewed) -> None:
        """Extend the lease; a renewal that was read after its own end is ignored."""
        remaining = float(self._spec.lease_ms)
        if command.expires_monotonic_ms:
            remaining = min(remaining, command.expires_monotonic_ms - self._clock.monotonic_ms())
        if remaining > 0:
            arm_lease(remaining)

    def _dump_threads(self, command: DumpThreads) -> None:
        answer = {"threads": [list(thread) for thread in thread_dump()]}
        self._control.send(encode(SubtaskAnswer(job_id=command.job_id, request_id=command.request_id, answer=answer)))

    def _send_metrics(self) -> None:
        now = self._clock.monotonic_ms()
        if now - self._metrics_sent_ms < _METRICS_INTERVAL_MS:
            return
        self._metrics_sent_ms = now
        times = os.times()
        worker = {
            "residentMemoryBytes": float(resident_bytes(os.getpid())),
            "processCpuMs": (times.user + times.system) * 1000.0,
        }
        for metrics in self._runtime.metrics(worker):
            self._control.send(encode(metrics))


#: A worker with more unread bytes than this is killed.
MAX_UNREAD_BYTES = 256 << 20
#: Time limit between the two signs of a worker's end.
_END_GRACE_SECONDS = 2.0
_KILLED = -int(signal.SIGKILL)
#: How often, and how long after the kill, the threads of a worker are looked at.
_STOP_POLL_SECONDS, _STOP_SECONDS = 0.003, 10.0
#: A worker that is silent for its lease plus this margin must be suspended, because its timer would have ended it
#: otherwise. It is killed.
SILENCE_MARGIN_MS = 1000


async def stops(is_stopped: Callable[[], bool], ends_within: Callable[[float], Awaitable[bool]]) -> bool:
    """Wait until a killed process has stopped; return False if it ended before, or did not stop in time.

    `ends_within(seconds)` waits for its end and returns whether it has ended.
    """
    for _ in range(round(_STOP_SECONDS / _STOP_POLL_SECONDS)):
        if is_stopped():
            return True
        if await ends_within(_STOP_POLL_SECONDS):
            return False
    return False


@dataclass(slots=True)
class WorkerProcess:
    """A worker from its request until its end."""

    spec: WorkerSpec
    on_report: Callable[[WorkerProcess, bytes], None]
    on_end: Callable[[WorkerProcess, int], None]
    #: Called once after a kill if its threads have stopped before its end.
    on_stop: Callable[[WorkerProcess], None]
    #: Called when it is to be killed.
    on_kill: Callable[[WorkerProcess], None]
    pid: int = 0
    #: Memory that it held at the last check before its kill: the kernel does not show it while it is freed.
    held_bytes: int = 0
    #: Set before it is killed, with the reason if that is a failure.
    stopping: bool = False
    kill_reason: str = ""
    _pidfd: int = -1
    _ours: socket.socket | None = None
    _writer: asyncio.WriteTransport | None = None
    #: Frames that are written together: once the socket is open, then in each turn of the event loop.
    _backlog: list[bytes] = field(default_factory=list)
    _exit: asyncio.Future[int] | None = None
    _reading: asyncio.Task[None] | None = None
    _stop: asyncio.Task[None] | None = None
    #: Time of its last message (event loop seconds); None before the first.
    _heard: float | None = None

    @property
    def worker_id(self) -> str:
        """The id that the JobManager assigned."""
        return self.spec.worker_id

    def open_control(self) -> socket.socket:
        """Create the control socket and start reading; return the worker's end, to be passed on and then closed."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._exit = loop.create_future()
        self._reading = loop.create_task(self._read())
        return theirs

    def started(self, pid: int) -> None:
        """Take the id of the started process."""
        self.pid = pid
        with contextlib.suppress(ProcessLookupError, AttributeError):
            self._pidfd = os.pidfd_open(pid)
        if self.stopping:
            self.kill()

    def send(self, command: bytes) -> None:
        """Send a command; keep it until the socket is open."""
        if self._writer is None:
            self._backlog.append(frame(command))
            return
        if self._writer.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.kill("it did not read its commands and was ended")
            return
        silent_ms = 0.0 if self._heard is None else (asyncio.get_running_loop().time() - self._heard) * 1000
        if silent_ms > self.spec.lease_ms + SILENCE_MARGIN_MS:
            self.kill(f"it did not answer for {silent_ms / 1000:.0f} s and was ended")
            return
        self._backlog.append(frame(command))
        if len(self._backlog) == 1:
            asyncio.get_running_loop().call_soon(self._write, self._writer)

    def _write(self, writer: asyncio.WriteTransport) -> None:
        frames, self._backlog = self._backlog, []
        writer.write(b"".join(frames))

    def kill(self, reason: str = "") -> None:
        """Kill exactly this process (a pid may be reused, a pidfd never is)."""
        self.stopping = True
        self.kill_reason = self.kill_reason or reason
        self.on_kill(self)
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif self._exit is not None and not self._exit.done():
                os.kill(self.pid, signal.SIGKILL)
        if self._exit is not None and self._stop is None:
            self._stop = asyncio.get_running_loop().create_task(self._report_stop(self._exit))

    def exited(self, returncode: int) -> None:
        """Take the exit status."""
        if self._exit is not None and not self._exit.done():
            self._exit.set_result(returncode)

    async def ended(self) -> None:
        """Wait until the worker has ended (with a deadline; the process was killed before)."""
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=2 * _END_GRACE_SECONDS)
            self._reading.cancel()
        if self._stop is not None:
            self._stop.cancel()

    async def _report_stop(self, end: asyncio.Future[int]) -> None:
        async def ends_within(seconds: float) -> bool:
            await asyncio.wait((end,), timeout=seconds)
            return end.done()

        if await stops(partial(is_stopped, self.pid), ends_within) and not end.done():
            self.on_stop(self)

    async def _read(self) -> None:
        assert self._ours is not None  # noqa: S101 - set by open_control, which starts this task
        assert self._exit is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        writer, reader = await loop.create_connection(lambda: FrameReader(self._relay), sock=self._ours)
        self._writer = writer
        self._write(writer)
        drained = reader.ended
        await asyncio.wait((drained, self._exit), return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            # The socket ended first: a worker without it has no work left.
            await asyncio.wait((self._exit,), timeout=_END_GRACE_SECONDS / 2)
            if not self._exit.done():
                self.kill()
                await asyncio.wait((self._exit,), timeout=_END_GRACE_SECONDS)
        else:
            await asyncio.wait((drained,), timeout=_END_GRACE_SECONDS)
        writer.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self.on_end(self, self._exit.result() if self._exit.done() else _KILLED)

    def _relay(self, data: bytes) -> None:
        self._heard = asyncio.get_running_loop().time()
        if data != LEASE_ACK:
            self.on_report(self, data)
