"""One TaskManager as a process: wires the supervisor to the JobManager; called by the command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.rpc.client import TaskManagerLink
from penstock.taskmanager.supervisor import Supervisor, SupervisorConfig, log_to_stderr


@dataclass(frozen=True, kw_only=True)
class TaskManagerConfig:
    """Everything `penstock taskmanager` is told."""

    #: `host:port` of the JobManager's control port.
    jobmanager_address: str
    taskmanager_id: str
    slots: int = 1
    work_dir: Path = Path(".penstock/taskmanager")
    #: Resident memory at which a worker is killed; None: twice its managed memory + 2 GiB.
    worker_memory_limit_bytes: int | None = None


def run_taskmanager(config: TaskManagerConfig, announce: Callable[[str], None]) -> int:
    """Run until SIGTERM, SIGINT or the JobManager's Shutdown; `announce` is called once workers can be started.

    Returns the process's exit code.
    """
    try:
        asyncio.run(_run(config, announce))
    except PenstockError as error:
        sys.stderr.write(f"penstock: {error}\n")
        return 1
    return 0


async def _run(config: TaskManagerConfig, announce: Callable[[str], None]) -> None:
    work_dir = config.work_dir.resolve()
    work_dir.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(
        SupervisorConfig(
            taskmanager_id=config.taskmanager_id,
            slots=config.slots,
            work_dir=work_dir,
            worker_memory_limit_bytes=config.worker_memory_limit_bytes,
        ),
        SystemClock(),
        log_to_stderr,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    link = TaskManagerLink(
        config.jobmanager_address,
        supervisor.registration,
        supervisor.handle,
        lambda reason: log_to_stderr(f"connection to the JobManager lost: {reason}"),
    )
    supervisor.connect(link)
    beating = linking = None
    try:
        preparing = asyncio.ensure_future(supervisor.prepare())
        beating = asyncio.ensure_future(supervisor.run())
        await asyncio.wait((preparing, beating), return_when=asyncio.FIRST_COMPLETED)
        if not preparing.done():
            preparing.cancel()
            return
        preparing.result()
        announce(f"{config.taskmanager_id} {os.getpid()}")
        linking = asyncio.ensure_future(link.run())
        await asyncio.wait((linking, beating), return_when=asyncio.FIRST_COMPLETED)
        if linking.done():
            linking.result()
    finally:
        await supervisor.close()
        for task in (beating, linking):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, PenstockError):
                    await task
