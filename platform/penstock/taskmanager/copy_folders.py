"""The folders of local copies of one TaskManager: made for workers, handed to their successors, removed at a job's end.

`<work_dir>/copies/<own>/<job>/` has the layout of `checkpoint.local_copies`. A TaskManager holds a kernel lock on its
own folder, so that another one removes it after a crash. Called by `taskmanager.supervisor`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from penstock.checkpoint.local_copies import ENDED
from penstock.core.clock import Clock

_LOCK = "lock"
#: Copies of a job without a worker here are removed after this time, if its end was not reported: longer than the
#: longest restart delay with the time-out of a slot request.
KEPT_MS = 600_000.0


class CopyFolders:
    """The folders of one TaskManager."""

    def __init__(self, root: Path, clock: Clock) -> None:
        """Remove the folders of TaskManagers that were killed, and make an own one in `root`."""
        self._clock = clock
        root.mkdir(parents=True, exist_ok=True)
        for folder in sorted(root.iterdir()):
            _remove_if_left(folder)
        self._own, self._lock = _locked_folder(root)
        #: Folders left by the worker that ended last in each slot of a job.
        self._left: dict[tuple[str, int], Path] = {}
        #: When each job last had a worker.
        self._seen_ms: dict[str, float] = {}

    def folder_of(self, job_id: str) -> Path:
        """Return the folder of a job, which its workers make."""
        self._seen_ms[job_id] = self._clock.monotonic_ms()
        return self._own / job_id

    def worker_ended(self, job_id: str, worker_id: str, slot: int) -> None:
        """Leave the copies of a worker to its successors, in place of those of the slot's worker before."""
        folder = self._own / job_id / worker_id
        if job_id not in self._seen_ms:
            shutil.rmtree(folder.parent, ignore_errors=True)
            return
        self._seen_ms[job_id] = self._clock.monotonic_ms()
        if not folder.is_dir():
            return
        left = self._own / job_id / ENDED / worker_id
        left.parent.mkdir(exist_ok=True)
        folder.rename(left)
        before = self._left.get((job_id, slot))
        self._left[job_id, slot] = left
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def job_ended(self, job_id: str, running: Collection[str]) -> None:
        """Remove the copies of an ended job; `running`: jobs with workers, which may be about to end."""
        if job_id in self._seen_ms:
            del self._seen_ms[job_id]
            self._left = {place: path for place, path in self._left.items() if place[0] != job_id}
            if job_id not in running:
                shutil.rmtree(self._own / job_id, ignore_errors=True)

    def expire(self, running: Collection[str]) -> None:
        """Remove the copies of jobs that have had no worker here for long."""
        now_ms = self._clock.monotonic_ms()
        for job_id, seen_ms in list(self._seen_ms.items()):
            if job_id in running:
                self._seen_ms[job_id] = now_ms
            elif now_ms - seen_ms > KEPT_MS:
                self.job_ended(job_id, running)

    def close(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self._own, ignore_errors=True)
        os.close(self._lock)


def _locked_folder(root: Path) -> tuple[Path, int]:
    """Make a folder with a lock that ends with this process; return it and the lock's descriptor."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=root))
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        with contextlib.suppress(OSError):  # without locks on this file system, the folder of a killed process stays
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():  # else another TaskManager has removed it before it was locked
            return folder, lock
        os.close(lock)


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a TaskManager that has ended."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:  # no folder of copies, or that of another user
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its TaskManager runs
        return
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
