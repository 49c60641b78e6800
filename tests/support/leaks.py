"""Finds what a test leaves: processes, listening ports, threads, temporary files.

Looking at processes takes some milliseconds, so only tests with a mark for it pay. The rules of `unit` forbid a process
in the first place. All processes that this pytest process starts inherit its token, and the temporary folder belongs
to it alone, so pytest processes beside it are never blamed.
"""

import contextlib
import gc
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.waiting import patience

MARK = "PENSTOCK_TEST_SESSION"
TOKEN = secrets.token_hex(8)
GRACE_S = 5.0
#: pytest's own folders stay where they are; ours are removed at the end.
TEMP_ROOT = "PYTEST_DEBUG_TEMPROOT"
_LISTENING = "0A"
#: Threads that a process keeps by intent: a server dies with the thread that started it, so that one stays.
LASTING = ("penstock-spawner",)

_held = []


def prepare():
    """Give this process its token and a temporary folder; return the folder. Call it once."""
    os.environ[MARK] = TOKEN  # inherited by every process a test starts, however far down and whoever adopts it
    root = os.environ.setdefault(TEMP_ROOT, tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="pt-", dir=root)  # short: it may hold sockets
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    return Path(folder)


def remove(folder):
    """Remove the temporary folder at the end of the run."""
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def held(pids):
    """Declare what a fixture of a wider scope holds: no test is blamed for these processes and their descendants.

    `pids` is asked at each look, for servers that start again under another pid.
    """
    _held.append(pids)
    try:
        yield
    finally:
        _held.remove(pids)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is there on behalf of this pytest process."""

    pids: dict
    sockets: frozenset
    descriptors: int
    threads: frozenset
    files: frozenset


def look(*, processes):
    """Look around; at processes only when told to."""
    sockets, descriptors = _descriptors()
    threads = frozenset(t for t in threading.enumerate() if not t.daemon and not t.name.startswith(LASTING))
    files = frozenset(entry.name for entry in os.scandir(tempfile.gettempdir()))
    return Seen(running() if processes else {}, sockets, descriptors, threads, files)


def check(before, *, processes, everything):
    """Fail the test that left something which was not there `before`; give it some seconds to go.

    With `everything` threads and temporary files count too.
    """
    if processes or _descriptors()[1] > before.descriptors:
        gc.collect()  # what a test left open warns now, in this test, and a warning is an error
    give_up = time.monotonic() + GRACE_S * patience()
    while left := _left(before, look(processes=processes), everything=everything):
        if time.monotonic() > give_up:
            pytest.fail("left behind: " + "; ".join(left), pytrace=False)
        time.sleep(0.02)


def _left(before, now, *, everything):
    ports = _listening(now.sockets - before.sockets) if now.sockets - before.sockets else ()
    own = [
        *(f"thread {thread.name}: {_place(thread)}" for thread in now.threads - before.threads if thread.is_alive()),
        *(f"file {tempfile.gettempdir()}/{name}" for name in sorted(now.files - before.files)),
    ]
    return [
        *(own if everything else ()),
        *(f"process {pid}: {what}" for pid, (what, line) in now.pids.items() if not before.pids.keys() & line),
        *(f"listening: {port}" for port in ports),
    ]


def _place(thread):
    frame = sys._current_frames().get(thread.ident)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}" if frame else "ended"


# --- processes


def running():
    """Return the processes that carry our token, without what fixtures hold: pid -> (command line, its ancestors).

    The ancestors are a set of pids, the process among them, as far as they carry our token.
    """
    mark, own, found, parents = f"{MARK}={TOKEN}".encode(), os.getpid(), {}, {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        try:
            folder = Path(entry.path)
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            pid = int(entry.name)
            parents[pid] = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            found[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    ours = {pid for pids in _held for pid in pids()}
    lines = {pid: frozenset(_line(pid, parents)) for pid in found}
    return {pid: (what, lines[pid]) for pid, what in found.items() if not ours & lines[pid]}


def _line(pid, parents):
    """Return the process and its ancestors, as far as they carry our token."""
    line = []
    while pid is not None and pid not in line:
        line.append(pid)
        pid = parents.get(pid)
    return line


# --- sockets


def _descriptors():
    """Return the inodes of our own sockets, and how many descriptors are open."""
    sockets, count = set(), 0
    for entry in os.scandir("/proc/self/fd"):
        count += 1
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(entry.path)  # noqa: PTH115 - for each test: no object a descriptor
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    return frozenset(sockets), count


def _listening(inodes):
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/self/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                found.add(f"port {int(fields[1].rpartition(':')[2], 16)}")
    for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in inodes and int(fields[3], 16) & 0x10000:  # the kernel's mark of a listener
            found.add(f"socket {fields[7] if len(fields) > 7 else 'without a name'}")
    return sorted(found)


def unused_port():
    """Return a loopback port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
