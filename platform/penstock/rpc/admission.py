"""How a stream to the control port begins: its channel, and the mutual proof that both ends belong to the cluster.

`rpc.stream` and `rpc.probes` use it at both ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

from grpc import aio

from penstock.config.security import Security, is_loopback
from penstock.core.rand import Rand
from penstock.core.secrets import Secret
from penstock.rpc import tls
from penstock.rpc.authentication import (
    NONCE_BYTES,
    AuthenticationError,
    JobManagerEnd,
    TaskManagerEnd,
    is_same_user,
    split_address,
)

SERVICE = "penstock.JobManager"
#: Deployments and acks contain small state, so messages may be large; a larger one is a bug.
MAX_MESSAGE_BYTES = 256 << 20
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


def open_channel(address: str, security: Security) -> Any:
    """Return a channel to the control port at `host:port`.

    Raises:
        UsageError: the cluster's certificates cannot be read.
    """
    if security.cluster is None:
        return aio.insecure_channel(address, options=OPTIONS)
    credentials = tls.channel_credentials(security.cluster)
    return aio.secure_channel(address, credentials, options=(*OPTIONS, *tls.TLS_OPTIONS))


async def prove(call: Any, secret: Secret, rand: Rand) -> None:
    """Exchange mutual proofs of the cluster secret with the JobManager.

    Raises:
        AuthenticationError: its proof is wrong. InvalidStateError: it closed the stream.
    """
    end = TaskManagerEnd(secret, bytes.fromhex(rand.token(2 * NONCE_BYTES)))
    await call.write(end.greeting())
    answer = await call.read()
    if answer is aio.EOF:
        raise asyncio.InvalidStateError("the JobManager closed the stream")
    await call.write(end.proof(answer))


class Admission:
    """The check of each stream at the control port of one JobManager."""

    def __init__(self, security: Security, rand: Rand) -> None:
        """Take the settings of this process; `bound` comes before the first stream."""
        self._security, self._rand = security, rand
        self._address = "", 0

    def bound(self, host: str, port: int) -> None:
        """Take the address that listens."""
        self._address = host, port

    async def passed(self, context: Any) -> bool:
        """Verify a stream; return False if it ended first.

        Raises:
            AuthenticationError: it does not belong to the cluster.
        """
        self._check_peer(context)
        end = JobManagerEnd(self._security.secret, bytes.fromhex(self._rand.token(2 * NONCE_BYTES)))
        if (greeting := await context.read()) is aio.EOF:
            return False
        await context.write(end.answer(greeting))
        if (proof := await context.read()) is aio.EOF:
            return False
        end.check(proof)
        return True

    def _check_peer(self, context: Any) -> None:
        """Refuse a foreign certificate, or without certificates another local user, before reading any byte."""
        if self._security.cluster is not None:
            if not tls.is_cluster_certificate(context.auth_context()):
                raise AuthenticationError("its certificate is not the cluster's", hint="use the cluster's cluster.pem")
            return
        if is_loopback(self._address[0]) and not is_same_user(split_address(context.peer()), self._address):
            raise AuthenticationError("it runs as another user", hint="start it as the user that runs the JobManager")
