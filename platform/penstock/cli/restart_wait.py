"""Commands wait for the JobManager of the local cluster while its cluster starts it again.

Used by `cli.options.connect`; `penstock cluster start` writes the record.
"""

from __future__ import annotations

import json
from pathlib import Path

import typer

from penstock.core.clock import Clock, SystemClock

_WAIT_MS = 10_000.0
_POLL_MS = 100.0


def alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        status_text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status_text.rpartition(")")[2].split()[0] != "Z"


class RestartWait:
    """Says after a refused connection whether to try again; sleeps before."""

    def __init__(self, url: str, record: Path, clock: Clock | None = None) -> None:
        """Take the JobManager's URL and the file that the local cluster has written."""
        self._url, self._record = url.rstrip("/"), record
        self._clock = clock or SystemClock()
        self._deadline_ms: float | None = None

    def __call__(self) -> bool:
        """Return True after a pause if the local cluster runs and its JobManager can be back in time."""
        pid = self._cluster_pid()
        now_ms = self._clock.monotonic_ms()
        if pid is None or (self._deadline_ms is not None and now_ms > self._deadline_ms):
            return False
        if self._deadline_ms is None:
            self._deadline_ms = now_ms + _WAIT_MS
            text = f"the JobManager at {self._url} does not run; its cluster (pid {pid}) starts it again, and the jobs"
            typer.echo(f"{text} resume from their newest checkpoints; trying for {_WAIT_MS / 1000:.0f} s", err=True)
        self._clock.sleep_ms(_POLL_MS)
        return True

    def _cluster_pid(self) -> int | None:
        if not self._record.exists():
            return None
        record = json.loads(self._record.read_text(encoding="utf-8"))
        pid = int(record["pid"])
        return pid if record["rest"].rstrip("/") == self._url and alive(pid) else None
