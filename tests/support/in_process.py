"""The rules of the level `unit`, held while a test runs.

A unit test opens no connection and listens nowhere. It starts no process and waits for no real clock. It writes below
its own temporary folder alone, and needs less than two seconds of CPU time. A test that breaks a rule fails; the
message has the rule and the lines that led there.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import pytest

#: On a quiet machine. A core that is shared (threads of one core, caches) counts up to twice as much for the same work.
CPU_SECONDS = 2.0
SHARED = 2.0
ROOT = Path(__file__).parents[2]
OUTSIDE = (f"{ROOT}/.venv", f"{ROOT}/.cache")
HERE = __file__
#: Frames that a finding names, from the innermost of the checkout outwards.
FRAMES = 4

CONNECTED = "no listening or connected socket"
ALONE = "no process"
TIMELESS = "no wait for a real clock"
INSIDE = "no file written outside the test's temporary folder"
QUICK = f"less than {CPU_SECONDS:g} s of CPU time"

_SOCKETS = {"socket.connect", "socket.bind", "socket.sendto"}
_PROCESSES = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "pty.spawn"}
#: Where the arguments of an event have the paths that change, and the folders' descriptors these are relative to.
_PATHS = {
    "os.mkdir": ((0,), (2,)),
    "os.rmdir": ((0,), (1,)),
    "os.remove": ((0,), (1,)),
    "os.rename": ((0, 1), (2, 3)),
    "os.link": ((1,), (3,)),
    "os.symlink": ((1,), (2,)),
    "os.truncate": ((0,), ()),
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REAL_SLEEP = time.sleep
_REAL_ASYNC_SLEEP = asyncio.sleep


class Watch:
    """The broken rules of one test; any thread may add to them."""

    def __init__(self, folders):
        self.folders = tuple(os.path.realpath(folder) for folder in folders)
        self.found = []
        #: Threads of libraries that an earlier test loaded (py4j's sleeps at times); this test did not start them.
        self.earlier = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}

    def note(self, rule, what):
        if threading.get_ident() in self.earlier:
            return
        self.found.append(f"{rule}: {what}{_site()}")

    def path(self, what, path):
        if not isinstance(path, (str, bytes, os.PathLike)):
            return  # a descriptor: it was opened before
        name = os.path.realpath(os.fsdecode(path))
        if name.startswith(("/dev/", "/proc/self/")) or "__pycache__" in name:
            return
        if not any(name == folder or name.startswith(f"{folder}/") for folder in self.folders):
            self.note(INSIDE, f"{what} {name}")


_watch = None
_installed = False


def _site():
    """Return the lines of the checkout that led here, the innermost first."""
    frames, frame = [], sys._getframe(2)
    while frame and len(frames) < FRAMES:
        name = frame.f_code.co_filename
        if name.startswith(f"{ROOT}/") and not name.startswith(OUTSIDE) and name != HERE:
            frames.append(f"\n    {name[len(f'{ROOT}/') :]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return "".join(frames)


def _audit(event, arguments):
    """Hear every event of the interpreter: a hook cannot be removed, so this one does nothing while nobody watches."""
    watch = _watch
    if watch is None:
        return
    if event == "open":
        path, _, flags = arguments
        if flags & _WRITES:
            watch.path("open", path)
    elif event in _PATHS:
        paths, folders = _PATHS[event]
        if all(arguments[at] in (-1, None) for at in folders):  # below an open folder nothing new is reached
            for at in paths:
                watch.path(event, arguments[at])
    elif event in _SOCKETS:
        watch.note(CONNECTED, f"{event} {arguments[1]!r}")
    elif event in _PROCESSES:
        watch.note(ALONE, f"{event} {arguments[:2]!r}"[:200])


def _sleep(seconds):
    watch = _watch
    if watch is not None and seconds > 0:
        watch.note(TIMELESS, f"time.sleep({seconds})")
    return _REAL_SLEEP(seconds)


def _async_sleep(delay, result=None):
    watch = _watch
    if watch is not None and delay > 0:
        watch.note(TIMELESS, f"asyncio.sleep({delay})")
    return _REAL_ASYNC_SLEEP(delay, result)


def begin(folders):
    """Watch from now on; files below `folders` may be written."""
    global _watch, _installed  # noqa: PLW0603 - the hook has no other way to know
    if not _installed:
        sys.addaudithook(_audit)
        _installed = True
    time.sleep = _sleep
    asyncio.sleep = asyncio.tasks.sleep = _async_sleep
    _watch = Watch(folders)
    return _watch


def end():
    """Watch no longer."""
    global _watch  # noqa: PLW0603
    _watch = None
    time.sleep = _REAL_SLEEP
    asyncio.sleep = asyncio.tasks.sleep = _REAL_ASYNC_SLEEP


def judge(watch):
    """Fail the test that broke a rule, and forget its findings."""
    found, watch.found = watch.found, []
    if found:
        more = f"\n  ... and {len(found) - 10} more" if len(found) > 10 else ""
        pytest.fail("not a unit test:\n  " + "\n  ".join(found[:10]) + more, pytrace=False)
