"""Kernels are compiled when they are loaded and never again; loading leaves nothing behind that a fork would break."""

import os
import subprocess
import sys

from penstock.core.clock import ManualClock
from penstock.kernels.compiler.build import warm
from penstock.kernels.compiler.register import compiled_count, kernels

PROBE = """
import sys, threading
from penstock.kernels.compiler.build import warm
from penstock.kernels.compiler.register import compiled_count
seconds = warm()
print(compiled_count(), threading.active_count(), "polars" in sys.modules, "pyarrow.compute" in sys.modules)
"""


def test_warming_starts_no_thread_and_touches_no_compute():
    """What forks off the template must not inherit another thread's locks."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=110, check=True)
    count, threads, polars, compute = done.stdout.split()
    assert int(count) >= 30
    assert (threads, polars, compute) == ("1", "False", "False")


def test_kernels_accept_no_new_types():
    """Explicit signatures: a call with other types is an error, never a compilation in the middle of a job."""
    warm(ManualClock())
    before = compiled_count()
    for kernel in kernels():
        try:
            kernel.entry(*["no such type"] * kernel.function.__code__.co_argcount)
        except (TypeError, ValueError):
            continue
        raise AssertionError(f"{kernel.function.__name__} compiled itself for strings")
    assert compiled_count() == before


def test_kernels_release_the_lock_and_are_cached():
    for kernel in kernels():
        assert kernel.options["nogil"]
        if kernel.compiled:
            assert kernel.entry._cache.cache_path
            assert os.access(kernel.entry._cache.cache_path, os.W_OK)
