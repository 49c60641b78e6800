"""Mutual proof that both ends of a control stream know the cluster's secret, without sending it; no I/O.

Three messages precede the registration: the TaskManager's nonce; the JobManager's nonce and proof; the TaskManager's
proof. Each end computes its proof over both nonces under a separate label, so that no message can be replayed or
reflected. The TaskManager checks first, because only the JobManager may start workers in it.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TypeVar

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.secrets import Secret

#: Longer messages are not part of the protocol.
MAX_BYTES = 512
NONCE_BYTES = 32
_JOBMANAGER, _TASKMANAGER, _WORKERS = b"penstock jobmanager", b"penstock taskmanager", b"penstock workers of job "


class DistrustError(PenstockError):
    """Raised if the other end does not know the secret or uses another protocol."""


class Greeting(msgspec.Struct, frozen=True, tag=True):
    """TaskManager -> JobManager: the nonce for the JobManager's proof."""

    nonce: bytes


class Answer(msgspec.Struct, frozen=True, tag=True):
    """JobManager -> TaskManager: its nonce and proof."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, tag=True):
    """TaskManager -> JobManager: its proof."""

    proof: bytes


_Message = TypeVar("_Message")
_greetings = msgspec.msgpack.Decoder(Greeting)
_answers = msgspec.msgpack.Decoder(Answer)
_proofs = msgspec.msgpack.Decoder(Proof)


class TaskManagerEnd:
    """The side that connects."""

    def __init__(self, secret: Secret, nonce: bytes) -> None:
        """Start a proof; `nonce` must be fresh for every stream."""
        self._secret = secret
        self._nonce = nonce

    def greeting(self) -> bytes:
        """Return the first message."""
        return msgspec.msgpack.encode(Greeting(self._nonce))

    def proof(self, answer: bytes) -> bytes:
        """Check the JobManager's proof; return the last message.

        Raises:
            DistrustError: the proof is wrong.
        """
        given = _decoded(_answers, answer, "the JobManager")
        nonces = self._nonce + given.nonce
        if not hmac.compare_digest(given.proof, _mac(self._secret, _JOBMANAGER, nonces)):
            msg = "the JobManager has a different cluster secret"
            hint = "use the same --security folder or PENSTOCK_CLUSTER_SECRET for JobManager and TaskManagers"
            raise DistrustError(msg, hint=hint)
        return msgspec.msgpack.encode(Proof(_mac(self._secret, _TASKMANAGER, nonces)))


class JobManagerEnd:
    """The side that accepts connections."""

    def __init__(self, secret: Secret, nonce: bytes) -> None:
        """Start a proof; `nonce` must be fresh for every stream."""
        self._secret = secret
        self._nonce = nonce
        self._nonces = b""

    def answer(self, greeting: bytes) -> bytes:
        """Return the second message, the answer to a greeting.

        Raises:
            DistrustError: the greeting is invalid.
        """
        given = _decoded(_greetings, greeting, "it")
        if len(given.nonce) != NONCE_BYTES:
            raise DistrustError("it sent a nonce of the wrong length", hint="both must be of the same version")
        self._nonces = given.nonce + self._nonce
        return msgspec.msgpack.encode(Answer(self._nonce, _mac(self._secret, _JOBMANAGER, self._nonces)))

    def check(self, proof: bytes) -> None:
        """Check the TaskManager's proof of the secret.

        Raises:
            DistrustError: the proof is wrong.
        """
        given = _decoded(_proofs, proof, "it")
        if not hmac.compare_digest(given.proof, _mac(self._secret, _TASKMANAGER, self._nonces)):
            raise DistrustError("it does not know the cluster's secret", hint="use the cluster's --security folder")


def workers_key(secret: Secret, job_id: str) -> bytes:
    """Return the key with which the workers of one job authenticate to each other; each job has a different key."""
    return _mac(secret, _WORKERS, job_id.encode())


def _mac(secret: Secret, label: bytes, data: bytes) -> bytes:
    return hmac.new(secret.reveal().encode(), label + b"\0" + data, hashlib.sha256).digest()


def _decoded(decoder: msgspec.msgpack.Decoder[_Message], data: bytes, who: str) -> _Message:
    try:
        if len(data) > MAX_BYTES:
            raise msgspec.DecodeError(f"{len(data)} bytes")
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        msg = f"{who} did not prove that it belongs to the cluster: {error}"
        raise DistrustError(msg, hint="JobManager and TaskManagers must be of the same version") from error
