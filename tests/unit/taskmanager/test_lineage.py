"""What the C library is told of a worker's memory."""

import ctypes
import subprocess
import sys

import pytest

ROUNDS, PAGES = 20, 512
#: Makes, fills and frees 2 MB again and again; says how many pages were new after the first round.
PROGRAM = f"""
import resource
import numpy as np
from penstock.taskmanager.lineage import keep_freed_memory
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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="there is no glibc here")
def test_memory_that_was_freed_is_used_again_without_new_pages():
    assert faults(keep=False) > ROUNDS * PAGES / 2, "the C library gives it back by default"
    assert faults(keep=True) < PAGES
