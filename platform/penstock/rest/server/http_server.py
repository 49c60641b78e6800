"""The JobManager's process: a standby or the leader, and the REST API, on one event loop.

Called by `penstock jobmanager`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
from typing import TYPE_CHECKING

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from penstock.config.security import Security, check_listening
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.core.logs import log_line
from penstock.jobmanager.main import JobManager, reachable_host, run_jobmanager
from penstock.rest.diagnose.job_watch import JobWatch
from penstock.rest.server.fast_app import FastApp
from penstock.rest.server.guard import Guard
from penstock.rest.server.role_app import RoleApp
from penstock.rpc.listening import REST

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.jobmanager.config import JobManagerConfig

_GRACEFUL_SECONDS = 2
#: Time limit for the head of a request on an idle connection.
_HEAD_SECONDS = 10.0
_MOST_CONNECTIONS = 1000
_WILDCARD_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the address to announce instead


class _RestServer(uvicorn.Server):
    """Leaves signal handling to the JobManager."""

    def install_signal_handlers(self) -> None:
        """Do nothing."""


class _HeadTimeoutProtocol(H11Protocol):
    """Closes a connection that does not send the complete head of a request in time."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Stop the timeout once a request has begun."""
        super().data_received(data)
        if self._busy:
            self._rest()

    def on_response_complete(self) -> None:
        """Start the timeout of the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._rest()
        super().connection_lost(exc)

    @property
    def _busy(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wait(self) -> None:
        self._rest()
        self._waiting = self.loop.call_later(_HEAD_SECONDS, self._give_up)

    def _rest(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        if not self._busy:
            self.transport.close()


def run_jobmanager_process(config: JobManagerConfig, announce: Callable[[str], None]) -> int:
    """Run until SIGTERM, SIGINT or `DELETE /cluster`; return the exit code.

    `announce` is called with the addresses as JSON, once this process leads, jobs are recovered and both ports listen.
    """
    return asyncio.run(_run(config, announce))


async def _run(config: JobManagerConfig, announce: Callable[[str], None]) -> int:
    for host in (config.settings.rest_host, config.settings.rpc_host):
        check_listening(config.security, host)
    loop, security, stopping = asyncio.get_running_loop(), config.security, asyncio.Event()
    listener, role, tls = (
        _listen(config.settings.rest_host, config.settings.rest_port),
        RoleApp(SystemClock()),
        security.rest is not None,
    )
    host, port = listener.getsockname()[:2]
    server = _RestServer(_server_settings(Guard(role, security, _log), security))
    serving, parts = asyncio.create_task(server.serve(sockets=[listener])), list[_LeaderParts]()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    async def leading(manager: JobManager) -> None:
        parts.append(_LeaderParts(manager, stopping.set))
        role.leading(parts[-1].application)
        local = _url(_WILDCARD_ADDRESSES.get(host, host), port, tls=tls)
        announce(json.dumps({"rest": local, "rpc": manager.rpc_address}))

    def standing(manager: JobManager) -> None:
        while parts:
            parts.pop().end()
        role.standing(manager)

    try:
        own = msgspec.structs.replace(config, rest_url=_url(reachable_host(host), port, tls=tls))
        return await run_jobmanager(own, stopping, standing, leading)
    finally:
        while parts:
            parts.pop().end()
        server.should_exit = True
        await serving


class _LeaderParts:
    """The parts that a leader has in addition to its JobManager."""

    def __init__(self, manager: JobManager, shutdown: Callable[[], None]) -> None:
        """Start the watch over slow jobs."""
        jobs = JobWatch(manager.dispatcher, SystemClock())
        self._watching = asyncio.create_task(jobs.run(asyncio.Event()))
        self.application = FastApp(manager.dispatcher, SystemClock(), shutdown, jobs)

    def end(self) -> None:
        """End the watch."""
        self._watching.cancel()


def _server_settings(application: Guard, security: Security) -> uvicorn.Config:
    # Named explicitly: uvicorn's search for faster loops and protocols imports a lot.
    settings = uvicorn.Config(
        application,
        loop="none",
        http=_HeadTimeoutProtocol,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
    )
    settings.load()
    settings.ssl = _tls(security)
    return settings


def _log(text: str) -> None:
    log_line("penstock.rest", text, "penstock: ")


def _tls(security: Security) -> ssl.SSLContext | None:
    if security.rest is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(security.rest.certificate, security.rest.key)
        if security.client_ca is not None:
            context.load_verify_locations(security.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        msg = f"cannot load the certificate of the REST API ({security.rest.certificate}): {error}"
        raise PenstockError(msg, hint="`penstock cluster certs DIR` creates one") from error
    return context


def _url(host: str, port: int, *, tls: bool) -> str:
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise REST.refused(host, port, error) from error
    listener.listen(128)
    return listener
