"""Frames on the control socket between supervisor and worker: four bytes of length, then one encoded message.

The worker's end is blocking with a deadline on writes (`WorkerControl`); the supervisor's end are asyncio streams
(`read_frame`, `frame`). A peer that sends nonsense or does not read in time is an error, never a wait without end.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

from penstock.core.errors import PenstockError

_LENGTH = struct.Struct("<I")
#: Deployments and acks carry small state inline; more than this is a fault.
MAX_FRAME_BYTES = 256 << 20
#: A supervisor that has not read for this long is gone or stuck; the worker's lease would end it soon anyway.
SEND_DEADLINE_SECONDS = 10.0
#: A worker's answer to every renewal of its lease: its control loop runs.
SIGN_OF_LIFE = b""


class ControlClosedError(PenstockError):
    """The other end of the control socket is gone."""


def frame(data: bytes) -> bytes:
    """Return `data` with its length in front.

    Raises:
        ValueError: longer than MAX_FRAME_BYTES.
    """
    if len(data) > MAX_FRAME_BYTES:
        msg = f"a control message of {len(data)} bytes is larger than {MAX_FRAME_BYTES}"
        raise ValueError(msg)
    return _LENGTH.pack(len(data)) + data


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next message, or None at the end of the stream (a message cut short counts as the end)."""
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
        # A send time-out of the kernel's, so that receiving stays without one.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(SEND_DEADLINE_SECONDS), 0))
        self._send_lock = threading.Lock()

    def receive(self) -> bytes:
        """Block for the next message; the kernel lease bounds the life of a worker whose supervisor says nothing.

        Raises:
            ControlClosedError: the supervisor is gone.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            msg = f"control frame of {length} bytes"
            raise ControlClosedError(msg, hint="the supervisor speaks another protocol")
        return self._exactly(length)

    def send(self, data: bytes) -> None:
        """Write one message; when this returns, the kernel has it, and it arrives even if this process is killed now.

        Raises:
            ControlClosedError: the supervisor is gone or has not read for SEND_DEADLINE_SECONDS.
        """
        try:
            with self._send_lock:
                self._socket.sendall(frame(data))
        except OSError as error:
            msg = f"the supervisor does not take reports: {error}"
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
