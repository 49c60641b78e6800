"""Authentication of control connections: the peer is the same local user, or proves that it knows the cluster's secret.

`is_same_user` asks the kernel for the owner of a loopback socket; `rest.server.guard` uses it too. `TaskManagerEnd`
and `JobManagerEnd` prove the secret to each other without sending it; no I/O.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.secrets import Secret

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
#: Fields of a line: local and remote address, owner, socket number (inode).
_LOCAL, _REMOTE, _OWNER, _NUMBER = 1, 2, 7, 9
_ROOT = 0
#: From `linux/netlink.h` and `linux/sock_diag.h`: message header, request type, answer types.
_NETLINK_SOCK_DIAG = 4
_HEADER = struct.Struct("=IHHII")
_SOCK_DIAG_BY_FAMILY, _ERROR, _IS_REQUEST = 20, 2, 1
#: From `linux/inet_diag.h`: family, protocol, states; ports, addresses, interface, cookie; owner and inode of the
#: answer.
_REQUEST = struct.Struct("=BBBxI")
_SOCKET = struct.Struct("!HH16s16s4x8s")
_OWNER_AND_NUMBER = struct.Struct("=II")
_OWNER_AT = _HEADER.size + 4 + _SOCKET.size + 12
_ANY_STATE, _ANY_COOKIE = 0xFFFFFFFF, b"\xff" * 8
_ANSWER_BYTES = 4096

Address = tuple[str, int]


def is_same_user(client: Address, server: Address) -> bool:
    """Return whether `client`, the other end of a connection to our `server`, belongs to our user or root."""
    try:
        owner = owner_by_kernel(client, server)
    except OSError:
        owner = owner_of(client, server, _lines())
    return owner is not None and owner in (os.getuid(), _ROOT)


def split_address(peer: str) -> Address:
    """Return host and port of a gRPC peer name: `ipv4:127.0.0.1:5`, `ipv6:%5B::1%5D:5`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def owner_by_kernel(client: Address, server: Address) -> int | None:
    """Return the user id that owns the socket `client` -> `server`, like `owner_of`.

    Raises:
        OSError: this kernel does not support the query.
    """
    family, ends = _packed(client, server)
    wanted = _SOCKET.pack(client[1], server[1], *ends, _ANY_COOKIE)
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE) + wanted
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _IS_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.sendto(header + request, (0, 0))
        answer = kernel.recv(_ANSWER_BYTES)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _ERROR:
        code = -int(struct.unpack_from("=i", answer, _HEADER.size)[0])
        if code == errno.ENOENT:
            return None
        raise OSError(code, os.strerror(code))
    owner, number = _OWNER_AND_NUMBER.unpack_from(answer, _OWNER_AT)
    return int(owner) if number else None


def _packed(client: Address, server: Address) -> tuple[int, tuple[bytes, bytes]]:
    """Return the family of two addresses, and both as 16 bytes; IPv4 mapped in IPv6 counts as IPv4."""
    found = [_ip(address) for address in (client, server)]
    family = socket.AF_INET if all(ip.version == 4 for ip in found) else socket.AF_INET6
    return family, (found[0].packed.ljust(16, b"\0"), found[1].packed.ljust(16, b"\0"))


def owner_of(client: Address, server: Address, lines: Iterable[str]) -> int | None:
    """Return the user id that owns the socket `client` -> `server`; None if no local process does.

    A socket that its process has already closed has no inode and is listed as root's: it counts as unowned.
    """
    wanted = (_plain(client), _plain(server))
    port = f":{client[1]:04X} "  # a cheap filter: few lines contain the port
    for line in lines:
        if port not in line:
            continue
        fields = line.split()
        if len(fields) <= _NUMBER or not fields[_OWNER].isdigit():
            continue
        if (_read(fields[_LOCAL]), _read(fields[_REMOTE])) == wanted and fields[_NUMBER] != "0":
            return int(fields[_OWNER])
    return None


def _lines() -> Iterator[str]:
    for table in _TABLES:
        if table.exists():
            yield from table.read_text(encoding="ascii").splitlines()[1:]


def _plain(address: Address) -> tuple[int, int]:
    """Return an address as numbers."""
    return int(_ip(address)), address[1]


def _ip(address: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the host of an address; IPv4 mapped in IPv6 becomes IPv4."""
    name = "127.0.0.1" if address[0] == "localhost" else address[0].partition("%")[0]
    ip = ipaddress.ip_address(name)
    return ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None else ip


def _read(field: str) -> tuple[int, int]:
    """Parse `0100007F:1F90`: words of four bytes in this machine's byte order, and a port."""
    address, _, port = field.partition(":")
    words = [address[start : start + 8] for start in range(0, len(address), 8)]
    number = int("".join(_swap_bytes(word) for word in words), 16)
    if len(words) > 1 and number >> 32 == 0xFFFF:
        number &= 0xFFFFFFFF
    return number, int(port, 16)


def _swap_bytes(word: str) -> str:
    return bytes.fromhex(word)[::-1].hex()


#: Longer messages are not part of the protocol.
MAX_BYTES = 512
NONCE_BYTES = 32
_JOBMANAGER, _TASKMANAGER, _WORKERS = b"penstock jobmanager", b"penstock taskmanager", b"penstock workers of job "


class AuthenticationError(PenstockError):
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
            raise AuthenticationError(msg, hint=hint)
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
            raise AuthenticationError("it sent a nonce of the wrong length", hint="both must be of the same version")
        self._nonces = given.nonce + self._nonce
        return msgspec.msgpack.encode(Answer(self._nonce, _mac(self._secret, _JOBMANAGER, self._nonces)))

    def check(self, proof: bytes) -> None:
        """Check the TaskManager's proof of the secret.

        Raises:
            DistrustError: the proof is wrong.
        """
        given = _decoded(_proofs, proof, "it")
        if not hmac.compare_digest(given.proof, _mac(self._secret, _TASKMANAGER, self._nonces)):
            raise AuthenticationError(
                "it does not know the cluster's secret", hint="use the cluster's --security folder"
            )


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
        raise AuthenticationError(msg, hint="JobManager and TaskManagers must be of the same version") from error
