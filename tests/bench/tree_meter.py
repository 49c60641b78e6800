"""CPU seconds of a whole process tree, measured from outside: user and system time of every descendant, dead ones included.

A sub-reaper adopts orphans; children that ended are in their reaper's `cutime`. Samples are kept with wall-clock times, so that
the CPU spent between two moments (first record read, last result) can be told from start-up.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import threading
import time

_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_SECONDS = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


def become_reaper() -> None:
    """Adopt orphaned descendants, so that their CPU time is not lost to the init process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class TreeMeter:
    """Samples the CPU time and resident memory of `root`'s tree in a thread until `stop`."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._times: list[float] = []
        self._cpu: list[float] = []
        self.peak_rss_bytes = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tree-meter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._sample()
        self._stopping.set()
        self._thread.join()

    def cpu_between(self, start: float, end: float) -> float:
        """CPU seconds spent between two wall-clock times (seconds since the epoch)."""
        return self._at(end) - self._at(start)

    @property
    def total(self) -> float:
        """CPU seconds up to the last sample."""
        return self._cpu[-1]

    def _at(self, when: float) -> float:
        return self._cpu[max(0, min(len(self._cpu) - 1, bisect.bisect(self._times, when) - 1))]

    def _run(self) -> None:
        while not self._stopping.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        cpu, rss = 0.0, 0
        for fields in _tree(self._root):
            cpu += sum(int(fields[i]) for i in (11, 12, 13, 14)) / _TICKS
            rss += int(fields[21]) * os.sysconf("SC_PAGESIZE")
        if cpu:
            self._times.append(time.time())
            self._cpu.append(max(cpu, self._cpu[-1] if self._cpu else 0.0))
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)


def _tree(root: int) -> list[list[str]]:
    """`/proc/<pid>/stat` fields (from the state on) of `root` and all its descendants."""
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        stats[int(name)] = fields
        children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        if pid in stats:
            found.append(stats[pid])
        todo += children.get(pid, [])
    return found
