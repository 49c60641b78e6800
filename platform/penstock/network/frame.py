"""Wire frames of the connection between two workers, pure: headers, split payloads, and an incremental decoder.

A frame is a 48-byte header and a payload. A message larger than `FRAME_LIMIT` spans several frames, between which
frames of other channels may come; the frames of one channel's message are in order. Used by `session`.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from penstock.core.elements import Barrier, BarrierKind, EndOfInput, Watermark, WatermarkStatus
from penstock.core.errors import PenstockError
from penstock.core.structs import prepare

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.graph.task_deployment import ChannelId

PROTOCOL_VERSION = 4
#: Largest payload of one frame: the time for which one channel can hold up the others.
FRAME_LIMIT = 1 << 20
#: Largest message: Arrow's limit for many things, and a bound for the memory that a damaged header can claim.
MESSAGE_LIMIT = (1 << 31) - 1
_SCRATCH_BYTES = 64 << 10
_DIRECT_TAIL_BYTES = 4 << 10
_ARROW_ALLOCATES_FROM = 16 << 10
# payload bytes, kind, reserved x2, job, epoch, edge, source, target, message bytes, sequence, backlog or credit
_HEADER = struct.Struct("<IBBHIIIIIIQQ")
HEADER_BYTES = _HEADER.size


class FrameError(PenstockError):
    """The bytes of a connection violate the protocol; it must be closed."""


class FrameKind(enum.IntEnum):
    """The content of a frame."""

    #: An Arrow IPC record batch message; its schema is the edge's.
    DATA = 1
    #: Watermark, status, barrier or end of input.
    EVENT = 2
    #: Bytes the receiver grants, in the backlog field; its window, if that changes, in the sequence field.
    CREDIT = 3
    #: First messages each way: name and proof of identity.
    HELLO = 4
    #: This channel (or, with a zero key, the connection) is closed; the payload is the reason.
    RESET = 5
    #: As DATA, for rows that were combined for their receiver and have other columns.
    COMBINED = 6


class ChannelKey(NamedTuple):
    """The identity of a channel on the wire."""

    job: int
    epoch: int
    edge: int
    source: int
    target: int

    @classmethod
    def of(cls, job_id: str, channel: ChannelId) -> ChannelKey:
        """Return the key of a channel of a job."""
        job = zlib.crc32(job_id.encode())
        return cls(job, channel.epoch, channel.edge, channel.source_subtask, channel.target_subtask)


NO_CHANNEL = ChannelKey(0, 0, 0, 0, 0)
_KINDS = {int(kind): kind for kind in FrameKind}
_HANDSHAKE_KINDS = frozenset({FrameKind.HELLO, FrameKind.RESET})


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Payload of the first messages each way."""

    worker_id: str
    version: int = PROTOCOL_VERSION
    #: Proof of being a worker of the same job (`handshake`).
    proof: bytes = b""
    #: The nonce that the other end's proof must contain.
    nonce: bytes = b""


prepare(Hello)


class Message(NamedTuple):
    """A complete message, assembled by the decoder."""

    kind: FrameKind
    key: ChannelKey
    sequence: int
    #: DATA: bytes still queued after it; CREDIT: bytes granted, and `sequence` is the window.
    backlog: int
    payload: Buffer

    @property
    def size(self) -> int:
        """Return the bytes of the payload."""
        return memoryview(self.payload).nbytes


@dataclass(slots=True)
class OutgoingMessage:
    """An outgoing message, split into frames without copying its payload."""

    kind: FrameKind
    key: ChannelKey
    sequence: int
    backlog: int
    payload: memoryview
    sent: int = 0

    @property
    def done(self) -> bool:
        """Return whether all bytes were taken.

        Call it after the first frame (a message without payload is one frame).
        """
        return self.sent >= len(self.payload)

    def next_frame(self, limit: int = FRAME_LIMIT) -> list[Buffer]:
        """Return the header and the payload part of the next frame."""
        total = len(self.payload)
        length = min(limit, total - self.sent)
        header = _HEADER.pack(length, self.kind, 0, 0, *self.key, total, self.sequence, self.backlog)
        if length == 0:
            return [header]
        part = self.payload if length == total else self.payload[self.sent : self.sent + length]
        self.sent += length
        return [header, part]


