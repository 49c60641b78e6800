"""Names, limits and TLS credentials of the gRPC stream between TaskManager and JobManager.

Shared by `rpc.server` and `rpc.client`. The stream carries msgpack bytes (`rpc.messages`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

import grpc

from penstock.config.security import INTERNAL_NAME, Tls
from penstock.core.errors import UsageError
from penstock.rpc.messages import joined

#: The certificate is the cluster's, not a host's: it must contain this name, for any address.
TLS_OPTIONS = (("grpc.ssl_target_name_override", INTERNAL_NAME),)
_NAMES = "x509_subject_alternative_name"


def server_credentials(tls: Tls) -> Any:
    """Return server credentials that require certificates of the cluster's CA.

    Raises:
        UsageError: a file cannot be read.
    """
    certificate, key, ca = _read_files(tls)
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=ca, require_client_auth=True)


def channel_credentials(tls: Tls) -> Any:
    """Return client credentials with the cluster's certificate.

    Raises:
        UsageError: a file cannot be read.
    """
    certificate, key, ca = _read_files(tls)
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)


def is_cluster_certificate(context: Mapping[str, Any]) -> bool:
    """Return whether a certificate is that of the cluster's processes; a client's of the same CA is not."""
    return INTERNAL_NAME.encode() in context.get(_NAMES, ())


def _read_files(tls: Tls) -> tuple[bytes, bytes, bytes]:
    try:
        return tls.certificate.read_bytes(), tls.key.read_bytes(), tls.ca.read_bytes()
    except OSError as error:
        msg = f"cannot read {error.filename}: {error.strerror}"
        raise UsageError(msg, hint="`penstock cluster certs DIR` creates the cluster's certificates") from error


SERVICE = "penstock.JobManager"
METHOD = "Connect"
PATH = f"/{SERVICE}/{METHOD}"
#: Deployments and acks contain small state, so messages may be large; a larger one is a bug.
MAX_MESSAGE_BYTES = 256 << 20
#: Messages waiting in one stream; a peer that lets the queue fill up counts as lost.
SEND_QUEUE_LIMIT = 10_000
OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
    # a new channel uses a new connection, not a previous one that may be dead
    ("grpc.use_local_subchannel_pool", 1),
)


#: Waiting messages are sent together up to this size; a larger one is sent alone.
JOINED_BYTES = 1 << 20


class SendQueue:
    """A bounded queue of encoded messages with one reader; `put` never waits: an overflow closes it."""

    def __init__(self, limit: int = SEND_QUEUE_LIMIT) -> None:
        """Create a queue of at most `limit` messages."""
        self._messages: deque[bytes] = deque()
        self._limit = limit
        self._filled = asyncio.Event()
        self.closed = False

    def put(self, data: bytes) -> bool:
        """Append a message; return False if the queue is closed or overflows, which closes it."""
        if self.closed:
            return False
        if len(self._messages) >= self._limit:
            self.close()
            return False
        self._messages.append(data)
        self._filled.set()
        return True

    def close(self) -> None:
        """Let the reader end after the queued messages; idempotent."""
        self.closed = True
        self._filled.set()

    async def get(self) -> bytes | None:
        """Return the waiting messages, `joined`, or None if the queue is closed and empty."""
        await self._filled.wait()
        taken: list[bytes] = []
        size = 0
        while self._messages and (not taken or size + len(self._messages[0]) <= JOINED_BYTES):
            size += len(self._messages[0])
            taken.append(self._messages.popleft())
        if not self._messages and not self.closed:
            self._filled.clear()
        return joined(taken) if taken else None
