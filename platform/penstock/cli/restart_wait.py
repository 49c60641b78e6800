"""Commands wait for the JobManager of the local cluster while its cluster starts it again.

Used by `cli.options.connect`; `penstock cluster start` writes the record.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from penstock.client.cluster_address import ClusterAddress
from penstock.core.clock import Clock, SystemClock

_WAIT_MS = 10_000.0
_POLL_MS = 100.0
#: Refusals with less time between them are of one outage, which is printed once.
_OUTAGE_MS = 5_000.0
_NEVER_MS = 1e12


def alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        status_text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status_text.rpartition(")")[2].split()[0] != "Z"


def local_cluster(file: Path) -> dict[str, Any] | None:
    """Return the record of the local cluster; None if there is none or its process has ended."""
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return record if alive(int(record["pid"])) else None


class RestartWait:
    """Says after a refused connection whether to try again; sleeps before."""

    def __init__(self, url: str, record: Path, clock: Clock | None = None) -> None:
        """Take the JobManager's URL and the file that the local cluster has written."""
        self._url, self._record = url.rstrip("/"), record
        self._fails_over = ClusterAddress(url, has_token=False).fails_over
        self._clock = clock or SystemClock()
        #: When the present request was refused first, and when a request was refused last.
        self._since_ms = self._last_ms = -_NEVER_MS

    def __call__(self, refusals: int) -> bool:
        """Return True after a pause if the local cluster runs and its JobManager can be back in time.

        `refusals` is the number of earlier refusals of the same request: each request has the whole time.
        """
        pid, now_ms = self._cluster_pid(), self._clock.monotonic_ms()
        if not refusals:
            self._since_ms = now_ms
        if (pid is None and not self._fails_over) or now_ms > self._since_ms + _WAIT_MS:
            return False
        known, self._last_ms = now_ms - self._last_ms < _OUTAGE_MS, now_ms
        if not known:
            text = f"no JobManager leads at {self._url} yet; when one leads, the jobs"
            if pid is not None:
                text = (
                    f"the JobManager at {self._url} does not run; its cluster (pid {pid}) starts it again, and the jobs"
                )
            typer.echo(f"{text} resume from their newest checkpoints; trying for {_WAIT_MS / 1000:.0f} s", err=True)
        self._clock.sleep_ms(_POLL_MS)
        return True

    def _cluster_pid(self) -> int | None:
        record = local_cluster(self._record)
        return int(record["pid"]) if record is not None and record["rest"].rstrip("/") == self._url else None
