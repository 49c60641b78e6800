"""A TaskManager process: connects the supervisor to the JobManager; called by the command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.checkpoint.leader_lease import leader_of
from penstock.checkpoint.stores import require_answer
from penstock.config.security import UNPROTECTED, Security, check_data_port
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, UsageError
from penstock.core.logs import LogFormat
from penstock.rpc.jobmanagers import ElectedJobManager
from penstock.rpc.stream import TaskManagerLink
from penstock.taskmanager.memory_division import MemoryDivision
from penstock.taskmanager.metrics import MetricsServer
from penstock.taskmanager.supervisor import Supervisor, SupervisorConfig, log_to_stderr

_LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"[A-Za-z0-9.:_-]+")


@dataclass(frozen=True, kw_only=True)
class TaskManagerConfig:
    """The options of `penstock taskmanager`."""

    #: `host:port` of the JobManager's control port, several with commas between them; empty: that of the leader of
    #: `ha_root`.
    jobmanager_address: str
    ha_root: str = ""
    taskmanager_id: str
    #: None: read from stdin before the registration.
    slots: int | None = 1
    work_dir: Path = Path(".penstock/taskmanager")
    #: Divides its memory among that many slots; raises UsageError if it is too little.
    divide: Callable[[int], MemoryDivision]
    #: The cluster's certificates and secret.
    security: Security = UNPROTECTED
    #: Name or address of this host's workers for other hosts; empty: all workers are on this host.
    data_host: str = ""
    #: Address that its workers listen on; empty: `data_host`.
    data_bind: str = ""
    #: Port of `/metrics` on loopback; 0: a free one, which is reported to the JobManager.
    metrics_port: int = 0
    log_format: LogFormat = "text"
    #: CPU cores of its part of the host; 0: unknown.
    cpu_cores: float = 0.0


def run_taskmanager(
    config: TaskManagerConfig, announce: Callable[[str], None], on_waiting: Callable[[str], None]
) -> int:
    """Run until SIGTERM, SIGINT or the JobManager's Shutdown; `announce` is called once workers can be started.

    `on_waiting` is called with what the connection waits for (`TaskManagerLink.on_waiting`).
    Returns the process's exit code.
    """
    try:
        asyncio.run(_run(config, announce, on_waiting))
    except PenstockError as error:
        sys.stderr.write(f"penstock: {error}\n")
        return 1
    return 0


async def _run(config: TaskManagerConfig, announce: Callable[[str], None], on_waiting: Callable[[str], None]) -> None:
    data_address = _data_address(config)
    work_dir = config.work_dir.resolve()
    work_dir.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(
        SupervisorConfig(
            taskmanager_id=config.taskmanager_id,
            work_dir=work_dir,
            memory=None if config.slots is None else config.divide(config.slots),
            security=config.security,
            data_address=data_address,
            log_format=config.log_format,
            cpu_cores=config.cpu_cores,
        ),
        SystemClock(),
        log_to_stderr,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    metrics = MetricsServer(supervisor.metrics_text, config.security)
    supervisor.metrics_address = await metrics.start(_LOOPBACK, config.metrics_port)
    link = TaskManagerLink(
        config.jobmanager_address or ElectedJobManager(lambda: _leader_address(config.ha_root)),
        supervisor.registration,
        supervisor.handle,
        lambda reason: log_to_stderr(f"connection to the JobManager lost: {reason}"),
        security=config.security,
    )
    link.on_waiting = on_waiting
    supervisor.connect(link)
    preparing = asyncio.ensure_future(supervisor.prepare())
    heartbeats = asyncio.ensure_future(supervisor.run())
    serving = asyncio.ensure_future(_serve(config, supervisor, link))
    try:
        await asyncio.wait((preparing, serving, heartbeats), return_when=asyncio.FIRST_COMPLETED)
        if preparing.done() and not serving.done():
            preparing.result()
            announce(f"{config.taskmanager_id} {os.getpid()}")
            await asyncio.wait((serving, heartbeats), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    finally:
        await metrics.close()
        await supervisor.close()
        for task in (preparing, serving, heartbeats):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, PenstockError):
                await task


def _leader_address(ha_root: str) -> str:
    """Return the address of the leader; a store without an answer fails soon, because the caller tries again."""
    require_answer(ha_root)
    return leader_of(ha_root).rpc


def _data_address(config: TaskManagerConfig) -> str:
    """Return the data address of workers for other hosts; raise UsageError if it is invalid or not allowed."""
    host, bind = config.data_host, config.data_bind or config.data_host
    if not host and not bind:
        return ""
    if not _HOST.fullmatch(host) or not _HOST.fullmatch(bind):
        msg = f"{host or bind!r} is not a host"
        raise UsageError(msg, hint="--data-host needs a name or address that other hosts can reach, without a port")
    check_data_port(config.security, bind)
    return f"tcp:{bind}:0={host}"


async def _serve(config: TaskManagerConfig, supervisor: Supervisor, link: TaskManagerLink) -> None:
    """Serve the JobManager; it may assign work while the template warms up, workers wait for that."""
    if config.slots is None:
        slots = await _read_slots()
        if not slots:
            return  # the parent has no job for this TaskManager
        supervisor.set_memory(config.divide(slots))
    await link.run()


async def _read_slots() -> int:
    """Read the number of slots from stdin; return 0 if it ends without one."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return int((await reader.readline()).strip() or b"0")
