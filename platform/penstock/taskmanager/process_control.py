"""Process controls by kernel and C library: a process dies with its parent, and when its lease expires.

Called first in the template and in every worker. Both work even if the process holds the GIL or is stopped, because
none of its code has to run: PR_SET_PDEATHSIG delivers SIGKILL, ITIMER_REAL delivers SIGALRM with its default action.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
#: The kernel's flag of a thread in `do_exit`, set before its memory is freed.
_PF_EXITING = 0x4
#: Added to a worker's nice value: control processes get three times the CPU share of a busy worker.
_NICE = 5
# glibc's `mallopt` parameters, and the largest value of the second
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_FREE_BYTES, _LARGEST_IN_HEAP_BYTES = 256 << 20, 32 << 20
#: A limit far above the files and connections of all subtasks of a worker.
_DESCRIPTORS = 65_536


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process with `parent_pid`; exit at once if that has ended. No effect outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def name_process(name: str) -> None:
    """Set the process name in `ps` and `top` (15 characters)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def title_process(title: str) -> None:
    """Set the command line that `ps` shows, truncated to the length of the original one."""
    if sys.platform != "linux":
        return
    # fields 48 and 49 of proc(5): where the arguments are stored; the name before may contain spaces
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if end > start > 0:
        text = title.encode()[: end - start - 1]
        ctypes.memmove(start, text + bytes(end - start - len(text)), end - start)


def lower_priority() -> None:
    """Lower this process's priority: with many busy workers the control processes would miss heartbeats."""
    os.nice(_NICE)


def keep_freed_memory(most_bytes: int = _KEPT_FREE_BYTES) -> None:
    """Let the allocator keep freed memory, up to a limit of 256 MB, so that the next batch needs no new pages.

    By default every array of a batch is mapped, cleared page by page at the first access, and unmapped. No effect
    without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, min(most_bytes, _KEPT_FREE_BYTES))


def raise_descriptor_limit() -> None:
    """Raise the limit of open files, up to a bound: spilled state uses many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def arm_lease(remaining_ms: float) -> None:
    """Let SIGALRM end this process in `remaining_ms` (more than 0), unless called again before."""
    signal.setitimer(signal.ITIMER_REAL, remaining_ms / 1000)


def restore_default_signals() -> None:
    """Set SIGALRM, SIGCHLD, SIGTERM and SIGINT to their default actions (a fork inherits its template's handlers)."""
    for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


def close_other_descriptors(keep: set[int]) -> None:
    """Close every descriptor except 0, 1, 2 and `keep`: an inherited open socket would hide its owner's death."""
    wanted = {0, 1, 2, *keep}
    for path in list(Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd").iterdir()):
        descriptor = int(path.name)
        if descriptor not in wanted:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the listing's own descriptor, already closed


def thread_names() -> tuple[str, ...]:
    """Return the kernel's names of this process's threads, without the main thread."""
    names = []
    for task in list(Path("/proc/self/task").iterdir()):
        if int(task.name) == os.getpid():
            continue
        try:
            names.append((task / "comm").read_text(encoding="utf-8").strip())
        except FileNotFoundError:
            continue  # has ended in the meantime
    return tuple(sorted(names))


def is_stopped(pid: int, proc: str = "/proc") -> bool:
    """Return whether a killed process executes nothing any more: the kernel ends all its threads.

    False if that is unknown: it has ended, or the system has no such folder. `proc`: where the kernel shows processes.
    """
    try:
        threads = list(Path(f"{proc}/{pid}/task").iterdir())
    except OSError:
        return False
    return all(_is_exiting(thread / "stat") for thread in threads)


def _is_exiting(stat: Path) -> bool:
    """Return whether a thread executes only the kernel's code of its end, or is gone."""
    try:
        text = stat.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    # field 9 of proc(5); the name before may contain spaces
    return bool(int(text.rpartition(")")[2].split()[6]) & _PF_EXITING)


def resident_bytes(pid: int) -> int:
    """Return the resident set size of a process; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def unreclaimable_bytes(pid: int) -> int:
    """Return the memory of a process that the kernel cannot reclaim; 0 if it has ended.

    Pages of mapped files are not counted: spilled state is in such files, and the kernel writes their pages back when
    it needs memory.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = (line.partition(":") for line in lines)
    return sum(int(value.split()[0]) << 10 for name, _, value in found if name in {"RssAnon", "RssShmem"})
