"""CPU seconds of a whole process tree, measured from outside: user and system time of all descendants, dead ones too.

A sub-reaper adopts orphans; ended children are counted in their reaper's `cutime`. Samples have wall-clock times, so
that the CPU time between two events (first record read, last result) is separate from start-up.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import os
import resource
import signal
import threading
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_SECONDS = 0.05
#: Interval of the search of /proc for new members of the tree, which takes milliseconds.
_SEARCH_SECONDS = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")
_WORKER = "ps-worker"


def become_reaper() -> None:
    """Adopt orphaned descendants, so that their CPU time is not lost to the init process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class TreeMeter:
    """Samples the CPU time and resident memory of `root`'s tree in a thread until `stop`."""

    def __init__(self, root: int) -> None:
        self._root = root
        #: Start of the process, seconds since the epoch, if `start` is called right after that.
        self.started = time.time()
        self._times: list[float] = []
        self._cpu: list[float] = []
        self.peak_rss_bytes = 0
        #: CPU seconds of each process without its children, as last sampled: pid -> (kind, seconds).
        self._processes: dict[int, tuple[str, float]] = {}
        #: Private memory of each slot worker, by time: pid -> [(time, bytes)].
        self._private: dict[int, list[tuple[float, int]]] = {}
        self._known: list[int] = []
        self._searched = 0.0
        self._reaped_before = _reaped_seconds()
        self._reaped = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tree-meter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._sample()
        self._reaped = _reaped_seconds() - self._reaped_before

    def kill(self) -> None:
        """Kill the whole tree."""
        for pid in _tree(self._root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cpu_between(self, start: float, end: float) -> float:
        """Return the CPU seconds between two wall-clock times (seconds since the epoch)."""
        return self._at(end) - self._at(start)

    @property
    def total(self) -> float:
        """Return the CPU seconds of the tree: as sampled, or those of ended and reaped processes, which are exact."""
        return max(self._cpu[-1] if self._cpu else 0.0, self._reaped)

    def workers_private_mb(self, start: float) -> tuple[int, int] | None:
        """Return the most private memory of a slot worker in MB, and the most growth since a time.

        None without samples.
        """
        peaks, growth = [], [0]
        for samples in self._private.values():
            later = [used for when, used in samples if when >= start]
            if later:
                before = [used for when, used in samples if when < start]
                peaks.append(max(later))
                growth.append(max(later) - (before[-1] if before else later[0]))
        return (max(peaks) // 1_000_000, max(growth) // 1_000_000) if peaks else None

    def by_process(self) -> dict[str, list[float]]:
        """Return CPU seconds by kind of process: one figure for each sampled one."""
        found: dict[str, list[float]] = {}
        for what, seconds in self._processes.values():
            found.setdefault(what, []).append(round(seconds, 2))
        return found

    def _at(self, when: float) -> float:
        """Return the CPU seconds up to a time, interpolated between two samples."""
        if not self._times:
            return 0.0
        after = bisect.bisect(self._times, when)
        if after == 0 or after == len(self._times):
            return self._cpu[min(after, len(self._cpu) - 1)]
        begin, end = self._times[after - 1], self._times[after]
        low, high = self._cpu[after - 1], self._cpu[after]
        return low + (high - low) * (when - begin) / (end - begin)

    def _run(self) -> None:
        while not self._stopping.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        now = time.time()
        if now - self._searched >= _SEARCH_SECONDS:
            self._known, self._searched = _tree(self._root), now
        cpu, rss = 0.0, 0
        for pid in self._known:
            found = _stat(pid)
            if found is None:
                continue
            name, fields = found
            own = sum(int(fields[i]) for i in (11, 12)) / _TICKS
            self._processes[pid] = (_what(pid) or self._processes.get(pid, (name, 0.0))[0], own)
            cpu += sum(int(fields[i]) for i in (11, 12, 13, 14)) / _TICKS
            rss += int(fields[21]) * _PAGE
            if name.startswith(_WORKER) and (private := _private(pid)):  # none: it is ending
                self._private.setdefault(pid, []).append((now, private))
        if cpu:
            self._times.append(time.time())
            self._cpu.append(max(cpu, self._cpu[-1] if self._cpu else 0.0))
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)


def _reaped_seconds() -> float:
    """Return the CPU seconds of all ended descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _what(pid: int) -> str:
    """Return a penstock process's role, else its program; empty for one that has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    if name.startswith("ps-") and words[0]:
        return name.rstrip("-0123456789")
    parts = (word for word in words if word in {"jobmanager", "taskmanager", "penstock.taskmanager.template"})
    return next(parts, Path(words[0]).name).replace("penstock.taskmanager.template", "ps-template")


def _private(pid: int) -> int:
    """Return the bytes of resident memory that are neither of a file nor shared.

    Forked pages that were not written count.
    """
    try:
        words = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return (int(words[1]) - int(words[2])) * _PAGE


def _stat(pid: int) -> tuple[str, list[str]] | None:
    """Return name and `/proc/<pid>/stat` fields (from the state on); None for a process that has ended."""
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except OSError:
        return None
    return head.partition("(")[2], tail.split()


def _tree(root: int) -> list[int]:
    """Return `root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        found = _stat(int(folder.name)) if folder.name.isdigit() else None
        if found is not None:
            children.setdefault(int(found[1][1]), []).append(int(folder.name))
    tree, todo = [], [root]
    while todo:
        pid = todo.pop()
        tree.append(pid)
        todo += children.get(pid, [])
    return tree
