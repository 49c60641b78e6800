"""Process metrics of a TaskManager and its workers: for heartbeats, and for Prometheus at `GET /metrics`.

`ProcessMetrics` belongs to the supervisor and reads `/proc`; `MetricsServer` is started by `taskmanager.main`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.config.security import Security, check_listening
from penstock.core.clock import Clock
from penstock.metrics.process import ProcessMeter
from penstock.metrics.prometheus import TASKMANAGER_SCOPE, Sample, process_samples, render, scope_samples
from penstock.rpc.authentication import is_same_user
from penstock.rpc.listening import METRICS

#: Dashboards need no higher rate, and each sample reads `/proc`.
_EVERY_MS = 2_000


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """A running worker process."""

    pid: int
    job_id: str
    slot: int


class ProcessMetrics:
    """The process meters of one TaskManager."""

    def __init__(self, taskmanager_id: str, host: str, clock: Clock) -> None:
        """Start the meters; the CPU load of this process is measured from here."""
        self._labels = {"tm_id": taskmanager_id, "host": host}
        self._clock = clock
        self._own = ProcessMeter(clock)
        self._workers: dict[int, ProcessMeter] = {}
        self._last: dict[str, float] = {}
        self._due_ms = 0.0

    def own(self) -> dict[str, float]:
        """Return this process's metrics, at most two seconds old."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + _EVERY_MS
            self._last = self._own.read()
        return self._last

    def text(self, slots: tuple[int, int], workers: Mapping[str, RunningWorker]) -> str:
        """Return the body of `/metrics`; `slots` are (all, free), `workers` the running ones by id."""
        own = self.own()
        held = {"taskSlotsTotal": float(slots[0]), "taskSlotsAvailable": float(slots[1])}
        samples = scope_samples(TASKMANAGER_SCOPE, {**own, **held}, self._labels)
        samples += process_samples(own, self._labels)
        pids = {worker.pid for worker in workers.values()}
        self._workers = {pid: meter for pid, meter in self._workers.items() if pid in pids}
        for worker_id, worker in sorted(workers.items()):
            samples += self._of(worker_id, worker)
        return render(samples)

    def _of(self, worker_id: str, worker: RunningWorker) -> list[Sample]:
        if worker.pid not in self._workers:
            self._workers[worker.pid] = ProcessMeter(self._clock, worker.pid)
        named = {"worker_id": worker_id, "job_id": worker.job_id, "slot": str(worker.slot)}
        metrics = self._workers[worker.pid].read()
        labels = {**self._labels, **named}
        return scope_samples(f"{TASKMANAGER_SCOPE}_worker", metrics, labels) + process_samples(metrics, labels)


_MAX_HEAD_BYTES = 16 << 10
_HEAD_SECONDS = 10.0
_MOST_CONNECTIONS = 20
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 503: "Busy"}
_TYPE = "text/plain; version=0.0.4"


class MetricsServer:
    """Serves the result of `text`; call `start` and `close` on the event loop."""

    def __init__(self, text: Callable[[], str], security: Security) -> None:
        """Prepare the server; it does not listen before `start`."""
        self._text = text
        self._security = security
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> str:
        """Listen; return `host:port` with the actual port.

        Raises:
            UsageError: the address is reachable by others without protection. PenstockError: the port is in use.
        """
        check_listening(self._security, host)
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_MAX_HEAD_BYTES)
        except OSError as error:
            raise METRICS.refused(host, port, error) from error
        address = self._server.sockets[0].getsockname()
        return f"{host}:{address[1]}"

    async def close(self) -> None:
        """Stop listening; idempotent."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            status, body = (503, "") if self._open > _MOST_CONNECTIONS else await self._answer(reader, writer)
            data = body.encode()
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(data)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + data)
            await asyncio.wait_for(writer.drain(), _HEAD_SECONDS)
        except (TimeoutError, ConnectionError):
            return  # the client has gone, or did not complete its request
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, str]:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            return 400, ""
        first, *rest = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            return 400, ""
        headers = dict(line.lower().partition(":")[::2] for line in rest if ":" in line)
        if (refused := self._refused(rest, headers, writer)) is not None:
            return refused, ""
        if words[1].partition("?")[0] != "/metrics":
            return 404, ""
        return 200, self._text() if words[0] == "GET" else ""

    def _refused(self, lines: list[str], headers: dict[str, str], writer: asyncio.StreamWriter) -> int | None:
        """Return the refusal status for a missing token or another local user; None accepts the request."""
        if not self._security.tokens:
            if self._security.insecure:
                return None
            ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
            host = headers.get("host", "").strip().rpartition(":")[0]
            known = host in ("127.0.0.1", "localhost", "[::1]")
            return None if known and is_same_user(ends[0][:2], ends[1][:2]) else 403
        given = next((line for line in lines if line.lower().startswith("authorization:")), "")
        scheme, _, token = given.partition(":")[2].strip().partition(" ")
        known = scheme.lower() == "bearer" and self._security.role_of(token.strip()) is not None
        return None if known else 401
