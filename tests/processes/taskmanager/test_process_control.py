"""What the C library is told of a worker's memory, and what of a process counts as held."""

import ctypes
import mmap
import os
import subprocess
import sys

import pytest

from penstock.taskmanager.process_control import is_stopped, resident_bytes, unreclaimable_bytes

ROUNDS, PAGES = 20, 512
#: Makes, fills and frees 2 MB again and again; says how many pages were new after the first round.
PROGRAM = f"""
import resource
import numpy as np
from penstock.taskmanager.process_control import keep_freed_memory
if {{keep}}:
    keep_freed_memory()
faults = []
for _ in range({ROUNDS + 1}):
    np.ones({PAGES} * 512)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""


def faults(*, keep):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keep=keep)],
        capture_output=True, text=True, check=True, timeout=60, env={"MALLOC_MMAP_THRESHOLD_": "131072"},
    )  # fmt: skip
    return int(done.stdout)


def test_a_worker_may_open_as_many_files_as_it_may_ask_for():
    program = """
import resource
from penstock.taskmanager.process_control import raise_descriptor_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_descriptor_limit()
soft, after = resource.getrlimit(resource.RLIMIT_NOFILE)
print(soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)), after == hard)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="there is no glibc here")
def test_memory_that_was_freed_is_used_again_without_new_pages():
    assert faults(keep=False) > ROUNDS * PAGES / 2, "the C library gives it back by default"
    assert faults(keep=True) < PAGES


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show the flags of threads")
def test_a_killed_process_has_stopped_before_it_is_reaped():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert not is_stopped(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_stopped(process.pid)
    assert not is_stopped(process.pid)


@pytest.mark.parametrize(
    ("flags", "stopped"),
    [(("4194304",), False), (("4194308",), True), (("4194308", "4194304"), False), (("4", "4194308", None), True)],
)
def test_a_process_has_stopped_when_all_its_threads_are_exiting(tmp_path, flags, stopped):
    for number, of_thread in enumerate(flags):
        (tmp_path / "7" / "task" / str(number)).mkdir(parents=True)
        if of_thread is not None:  # else it ends between the listing and the look at it
            text = f"{number} (a) name) S 1 7 7 0 -1 {of_thread} 55 0\n"
            (tmp_path / "7" / "task" / str(number) / "stat").write_text(text)
    assert is_stopped(7, str(tmp_path)) == stopped
    assert not is_stopped(8, str(tmp_path))


def test_pages_of_mapped_files_are_not_held_those_of_the_process_are(tmp_path):
    size = 64 << 20
    (tmp_path / "rows").write_bytes(b"x" * size)
    before = unreclaimable_bytes(os.getpid())
    with (tmp_path / "rows").open("r+b") as file, mmap.mmap(file.fileno(), 0) as rows:
        resident = resident_bytes(os.getpid())
        rows[:: mmap.PAGESIZE] = b"y" * (size // mmap.PAGESIZE)
        assert resident_bytes(os.getpid()) - resident > size * 3 // 4
        assert unreclaimable_bytes(os.getpid()) - before < size // 4
    own = mmap.mmap(-1, size)
    own[:: mmap.PAGESIZE] = b"y" * (size // mmap.PAGESIZE)
    assert unreclaimable_bytes(os.getpid()) - before > size * 3 // 4
    own.close()


def test_a_process_that_is_gone_holds_nothing():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert unreclaimable_bytes(gone.pid) == 0