def encode_message(
    kind: FrameKind, key: ChannelKey = NO_CHANNEL, *, sequence: int = 0, backlog: int = 0, payload: bytes = b""
) -> bytes:
    """Return a small message as one frame (credit, hello, reset)."""
    header = _HEADER.pack(len(payload), kind, 0, 0, *key, len(payload), sequence, backlog)
    return header + payload


class _Partial:
    """An incomplete message."""

    __slots__ = ("backlog", "filled", "key", "kind", "payload", "sequence", "view")

    def __init__(self, kind: FrameKind, key: ChannelKey, total: int, sequence: int, backlog: int) -> None:
        self.kind, self.key, self.sequence, self.backlog = kind, key, sequence, backlog
        # Arrow's allocator aligns for kernels and does not clear memory; for small messages a bytearray costs less
        self.payload: Any = pa.allocate_buffer(total) if total >= _ARROW_ALLOCATES_FROM else bytearray(total)
        self.view = memoryview(self.payload).cast("B")
        self.filled = 0


class FrameDecoder:
    """Turns received bytes into messages; large payloads are received directly into their own memory."""

    def __init__(self, handshake_bytes: int = 0) -> None:
        """Accept only greetings of at most `handshake_bytes`, if given, one per call, until `trust`."""
        self._handshake_bytes = handshake_bytes
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._start = self._end = 0
        #: The kind is part of the key: a reset may come between the frames of its channel's message.
        self._partials: dict[tuple[FrameKind, ChannelKey], _Partial] = {}
        self._current: _Partial | None = None
        #: Bytes of the current frame's payload that are still missing.
        self._missing = 0

    @property
    def idle(self) -> bool:
        """Return whether no message is incomplete."""
        return self._start == self._end and not self._partials

    def trust(self) -> None:
        """Accept messages of every kind and size from now on."""
        self._handshake_bytes = 0

    def buffers(self) -> list[memoryview]:
        """Return the buffers for the next bytes, in order (for `recvmsg_into`)."""
        if self._start:  # at most a part of a header is left
            rest = self._end - self._start
            self._scratch[:rest] = bytes(self._scratch[self._start : self._end])
            self._start, self._end = 0, rest
        partial = self._current
        if partial is None:
            return [self._scratch[self._end :]]
        direct = partial.view[partial.filled : partial.filled + self._missing]
        return [direct, self._scratch[:_DIRECT_TAIL_BYTES]]

    def received(self, count: int) -> list[Message]:
        """Record that `count` bytes were put into `buffers()`; return the messages that are complete now.

        Before `trust` it returns at most one message, because messages that only a worker may send can follow: call
        again with 0 until there is none.

        Raises:
            FrameError: the bytes are not frames of this protocol.
        """
        messages: list[Message] = []
        partial = self._current
        if partial is not None:
            direct = min(count, self._missing)
            partial.filled += direct
            self._missing -= direct
            count -= direct
            if self._missing == 0:
                self._finish_frame(partial, messages)
        self._end += count
        self._parse(messages)
        return messages

    def feed(self, data: Buffer) -> list[Message]:
        """Take bytes that are already elsewhere in memory (tests, the simulator)."""
        view = memoryview(data).cast("B")
        messages: list[Message] = []
        while len(view):
            taken = 0
            for buffer in self.buffers():
                part = view[taken : taken + len(buffer)]
                buffer[: len(part)] = part
                taken += len(part)
            messages += self.received(taken)
            view = view[taken:]
        return messages

    def _parse(self, messages: list[Message]) -> None:
        scratch = self._scratch
        while self._end - self._start >= HEADER_BYTES and not (messages and self._handshake_bytes):
            length, kind_code, _, _, *ids, total, sequence, backlog = _HEADER.unpack_from(scratch, self._start)
            kind = _KINDS.get(kind_code)
            if kind is None or length > total or total > MESSAGE_LIMIT:
                raise FrameError(f"invalid frame header: kind {kind_code}, {length} of {total} bytes")
            key = ChannelKey(*ids)
            if self._handshake_bytes and not (
                kind in _HANDSHAKE_KINDS and key == NO_CHANNEL and length == total <= self._handshake_bytes
            ):
                raise FrameError(
                    f"{kind.name}, {length} of {total} bytes, from a peer that has not proved its identity"
                )
            self._start += HEADER_BYTES
            available = self._end - self._start
            if length == total <= available and (kind, key) not in self._partials:
                payload = bytes(scratch[self._start : self._start + length])
                self._start += length
                messages.append(Message(kind, key, sequence, backlog, payload))
                continue
            partial = self._partials.get((kind, key))
            if partial is None:
                partial = self._partials[kind, key] = _Partial(kind, key, total, sequence, backlog)
            elif partial.sequence != sequence or partial.filled + length > total or len(partial.view) != total:
                raise FrameError(f"frame of message {sequence} inside message {partial.sequence} of channel {key}")
            elif length == 0:
                raise FrameError(f"empty frame inside message {sequence} of channel {key}")
            taken = min(available, length)
            partial.view[partial.filled : partial.filled + taken] = scratch[self._start : self._start + taken]
            partial.filled += taken
            self._start += taken
            self._missing = length - taken
            if self._missing:
                self._current = partial
                break
            self._finish_frame(partial, messages)
        if self._start == self._end:
            self._start = self._end = 0

    def _finish_frame(self, partial: _Partial, messages: list[Message]) -> None:
        self._current = None
        if partial.filled == len(partial.view):
            del self._partials[partial.kind, partial.key]
            partial.view.release()
            messages.append(Message(partial.kind, partial.key, partial.sequence, partial.backlog, partial.payload))


