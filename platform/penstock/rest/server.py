"""The JobManager's process: dispatcher and REST API on one event loop. Called by `penstock jobmanager`."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from typing import TYPE_CHECKING

import uvicorn

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.jobmanager.main import JobManager, run_jobmanager
from penstock.rest.essential import Door

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.jobmanager.config import JobManagerConfig

_GRACEFUL_SECONDS = 2


class _RestServer(uvicorn.Server):
    """Leaves the process's signals to the JobManager."""

    def install_signal_handlers(self) -> None:
        """Do nothing."""


def run_jobmanager_process(config: JobManagerConfig, announce: Callable[[str], None]) -> int:
    """Run until SIGTERM, SIGINT, `DELETE /cluster` or the loss of leadership; return the exit code.

    `announce` is called with the addresses, as JSON, once jobs are recovered and both ports listen.
    """
    return asyncio.run(_run(config, announce))


async def _run(config: JobManagerConfig, announce: Callable[[str], None]) -> int:
    serving: list[tuple[_RestServer, asyncio.Task[None]]] = []

    async def ready(manager: JobManager) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, manager.shutdown)
        listener = _listen(config.settings.rest_host, config.settings.rest_port)
        door = Door(manager.dispatcher, SystemClock(), manager.shutdown)
        # What is named is not looked for: the search for faster loops and protocols imports a lot.
        server = _RestServer(
            uvicorn.Config(
                door,
                loop="none",
                http="h11",
                ws="none",
                interface="asgi3",
                lifespan="off",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=_GRACEFUL_SECONDS,
            )
        )
        serving.append((server, asyncio.create_task(server.serve(sockets=[listener]))))
        host, port = listener.getsockname()[:2]
        announce(json.dumps({"rest": f"http://{host}:{port}", "rpc": manager.rpc_address}))

    try:
        return await run_jobmanager(config, ready)
    finally:
        for server, task in serving:
            server.should_exit = True
            await task


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        msg = f"the REST API cannot listen on {host}:{port}: {error.strerror}"
        raise PenstockError(msg, hint="choose another --rest-port, or stop what uses it") from error
    listener.listen(128)
    return listener
