"""Messages between the processes of a TaskManager: frames of supervisor and worker, packets of supervisor and template.

Used by `supervisor`, `worker_process`, `template`, `template_client` and `worker`. A peer that sends invalid data
or does not read in time causes an error, never an endless wait.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from penstock.core.errors import PenstockError

_LENGTH = struct.Struct("<I")
#: Deployments and acks contain small state; a larger message is a bug.
MAX_FRAME_BYTES = 256 << 20
#: A supervisor that has not read for this long has ended or hangs; the worker's lease would soon end too.
SEND_DEADLINE_SECONDS = 10.0
#: A worker's answer to every lease renewal, which shows that its control loop runs.
LEASE_ACK = b""


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

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._socket.recv(min(count - len(parts), 1 << 20))
            except OSError as error:
                msg = f"the control socket failed: {error}"
                raise ControlClosedError(msg) from error
            if not part:
                msg = "the supervisor closed the control socket"
                raise ControlClosedError(msg)
            parts += part
        return bytes(parts)


#: Packet size limit; requests contain only names and paths.
MAX_PACKET_BYTES = 128 << 10
#: Passes the key (hex) to a spawned worker, because all users can read a process's arguments.
KEY_VARIABLE = "PENSTOCK_WORKER_KEY"


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a worker, needed from its first instruction."""

    worker_id: str
    job_id: str
    taskmanager_id: str
    slot: int
    managed_memory_bytes: int
    network_memory_bytes: int
    #: Memory above which the worker is killed.
    memory_limit_bytes: int
    #: Full lease, which starts when the worker reports that it is ready.
    lease_ms: int
    log_path: str
    #: Listen addresses of its network (`network.sockets.listeners`): a short folder, optionally with a TCP address.
    listen: str
    #: Folder for this worker's spilled state; the supervisor deletes it when the worker has ended.
    state_dir: str
    #: Folder of the copies of the job's checkpoint files on this TaskManager (`checkpoint.local_copies`).
    copies_dir: str
    #: Key with which workers of this job authenticate to each other; never a process argument.
    key: bytes = b""
    #: The cluster's certificate, key and CA, for connections to other hosts; empty: no TLS.
    certificates: tuple[str, ...] = ()
    log_format: Literal["text", "json"] = "text"
    #: Prepended to `sys.path`: installed requirements, then the job's folders.
    import_path: tuple[str, ...] = ()
    #: For display.
    job_name: str = ""
    #: It was started beside the worker that it replaces.
    beside: bool = False


class ForkWorker(msgspec.Struct, frozen=True, tag=True):
    """Fork a worker; the descriptor is its control socket. Answered by Forked."""

    spec: WorkerSpec


class ForkTemplate(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Fork a template that also imports a job's modules; it sends TemplateReady on the descriptor, its own socket."""

    name: str
    import_path: tuple[str, ...]
    preload: tuple[str, ...]


TemplateRequest = ForkWorker | ForkTemplate


class TemplateReady(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The template has imported and compiled everything."""

    pid: int
    #: Threads that make forking unsafe; this job's workers are then spawned.
    unsafe_threads: tuple[str, ...] = ()
    #: Why a module could not be imported; workers will fail with the same error where they need it.
    error: str = ""


class Forked(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A process was forked; on failure `pid` is 0 and `error` is set."""

    name: str
    pid: int
    error: str = ""


class Exited(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A forked process ended and was reaped; `returncode` as in `Popen.returncode`."""

    name: str
    pid: int
    returncode: int


TemplateReport = TemplateReady | Forked | Exited

_requests: msgspec.msgpack.Decoder[TemplateRequest] = msgspec.msgpack.Decoder(TemplateRequest)
_reports: msgspec.msgpack.Decoder[TemplateReport] = msgspec.msgpack.Decoder(TemplateReport)


def encode(message: TemplateRequest | TemplateReport | WorkerSpec) -> bytes:
    """Return the encoded message."""
    return msgspec.msgpack.encode(message)


def decode_request(data: bytes) -> TemplateRequest:
    """Decode a message to a template."""
    return _requests.decode(data)


def decode_report(data: bytes) -> TemplateReport:
    """Decode a message of a template."""
    return _reports.decode(data)


def decode_spec(data: bytes) -> WorkerSpec:
    """Decode the spec of a spawned worker."""
    return msgspec.msgpack.decode(data, type=WorkerSpec)
