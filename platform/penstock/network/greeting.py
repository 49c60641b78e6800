"""How two workers prove to each other that they are of one job, before a frame of it goes either way; no I/O.

A worker's key comes from its TaskManager, made of the cluster's secret for one job (`rpc.proof.workers_key`). Three
hellos: the dialler's name and nonce; the other's name, nonce and proof; the dialler's proof. Each proves over both
names and both nonces, under a label of its own, so that what was heard on a network is of no use a second time,
towards another worker, or sent back. Used by `connection`, one `Greeting` a socket.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.network.frame import (
    PROTOCOL_VERSION,
    FrameError,
    FrameKind,
    Hello,
    Message,
    decode_hello,
    encode_message,
)

if TYPE_CHECKING:
    from penstock.config.security import Tls

NONCE_BYTES = 32
#: Longer messages come from somebody else.
MESSAGE_BYTES = 1024
_DIALLER, _DIALLED = b"penstock hello of the dialler\0", b"penstock hello of the dialled\0"


class RefusedError(FrameError):
    """Whoever is at the other end is not let in; it is told why."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What workers of one job believe each other by."""

    #: `rpc.proof.workers_key` of the job.
    key: bytes = b""
    #: Mutual TLS of connections between hosts; None: without.
    tls: Tls | None = None


NO_TRUST = Trust()


class Greeting:
    """The greeting of one connection, from either end."""

    def __init__(self, worker_id: str, key: bytes, nonce: bytes, expected: str = "") -> None:
        """`nonce` is fresh; `expected` is who was dialled, empty where we were."""
        self._worker_id, self._key, self._nonce = worker_id, key, nonce
        self._dialled = not expected
        #: Who is at the other end: before `done` only what it says.
        self.peer = expected
        self.done = False
        self._theirs = b""

    def opening(self) -> bytes:
        """Return the dialler's first frame."""
        return _encoded(Hello(self._worker_id, nonce=self._nonce))

    def take(self, message: Message) -> bytes:
        """Take a message of the other end and return the frame to answer with, which may be empty.

        Raises:
            RefusedError: it is not welcome; `refusal` makes the frame that says so.
            FrameError: it makes no sense, or the other end refuses us.
        """
        if message.kind is FrameKind.RESET:
            reason = bytes(memoryview(message.payload)).decode(errors="replace")
            raise FrameError(f"worker {self.peer} closed the connection: {reason}")
        hello = decode_hello(message)
        if hello.version != PROTOCOL_VERSION:
            told = f"version {hello.version} of the data protocol, this worker speaks {PROTOCOL_VERSION}"
            raise RefusedError(told)
        if self._dialled and not self._theirs:
            return self._answer(hello)
        if hello.worker_id != self.peer:
            raise RefusedError(f"expected worker {self.peer}, reached {hello.worker_id}")
        if not self._dialled:
            self._theirs = hello.nonce
        if not hmac.compare_digest(hello.proof, self._proof(ours=False)):
            raise RefusedError("without proof of being a worker of this job")
        self.done = True
        return b"" if self._dialled else _encoded(Hello(self._worker_id, proof=self._proof(ours=True)))

    def _answer(self, hello: Hello) -> bytes:
        if len(hello.nonce) != NONCE_BYTES:
            raise RefusedError("without proof of being a worker of this job: its nonce has another length")
        self.peer, self._theirs = hello.worker_id, hello.nonce
        return _encoded(Hello(self._worker_id, proof=self._proof(ours=True), nonce=self._nonce))

    def _proof(self, *, ours: bool) -> bytes:
        """Return what one of the two has to show: the dialler's name and nonce always come first."""
        by_dialled = self._dialled == ours
        us, them = (self._worker_id.encode(), self._nonce), (self.peer.encode(), self._theirs)
        parts = (*them, *us) if self._dialled else (*us, *them)
        data = b"".join(len(part).to_bytes(4) + part for part in parts)
        return hmac.new(self._key, (_DIALLED if by_dialled else _DIALLER) + data, hashlib.sha256).digest()


def refusal(error: RefusedError) -> bytes:
    """Return the frame that tells the other end why."""
    return encode_message(FrameKind.RESET, payload=str(error).encode())


def _encoded(hello: Hello) -> bytes:
    return encode_message(FrameKind.HELLO, payload=msgspec.msgpack.encode(hello))
