"""How the two ends of a control stream prove that they know the cluster's secret, which neither sends; no I/O.

Three messages before the registration: the TaskManager's nonce; the JobManager's nonce and proof; the TaskManager's
proof. Each end proves over both nonces, under a label of its own, so that nothing heard can be used a second time or
sent back. The TaskManager believes first: whoever may start workers in it must be the JobManager.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TypeVar

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.secrets import Secret

#: Longer messages come from somebody else.
MAX_BYTES = 512
NONCE_BYTES = 32
_JOBMANAGER, _TASKMANAGER, _WORKERS = b"penstock jobmanager", b"penstock taskmanager", b"penstock workers of job "


class DistrustError(PenstockError):
    """The other end does not know the secret, or speaks another protocol."""


class Greeting(msgspec.Struct, frozen=True, tag=True):
    """TaskManager -> JobManager: what the JobManager's proof must hold."""

    nonce: bytes


class Answer(msgspec.Struct, frozen=True, tag=True):
    """JobManager -> TaskManager."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, tag=True):
    """TaskManager -> JobManager."""

    proof: bytes


_Message = TypeVar("_Message")
_greetings = msgspec.msgpack.Decoder(Greeting)
_answers = msgspec.msgpack.Decoder(Answer)
_proofs = msgspec.msgpack.Decoder(Proof)


class TaskManagerEnd:
    """The side that dials."""

    def __init__(self, secret: Secret, nonce: bytes) -> None:
        """`nonce` is fresh for every stream."""
        self._secret = secret
        self._nonce = nonce

    def greeting(self) -> bytes:
        """Return the first message."""
        return msgspec.msgpack.encode(Greeting(self._nonce))

    def proof(self, answer: bytes) -> bytes:
        """Return the last message.

        Raises:
            DistrustError: the answer is no proof.
        """
        given = _decoded(_answers, answer, "the JobManager")
        nonces = self._nonce + given.nonce
        if not hmac.compare_digest(given.proof, _mac(self._secret, _JOBMANAGER, nonces)):
            msg = "the JobManager has another cluster secret"
            hint = "give JobManager and TaskManagers one --security folder, or one PENSTOCK_CLUSTER_SECRET"
            raise DistrustError(msg, hint=hint)
        return msgspec.msgpack.encode(Proof(_mac(self._secret, _TASKMANAGER, nonces)))


class JobManagerEnd:
    """The side that is dialled."""

    def __init__(self, secret: Secret, nonce: bytes) -> None:
        """`nonce` is fresh for every stream."""
        self._secret = secret
        self._nonce = nonce
        self._nonces = b""

    def answer(self, greeting: bytes) -> bytes:
        """Return the second message.

        Raises:
            DistrustError: that was no greeting.
        """
        given = _decoded(_greetings, greeting, "it")
        if len(given.nonce) != NONCE_BYTES:
            raise DistrustError("it sent a nonce of another length", hint="both must be of the same version")
        self._nonces = given.nonce + self._nonce
        return msgspec.msgpack.encode(Answer(self._nonce, _mac(self._secret, _JOBMANAGER, self._nonces)))

    def check(self, proof: bytes) -> None:
        """Return if the other side has proved that it knows the secret.

        Raises:
            DistrustError: it has not.
        """
        given = _decoded(_proofs, proof, "it")
        if not hmac.compare_digest(given.proof, _mac(self._secret, _TASKMANAGER, self._nonces)):
            raise DistrustError("it does not know the cluster's secret", hint="give it the cluster's --security folder")


def workers_key(secret: Secret, job_id: str) -> bytes:
    """Return what the workers of one job prove to each other; of another job's it tells nothing."""
    return _mac(secret, _WORKERS, job_id.encode())


def _mac(secret: Secret, label: bytes, data: bytes) -> bytes:
    return hmac.new(secret.reveal().encode(), label + b"\0" + data, hashlib.sha256).digest()


def _decoded(decoder: msgspec.msgpack.Decoder[_Message], data: bytes, who: str) -> _Message:
    try:
        if len(data) > MAX_BYTES:
            raise msgspec.DecodeError(f"{len(data)} bytes")
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        msg = f"{who} does not prove that it belongs to the cluster: {error}"
        raise DistrustError(msg, hint="JobManager and TaskManagers must be of the same version") from error
