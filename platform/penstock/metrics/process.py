"""Resource usage of a process, under the names of Flink's JVM metrics, and the stacks of its threads.

Read by JobManager, TaskManager and workers for `/metrics`, Flink's dashboard and thread dumps.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from pathlib import Path

from penstock.core.clock import Clock
from penstock.core.secrets import redact


def thread_dump() -> tuple[tuple[str, str], ...]:
    """Return each thread's name with its stack, the innermost call last, in the order of their ids."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    found = []
    for ident, frame in sorted(sys._current_frames().items()):  # noqa: SLF001 - the one way to see another's stack
        thread = known.get(ident)
        name = f"thread-{ident}" if thread is None else thread.name
        kind = " daemon" if thread is not None and thread.daemon else ""
        native = "" if thread is None or thread.native_id is None else f" tid={thread.native_id}"
        found.append((name, f'"{name}"{kind}{native}\n{redact("".join(traceback.format_stack(frame)))}'))
    return tuple(found)


_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessMeter:
    """Measures one process, by default this one; `read` may be called at any time."""

    def __init__(self, clock: Clock, pid: int | None = None) -> None:
        """Start measuring the CPU load, which is computed from one reading to the next."""
        self._clock = clock
        self._folder = Path("/proc") / ("self" if pid is None else str(pid))
        self._own = pid is None
        self._before = (clock.monotonic_ms(), self._cpu_seconds())
        self._load = 0.0

    def read(self) -> dict[str, float]:
        """Return the figures by Flink's names: bytes, nanoseconds, fractions of one core; empty if the process is gone.

        Garbage collections are known for this process only.
        """
        try:
            status = self._status()
        except (FileNotFoundError, ProcessLookupError):
            return {}
        cpu = self._cpu_seconds()
        now = self._clock.monotonic_ms()
        since, spent = self._before
        if now - since >= 1000:
            self._load = max(0.0, (cpu - spent) * 1000 / (now - since))
            self._before = (now, cpu)
        own = status.get("RssAnon", status.get("VmRSS", 0))
        shared = status.get("RssFile", 0) + status.get("RssShmem", 0)
        found = {
            "Status.JVM.CPU.Load": round(self._load, 4),
            "Status.JVM.CPU.Time": cpu * 1e9,
            "Status.JVM.Memory.Heap.Used": float(own),
            "Status.JVM.Memory.Heap.Committed": float(status.get("VmRSS", 0)),
            "Status.JVM.Memory.Heap.Max": float(physical_memory()),
            "Status.JVM.Memory.NonHeap.Used": float(shared),
            "Status.JVM.Memory.NonHeap.Committed": float(shared),
            "Status.JVM.Memory.NonHeap.Max": float(physical_memory()),
            "Status.JVM.Threads.Count": float(status.get("Threads", 0)),
        }
        if self._own:
            found["Status.JVM.GarbageCollector.All.Count"] = float(sum(g["collections"] for g in gc.get_stats()))
        return found

    def _status(self) -> dict[str, int]:
        """Return the numbers of `/proc/<pid>/status`, sizes in bytes."""
        found = {}
        for line in (self._folder / "status").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                found[name] = int(words[0]) << (10 if words[-1] == "kB" else 0)
        return found

    def _cpu_seconds(self) -> float:
        try:
            text = (self._folder / "stat").read_text(encoding="ascii", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return 0.0
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def physical_memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * _PAGE
