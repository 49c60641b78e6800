"""Names and limits of the gRPC stream between TaskManager and JobManager; shared by `rpc.server` and `rpc.client`.

The stream carries msgpack bytes (`rpc.messages`): no generated code, a generic handler with one method suffices.
"""

from __future__ import annotations

import asyncio

SERVICE = "penstock.JobManager"
METHOD = "Connect"
PATH = f"/{SERVICE}/{METHOD}"
#: Deployments and acks carry small state inline, so a message may be large; what is bigger than this is a fault.
MAX_MESSAGE_BYTES = 256 << 20
#: Messages waiting to be written to one stream; a peer that lets this fill up is as good as gone.
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
    # a new channel has a new connection, and not that of one before, which may be dead
    ("grpc.use_local_subchannel_pool", 1),
)


class SendQueue:
    """A bounded queue of encoded messages with one reader; `put` never waits: a full queue closes it."""

    def __init__(self, limit: int = SEND_QUEUE_LIMIT) -> None:
        """Hold at most `limit` messages."""
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._limit = limit
        self.closed = False

    def put(self, data: bytes) -> bool:
        """Append; False when the queue is closed or has just overflowed (then it is closed)."""
        if self.closed:
            return False
        if self._queue.qsize() >= self._limit:
            self.close()
            return False
        self._queue.put_nowait(data)
        return True

    def close(self) -> None:
        """Let the reader end after what is queued; idempotent."""
        if not self.closed:
            self.closed = True
            self._queue.put_nowait(None)

    async def get(self) -> bytes | None:
        """Return the next message, or None when closed and empty."""
        return await self._queue.get()
