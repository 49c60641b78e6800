"""The Python environments of workers: installs a job's requirements, and chooses the template a worker is forked from.

Part of the supervisor. `install_requirements` runs in a helper thread, once per TaskManager and set of
requirements. A template that starts threads during its imports cannot be forked safely: its workers are spawned.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.rpc.messages import StartWorker
from penstock.taskmanager.template_client import THREAD_LIMITS, TemplateClient, TemplateError
from penstock.taskmanager.template_messages import KEY_VARIABLE, ForkTemplate, WorkerSpec, encode

INSTALL_TIMEOUT_SECONDS = 600
_LAST_LINES = 3


class RequirementsError(PenstockError):
    """The requirements of a job could not be installed."""


def environment_key(requirements: Sequence[str]) -> str:
    """Return the folder name: the same for the same requirements and Python version, in any order."""
    text = "\n".join([f"{sys.version_info[0]}.{sys.version_info[1]}", *sorted(set(requirements))])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def install_requirements(requirements: Sequence[str], root: Path, installer: Sequence[str] | None = None) -> Path:
    """Return the folder with `requirements`; install them first if necessary.

    Args:
        requirements: PEP 508 texts.
        root: the TaskManager's folder of environments.
        installer: command to which `--target <folder> <requirements>` is appended; None: uv if available, else pip.

    Raises:
        RequirementsError: the installation failed; the message has the installer's reason.
    """
    folder = root / environment_key(requirements)
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        building = root / f"{folder.name}.{os.getpid()}.building"
        shutil.rmtree(building, ignore_errors=True)
        try:
            _run_installer([*(installer or _installer()), "--target", str(building), "--", *requirements])
            building.mkdir(exist_ok=True)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return folder


def _installer() -> list[str]:
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    if importlib.util.find_spec("pip") is None:
        msg = "the job has requirements, but this TaskManager has neither uv nor pip"
        raise RequirementsError(msg, hint="install uv, or pip in Penstock's environment")
    return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]


def _run_installer(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"the job's requirements were not installed within {INSTALL_TIMEOUT_SECONDS} s"
        raise RequirementsError(msg, hint="check that the package index is reachable") from error
    except OSError as error:
        msg = f"the installer {command[0]} could not be started: {error}"
        raise RequirementsError(msg) from error
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = " | ".join(lines[-_LAST_LINES:]) or f"exit code {done.returncode}"
        msg = f"the job's requirements could not be installed: {reason}"
        raise RequirementsError(msg, hint="check the `requirements` of the job")


_MAX_RESTARTS = 5
_RESTART_WINDOW_MS = 60_000
_BASE = "base"


@dataclass(frozen=True, slots=True)
class EnvironmentKey:
    """The key of a template: workers with equal keys share one."""

    requirements: tuple[str, ...]
    import_path: tuple[str, ...]
    preload: tuple[str, ...]


class Environments:
    """All templates of one TaskManager."""

    def __init__(self, work_dir: Path, clock: Clock, on_exit: Callable[[str, int], None]) -> None:
        """Start without templates; `on_exit(worker id, returncode)` is called for every worker that ends."""
        self._work_dir = work_dir
        self._clock = clock
        self._on_exit = on_exit
        self._templates: dict[EnvironmentKey, TemplateClient] = {}
        self._locks: dict[EnvironmentKey, asyncio.Lock] = {}
        self._starts: list[float] = []
        self._spawned: set[asyncio.Task[None]] = set()

    async def warm(self) -> None:
        """Start the base template.

        Raises:
            TemplateError: it could not be started.
        """
        await self._template(EnvironmentKey((), (), ()), ())

    async def import_path(self, command: StartWorker) -> tuple[str, ...]:
        """Install a worker's requirements; return the folders to put first on its import path.

        Raises:
            RequirementsError: the installation failed.
        """
        if not command.requirements:
            return command.python_path
        root = self._work_dir / "environments"
        folder = await asyncio.to_thread(install_requirements, command.requirements, root)
        return (str(folder), *command.python_path)

    async def start(self, command: StartWorker, spec: WorkerSpec, control: socket.socket) -> int:
        """Start a worker that owns `control`; return its process id.

        Raises:
            TemplateError: no template could be started.
        """
        key = EnvironmentKey(command.requirements, spec.import_path if command.preload else (), command.preload)
        template = await self._template(key, spec.import_path)
        if template.unsafe_threads:
            return await self._spawn(spec, control)
        return await template.fork(spec, control)

    def close(self) -> None:
        """End all templates, and with them all workers."""
        for template in self._templates.values():
            template.close()
        for task in self._spawned:
            task.cancel()

    @property
    def template_pids(self) -> tuple[int, ...]:
        """Process ids of the running templates."""
        return tuple(template.pid for template in self._templates.values() if template.alive)

    async def _template(self, key: EnvironmentKey, import_path: tuple[str, ...]) -> TemplateClient:
        async with self._locks.setdefault(key, asyncio.Lock()):
            template = self._templates.get(key)
            if template is not None and template.alive:
                return template
            self._count_start()
            name = _BASE if key == EnvironmentKey((), (), ()) else f"job-{len(self._templates)}"
            template = TemplateClient(name, self._on_exit, self._work_dir / "logs" / f"template-{name}.out")
            if key.preload and not key.requirements:
                base = await self._template(EnvironmentKey((), (), ()), ())
                await template.start_fork(base, ForkTemplate(name=name, import_path=import_path, preload=key.preload))
            else:
                await template.start_process(import_path if key.requirements else (), key.preload)
            self._templates[key] = template
            return template

    def _count_start(self) -> None:
        now = self._clock.monotonic_ms()
        self._starts = [at for at in self._starts if now - at < _RESTART_WINDOW_MS]
        if len(self._starts) > _MAX_RESTARTS + len(self._templates):
            msg = f"worker templates ended {len(self._starts)} times within {_RESTART_WINDOW_MS // 1000} s"
            raise TemplateError(msg, hint=f"see {self._work_dir / 'logs'}")
        self._starts.append(now)

    async def _spawn(self, spec: WorkerSpec, control: socket.socket) -> int:
        arguments = [str(control.fileno()), str(os.getpid()), encode(msgspec.structs.replace(spec, key=b"")).hex()]
        environment = {**os.environ, **THREAD_LIMITS, KEY_VARIABLE: spec.key.hex()}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock.taskmanager.spawned", *arguments,
            stdin=subprocess.DEVNULL, env=environment, pass_fds=[control.fileno()],
        )  # fmt: skip
        task = asyncio.get_running_loop().create_task(self._wait(spec.worker_id, process))
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return process.pid

    async def _wait(self, worker_id: str, process: asyncio.subprocess.Process) -> None:
        try:
            self._on_exit(worker_id, await process.wait())
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
