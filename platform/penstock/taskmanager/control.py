"""Frames on the control socket between supervisor and worker: four bytes of length, then one encoded message.

The worker's end blocks, with a deadline on writes (`WorkerControl`). The supervisor's end uses asyncio streams
(`read_frame`, `frame`). A peer that sends invalid data or does not read in time causes an error, never an endless wait.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

from penstock.core.errors import PenstockError

_LENGTH = struct.Struct("<I")
#: Deployments and acks contain small state; a larger message is a bug.
MAX_FRAME_BYTES = 256 << 20
#: A supervisor that has not read for this long has ended or hangs; the worker's lease would soon end too.
SEND_DEADLINE_SECONDS = 10.0
#: A worker's answer to every lease renewal, which shows that its control loop runs.
SIGN_OF_LIFE = b""


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


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next message, or None at the end of the stream (an incomplete message counts as the end)."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            return None
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


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
