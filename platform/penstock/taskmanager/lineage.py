"""What the kernel and the C library do for us: processes die with their parent, and when their lease runs out.

Called first thing in the template and in every worker. Both work on a process that holds the GIL or was stopped,
because no instruction of ours has to run: PR_SET_PDEATHSIG delivers SIGKILL, ITIMER_REAL delivers SIGALRM with its
default action.
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
#: Added to a worker's nice value: the control plane gets three times the share of a core that a busy worker gets.
_NICE = 5
# glibc's numbers of what `mallopt` sets, and the largest value it takes for the second
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_FREE_BYTES, _LARGEST_IN_HEAP_BYTES = 256 << 20, 32 << 20
#: Files of all subtasks of a worker and its connections stay far below it.
_DESCRIPTORS = 65_536


def die_with_parent(parent_pid: int) -> None:
    """Be killed with the process `parent_pid`; exits at once when it is gone already. Without effect outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def name_process(name: str) -> None:
    """Set the name `ps` and `top` show (15 characters)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def title_process(title: str) -> None:
    """Set the command line that `ps` shows, cut to the length of the one that the process was started with."""
    if sys.platform != "linux":
        return
    # fields 48 and 49 of proc(5): where the arguments lie; the name before may hold spaces
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if end > start > 0:
        text = title.encode()[: end - start - 1]
        ctypes.memmove(start, text + bytes(end - start - len(text)), end - start)


def give_way() -> None:
    """Let JobManager and TaskManager run first: among many busy workers they would miss their heartbeats."""
    os.nice(_NICE)


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed, up to a bound: the columns of the next batch then need no new pages.

    By default every array of a batch is mapped, cleared page by page at its first touch, and unmapped. Without effect
    where there is no glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)


def allow_descriptors() -> None:
    """Let the process open as many files as it may ask for, up to a bound: state beyond memory lies in many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def arm_lease(remaining_ms: float) -> None:
    """Die by SIGALRM in `remaining_ms` (more than 0) unless called again before."""
    signal.setitimer(signal.ITIMER_REAL, remaining_ms / 1000)


def take_default_signals() -> None:
    """Give SIGALRM, SIGCHLD, SIGTERM and SIGINT their default actions (a fork inherits its template's handlers)."""
    for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


def close_other_descriptors(keep: set[int]) -> None:
    """Close every descriptor but 0, 1, 2 and `keep`: an inherited socket kept open would hide its owner's death."""
    wanted = {0, 1, 2, *keep}
    for path in list(Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd").iterdir()):
        descriptor = int(path.name)
        if descriptor not in wanted:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the listing's own descriptor, closed by now


def thread_names() -> tuple[str, ...]:
    """Return the kernel's names of this process's threads, the main thread's left out."""
    names = []
    for task in list(Path("/proc/self/task").iterdir()):
        if int(task.name) == os.getpid():
            continue
        try:
            names.append((task / "comm").read_text(encoding="utf-8").strip())
        except FileNotFoundError:
            continue  # ended meanwhile
    return tuple(sorted(names))


def resident_bytes(pid: int) -> int:
    """Return the resident set of a process; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def held_bytes(pid: int) -> int:
    """Return what a process holds of memory and nobody can take back; 0 when it is gone.

    Pages of mapped files are not counted: state beyond the managed memory lies in such files, and the operating system
    writes their pages back when it needs the room.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = (line.partition(":") for line in lines)
    return sum(int(value.split()[0]) << 10 for name, _, value in found if name in {"RssAnon", "RssShmem"})
