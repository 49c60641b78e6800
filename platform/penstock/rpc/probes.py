"""Probes of the leader at its control port: a standby asks over one stream whether the leader's event loop runs.

`rpc.stream.RpcServer` serves them. The control port, because standbys have the cluster's certificate and secret, but
no token for REST. A suspended process still accepts connections, so only an answer counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import msgspec
from grpc import aio

from penstock.config.security import Security
from penstock.core.errors import PenstockError
from penstock.core.rand import Rand, SystemRand
from penstock.core.structs import prepare
from penstock.rpc.admission import SERVICE, Admission, open_channel, prove

METHOD = "Probe"
_PATH = f"/{SERVICE}/{METHOD}"
_QUESTION = b"?"
_ADMIT_TIMEOUT_S = 10.0


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The leader's answer."""

    generation: int
    #: Confirmed renewals of the lease, and how long ago the last one was, by the leader's clock.
    renewals: int
    age_ms: float


prepare(ProbeAnswer)
_answers = msgspec.msgpack.Decoder(ProbeAnswer)


class ProbeService:
    """The leader's end."""

    def __init__(self, admission: Admission, answer: Callable[[], ProbeAnswer]) -> None:
        """Answer with `answer()`, on the event loop."""
        self._admission, self._answer = admission, answer
        self._streams: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def serve(self, _requests: Any, context: Any) -> None:
        """Serve one stream until its standby closes it; a foreign one is refused."""
        stream = asyncio.current_task()
        assert stream is not None  # noqa: S101 - gRPC runs it in a task
        self._streams.add(stream)
        try:
            if not await asyncio.wait_for(self._admission.passed(context), _ADMIT_TIMEOUT_S):
                return
            while await context.read() is not aio.EOF:
                await context.write(msgspec.msgpack.encode(self._answer()))
        except (PenstockError, TimeoutError) as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error) or "it did not prove itself in time")
        except asyncio.CancelledError:
            if not self._closed:
                raise  # else gRPC would wait for a stream that was cancelled
        finally:
            self._streams.discard(stream)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for stream in self._streams:
            stream.cancel()


class LeaderProber:
    """The standby's end: a stream to one leader after another."""

    def __init__(self, security: Security, rand: Rand | None = None) -> None:
        """Connect at the first question."""
        self._security, self._rand = security, rand or SystemRand()
        self._address = ""
        self._channel: Any = None
        self._call: Any = None

    async def ask(self, address: str, timeout_s: float) -> ProbeAnswer:
        """Ask the leader at `host:port`; a question without an answer in `timeout_s` ends the stream.

        Raises:
            PenstockError: there is no answer.
        """
        answer: ProbeAnswer | None = None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._asked(address)
            return answer
        except (grpc.RpcError, aio.UsageError, asyncio.InvalidStateError, TimeoutError, msgspec.MsgspecError) as error:
            details = getattr(error, "details", None)
            reason = (details() if callable(details) else None) or str(error) or f"silent for {timeout_s:.1f} s"
            hint = "if it stops to renew its lease as well, a standby takes over"
            raise PenstockError(f"{address} answers no probe: {reason}", hint=hint) from error
        finally:
            if answer is None:
                await self.close()

    async def close(self) -> None:
        """End the stream; idempotent."""
        channel, self._channel, self._call, self._address = self._channel, None, None, ""
        if channel is not None:
            await channel.close()

    async def _asked(self, address: str) -> ProbeAnswer:
        if address != self._address:
            await self.close()
            self._channel, self._address = open_channel(address, self._security), address
            self._call = self._channel.stream_stream(_PATH)()
            await prove(self._call, self._security.secret, self._rand)
        await self._call.write(_QUESTION)
        data = await self._call.read()
        if data is aio.EOF:
            raise asyncio.InvalidStateError("it closed the stream")
        return _answers.decode(data)
