"""JobManager and TaskManagers as local child processes: free ports, start, supervision and end by pid.

Used by the embedded executor, `penstock demo` and `penstock cluster start`; the test servers also choose their
ports here. Children get `PENSTOCK_DIE_WITH_PARENT`: the kernel ends them with the parent, even after a crash.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config.config_file import FILE_VARIABLE, config_file
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.rand import Rand

_TRIES = 200


def free_port(host: str, ports: range, rand: Rand) -> int:
    """Return one of `ports` that is currently unused.

    The range should be below the ephemeral ports of outgoing connections (32768 and up by default):
    an ephemeral port may be taken before the process listens, or while it restarts.

    Raises:
        PenstockError: no unused port was found.
        OSError: `host` is not an address of this machine.
    """
    for _ in range(_TRIES):
        port = ports[int(rand.fraction() * len(ports))]
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
    msg = f"no free port found on {host}: all tried ports of {ports.start} to {ports.stop - 1} are in use"
    raise PenstockError(msg, hint="stop the processes that listen there")


#: Start limit of a live process: a loaded machine may need more than a minute for its imports.
_READY_TIMEOUT_MS = 300_000
_POLL_MS = 5
_STOP_TIMEOUT_SECONDS = 5.0
_LOG_TAIL_BYTES = 4000


@dataclass(slots=True)
class ChildProcess:
    """A JobManager or TaskManager process, its log file and its ready file."""

    name: str
    arguments: list[str]
    directory: Path
    clock: Clock
    environment: dict[str, str] = field(default_factory=dict)
    #: Whether a line will be sent to its standard input (`write_stdin`).
    reads_stdin: bool = False
    process: subprocess.Popen[bytes] | None = None

    @property
    def ready_file(self) -> Path:
        """The file in which the child writes its addresses when it is ready."""
        return self.directory / f"{self.name}.ready"

    @property
    def log_file(self) -> Path:
        """The file that receives the child's stdout and stderr."""
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self.process.pid if self.process else 0

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start or restart the process."""
        self.ready_file.unlink(missing_ok=True)
        environment = {**os.environ, **self.environment, "PENSTOCK_DIE_WITH_PARENT": str(os.getpid())}
        if (path := config_file(environment, Path.cwd())) is not None:  # the child has another working folder
            environment[FILE_VARIABLE] = str(path)
        command = [sys.executable, "-m", "penstock.cli.serve", *self.arguments, "--ready-file", str(self.ready_file)]
        stdin = subprocess.PIPE if self.reads_stdin else subprocess.DEVNULL
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=stdin, stdout=log, stderr=log, env=environment, cwd=self.directory
            )

    def write_stdin(self, text: str) -> None:
        """Write a line to the child's standard input; it is lost if the child has ended."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
                pipe.write(f"{text}\n".encode())

    @property
    def is_ready(self) -> bool:
        """Whether the child has been ready since its last start."""
        return self.ready_file.exists()

    def wait_ready(self, timeout_ms: float = _READY_TIMEOUT_MS) -> str:
        """Wait until the child is ready; return the content of its ready file.

        Raises:
            PenstockError: it ended or was not ready in time; the message has the last line of its log.
        """
        deadline = self.clock.monotonic_ms() + timeout_ms
        while self.clock.monotonic_ms() < deadline:
            if self.ready_file.exists():
                return self.ready_file.read_text(encoding="utf-8").strip()
            if not self.alive:
                break
            self.clock.sleep_ms(_POLL_MS)
        state = "was not ready in time" if self.alive else "ended while starting"
        msg = f"{self.name} {state}: {self.log_tail()}"
        raise PenstockError(msg, hint=f"see its log {self.log_file}")

    def log_tail(self) -> str:
        """Return the last line of the child's log, without the program's name."""
        if not self.log_file.exists():
            return ""
        data = self.log_file.read_bytes()[-_LOG_TAIL_BYTES:]
        last = data.decode(errors="replace").strip().rpartition("\n")[2]
        return last.removeprefix("penstock: ") or "(empty log)"

    def terminate(self) -> None:
        """Send SIGTERM; `stop` waits for the end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End the process with SIGTERM, then SIGKILL after a grace period."""
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
        """Send SIGKILL and wait for the end."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
