"""JobManager and TaskManagers as local child processes: started, watched, restarted, ended by their own pid.

Used by the embedded executor, `penstock demo` and `penstock cluster start`. Children get `PENSTOCK_DIE_WITH_PARENT`
so that the kernel ends them with us, however we end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import Clock

#: A process that lives may take so long: a loaded machine needs more than a minute to import what it runs.
_READY_TIMEOUT_MS = 300_000
_POLL_MS = 5
_STOP_TIMEOUT_SECONDS = 5.0
_LOG_TAIL_BYTES = 4000


@dataclass(slots=True)
class ChildProcess:
    """One JobManager or TaskManager process, its log and the file in which it says that it is ready."""

    name: str
    arguments: list[str]
    directory: Path
    clock: Clock
    environment: dict[str, str] = field(default_factory=dict)
    #: Whether it will be told something (`tell`) after its start.
    listens: bool = False
    process: subprocess.Popen[bytes] | None = None

    @property
    def ready_file(self) -> Path:
        """Where the child writes its addresses."""
        return self.directory / f"{self.name}.ready"

    @property
    def log_file(self) -> Path:
        """Where stdout and stderr of the child go."""
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self.process.pid if self.process else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process (again)."""
        self.ready_file.unlink(missing_ok=True)
        environment = {**os.environ, **self.environment, "PENSTOCK_DIE_WITH_PARENT": str(os.getpid())}
        command = [sys.executable, "-m", "penstock.cli.serve", *self.arguments, "--ready-file", str(self.ready_file)]
        stdin = subprocess.PIPE if self.listens else subprocess.DEVNULL
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=stdin, stdout=log, stderr=log, env=environment, cwd=self.directory
            )

    def tell(self, text: str) -> None:
        """Write one line to a child that listens; it is not heard when the child has ended."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
                pipe.write(f"{text}\n".encode())

    @property
    def was_ready(self) -> bool:
        """Whether it has been ready since its (last) start."""
        return self.ready_file.exists()

    def wait_ready(self, timeout_ms: float = _READY_TIMEOUT_MS) -> str:
        """Return what the child wrote when it was ready.

        Raises:
            PenstockError: it ended or did not get ready in time; carries the tail of its log.
        """
        deadline = self.clock.monotonic_ms() + timeout_ms
        while self.clock.monotonic_ms() < deadline:
            if self.ready_file.exists():
                return self.ready_file.read_text(encoding="utf-8").strip()
            if not self.alive:
                break
            self.clock.sleep_ms(_POLL_MS)
        state = "did not get ready" if self.alive else "ended while starting"
        msg = f"{self.name} {state}: {self.log_tail()}"
        raise PenstockError(msg, hint=f"its log is {self.log_file}")

    def log_tail(self) -> str:
        """Return the last lines of the child's log."""
        if not self.log_file.exists():
            return ""
        data = self.log_file.read_bytes()[-_LOG_TAIL_BYTES:]
        return data.decode(errors="replace").strip().rpartition("\n")[2] or "(empty log)"

    def ask_to_end(self) -> None:
        """Send SIGTERM; `stop` waits for the end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End the process: SIGTERM, then SIGKILL after a grace time."""
        if self.process is None:
            return
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
