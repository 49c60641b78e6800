"""The greeting by which two workers prove that they belong to one job, before any other frame; no I/O.

The TaskManager derives a worker's key from the cluster's secret for one job (`rpc.authentication.workers_key`). Three
hellos: the dialler's name and nonce; the other's name, nonce and proof; the dialler's proof. Each proof covers both
names and both nonces, under a label for its direction. So a recorded proof cannot be replayed, used towards another
worker, or sent back. Used by `connection`, one `Handshake` per socket.
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
#: Longer messages are not greetings.
MESSAGE_BYTES = 1024
_DIALLER, _DIALLED = b"penstock hello of the dialler\0", b"penstock hello of the dialled\0"


class RefusedError(FrameError):
    """The peer is not accepted; it receives the reason."""


@dataclass(frozen=True, slots=True)
class Trust:
    """The credentials by which workers of one job trust each other."""

    #: `rpc.authentication.workers_key` of the job.
    key: bytes = b""
    #: Mutual TLS of connections between hosts; None: without.
    tls: Tls | None = None


NO_TRUST = Trust()


class Handshake:
    """The handshake of one connection, from either end."""

    def __init__(self, worker_id: str, key: bytes, nonce: bytes, expected: str = "") -> None:
        """Start a handshake with a fresh `nonce`; `expected` is the dialled worker, empty at the dialled end."""
        self._worker_id, self._key, self._nonce = worker_id, key, nonce
        self._dialled = not expected
        #: The peer's name; before `done` only a claim.
        self.peer = expected
        self.done = False
        self._peer_nonce = b""

    def opening(self) -> bytes:
        """Return the dialler's first frame."""
        return _encoded(Hello(self._worker_id, nonce=self._nonce))

    def take(self, message: Message) -> bytes:
        """Take a message of the other end and return the answering frame, which may be empty.

        Raises:
            RefusedError: the peer is not accepted; `refusal` makes the frame that says so.
            FrameError: the message is invalid, or the other end refuses this one.
        """
        if message.kind is FrameKind.RESET:
            reason = bytes(memoryview(message.payload)).decode(errors="replace")
            raise FrameError(f"worker {self.peer} closed the connection: {reason}")
        hello = decode_hello(message)
        if hello.version != PROTOCOL_VERSION:
            mismatch = (
                f"the peer speaks version {hello.version} of the data protocol, this worker version {PROTOCOL_VERSION}"
            )
            raise RefusedError(mismatch)
        if self._dialled and not self._peer_nonce:
            return self._answer(hello)
        if hello.worker_id != self.peer:
            raise RefusedError(f"expected worker {self.peer}, reached {hello.worker_id}")
        if not self._dialled:
            self._peer_nonce = hello.nonce
        if not hmac.compare_digest(hello.proof, self._proof(ours=False)):
            raise RefusedError("the peer did not prove that it is a worker of this job")
        self.done = True
        return b"" if self._dialled else _encoded(Hello(self._worker_id, proof=self._proof(ours=True)))

    def _answer(self, hello: Hello) -> bytes:
        if len(hello.nonce) != NONCE_BYTES:
            raise RefusedError("the peer did not prove that it is a worker of this job: its nonce has another length")
        self.peer, self._peer_nonce = hello.worker_id, hello.nonce
        return _encoded(Hello(self._worker_id, proof=self._proof(ours=True), nonce=self._nonce))

    def _proof(self, *, ours: bool) -> bytes:
        """Return the proof of one of the two ends, which covers the dialler's name and nonce first."""
        by_dialled = self._dialled == ours
        us, them = (self._worker_id.encode(), self._nonce), (self.peer.encode(), self._peer_nonce)
        parts = (*them, *us) if self._dialled else (*us, *them)
        data = b"".join(len(part).to_bytes(4) + part for part in parts)
        return hmac.new(self._key, (_DIALLED if by_dialled else _DIALLER) + data, hashlib.sha256).digest()


def refusal(error: RefusedError) -> bytes:
    """Return the frame with the reason for the other end."""
    return encode_message(FrameKind.RESET, payload=str(error).encode())


def _encoded(hello: Hello) -> bytes:
    return encode_message(FrameKind.HELLO, payload=msgspec.msgpack.encode(hello))