def decode_hello(message: Message) -> Hello:
    """Return the sender of the first message of a connection, as it claims.

    Raises:
        FrameError: it is another message, or cannot be read.
    """
    if message.kind is not FrameKind.HELLO:
        raise FrameError(f"the first message is {message.kind.name}, not HELLO")
    try:
        return msgspec.msgpack.decode(message.payload, type=Hello)
    except msgspec.DecodeError as error:
        raise FrameError(f"the hello cannot be read: {error}") from error


Event = Watermark | WatermarkStatus | Barrier | EndOfInput
_WATERMARK, _STATUS, _BARRIER, _END = range(4)


def encode_event(event: Event) -> bytes:
    """Return an event's payload."""
    match event:
        case Watermark(timestamp):
            return msgspec.msgpack.encode((_WATERMARK, timestamp))
        case WatermarkStatus(idle):
            return msgspec.msgpack.encode((_STATUS, idle))
        case Barrier(checkpoint_id, kind):
            return msgspec.msgpack.encode((_BARRIER, checkpoint_id, kind.value))
        case EndOfInput():
            return msgspec.msgpack.encode((_END,))


def decode_event(payload: Buffer) -> Event:
    """Invert `encode_event`.

    Raises:
        FrameError: not an event of this version.
    """
    try:
        tag, *values = msgspec.msgpack.decode(payload)
        match tag:
            case 0:
                return Watermark(*values)
            case 1:
                return WatermarkStatus(*values)
            case 2:
                return Barrier(values[0], BarrierKind(values[1]))
            case 3:
                return EndOfInput()
    except (msgspec.DecodeError, ValueError, TypeError, IndexError) as error:
        raise FrameError(f"an event cannot be read: {error}") from error
    raise FrameError(f"unknown event {tag!r}")
