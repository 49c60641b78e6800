"""A server process: in a separate process group, killed with its parent, awaited with a deadline.

Used by `kafka_local` and `minio_local`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from penstock.client import processes
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import ConnectorError
from penstock.core.rand import Rand, SystemRand

LOOPBACK = "127.0.0.1"
POLL_MS = 25.0
KILL_WAIT_S = 10.0
TAIL_LINES = 3
TAIL_BYTES = 16_384
# below the ephemeral processes, so that no other process takes the port between a kill and a restart
PORT_RANGE = range(20_000, 31_000)

# The child asks the kernel for SIGKILL at its parent's death and then becomes the server. A fresh interpreter does
# this, because code between fork and exec (`preexec_fn`) can hang if other threads hold locks.
_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""

# The kernel sends that signal when the starting *thread* ends; this thread lives as long as the interpreter.
_spawner: ThreadPoolExecutor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line and its log file."""

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)


class LocalProcess:
    """Runs one `Command`; at most one process at a time."""

    def __init__(self, command: Command, clock: Clock | None = None) -> None:
        """Prepare the process; `start` starts it."""
        self._command = command
        self._clock = clock or SystemClock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Process id while it is running."""
        return self._popen.pid if self._popen is not None and self._popen.poll() is None else None

    def log_text(self) -> str:
        """Return everything written to the log since the last start."""
        try:
            with self._command.log.open("rb") as file:
                file.seek(self._log_start)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def start(self, ready: Callable[[], bool], timeout_ms: float) -> None:
        """Start the process and wait for `ready()`; on failure no process is left."""
        if self.pid is not None:
            return
        self._command.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self._command.log.stat().st_size if self._command.log.exists() else 0
        self._popen = _spawn(self._command)
        deadline = self._clock.monotonic_ms() + timeout_ms
        while not ready():
            if self._popen.poll() is not None:
                raise self._failure(f"ended with code {self._popen.returncode} while starting")
            if self._clock.monotonic_ms() > deadline:
                self.kill()
                raise self._failure(f"was not ready within {timeout_ms / 1000:.0f} s")
            self._clock.sleep_ms(POLL_MS)

    def stop(self, grace_ms: float) -> None:
        """Send SIGTERM, then SIGKILL to the process group after the grace period."""
        if self._popen is None:
            return
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace_ms / 1000)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the process group, and reap it."""
        if self._popen is None:
            return
        if self._popen.poll() is None:
            # only before it is reaped: afterwards the pid may be reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait(KILL_WAIT_S)
        self._popen = None

    def _failure(self, what: str) -> ConnectorError:
        lines = [line.strip() for line in self.log_text()[-TAIL_BYTES:].splitlines() if line.strip()]
        tail = " | ".join(lines[-TAIL_LINES:]) or "no output"
        return ConnectorError(f"{self._command.name} {what}: {tail}", hint=f"see its log {self._command.log}")


def _spawn(command: Command) -> subprocess.Popen[bytes]:
    if threading.current_thread() is threading.main_thread():
        return _popen(command)
    global _spawner  # noqa: PLW0603  one thread per interpreter, made when first needed
    if _spawner is None:
        _spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-spawner")
    return _spawner.submit(_popen, command).result()


def _popen(command: Command) -> subprocess.Popen[bytes]:
    with command.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command.argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **command.env},
            start_new_session=True,
        )


def free_port(rand: Rand | None = None) -> int:
    """Return an unused loopback port."""
    return processes.free_port(LOOPBACK, PORT_RANGE, rand or SystemRand())


def accepts(port: int) -> bool:
    """Return whether a process listens on the loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0
