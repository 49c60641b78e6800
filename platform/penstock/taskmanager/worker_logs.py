"""Log files of workers: one each in `<work dir>/logs`; the tail is sent to the JobManager when a worker ends."""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock.core.logs import readable
from penstock.core.secrets import redact
from penstock.task.chain.failure import is_library_code

#: Number of log files of ended workers that are kept.
RETAINED_LOGS = 50
TAIL_BYTES = 8192
#: Of `faulthandler`: the first line of a crash, and a line of a thread, innermost first.
_CRASH = "Fatal Python error: "
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


class WorkerLogs:
    """The log folder of one TaskManager."""

    def __init__(self, directory: Path) -> None:
        """Create the folder."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def path_of(self, worker_id: str) -> Path:
        """Return the log file of a worker."""
        return self.directory / f"{worker_id}.log"

    def tail(self, worker_id: str, max_bytes: int = TAIL_BYTES) -> str:
        """Return the last complete lines of a worker's log, at most `max_bytes`; empty if there is none."""
        return tail_of(self.path_of(worker_id), max_bytes)

    def prune(self, live: set[str]) -> None:
        """Delete the oldest log files of ended workers beyond RETAINED_LOGS."""
        ended = [path for path in self.directory.glob("*.log") if path.stem not in live]
        ended.sort(key=lambda path: path.stat().st_mtime)
        for path in ended[: max(0, len(ended) - RETAINED_LOGS)]:
            path.unlink(missing_ok=True)


def tail_of(path: Path, max_bytes: int) -> str:
    """Return the last complete lines of a file, at most `max_bytes`."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            data = file.read(max_bytes)
    except FileNotFoundError:
        return ""
    text = data.decode(errors="replace")
    if size > max_bytes:
        text = text.partition("\n")[2] or text
    return redact(readable(text))


def crash_place(log_tail: str) -> str:
    """Return the innermost line of the user's code in the last crash of a log, else the innermost line; empty: none."""
    _, found, trace = log_tail.rpartition(_CRASH)
    frames = _FRAME.findall(trace) if found else []
    if not frames:
        return ""
    filename, line, function = next((frame for frame in frames if not is_library_code(frame[0])), frames[0])
    return f"{Path(filename).name}:{line} in {function}"


def redirect_output(path: Path) -> None:
    """Append stdout and stderr of this process to `path`, including those of C code; only its user can read it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
