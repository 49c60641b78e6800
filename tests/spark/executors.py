"""Finds the executors that a driver of Spark has started."""

import contextlib
from pathlib import Path

from tests.cluster import proc_tree


def executors(driver):
    """Pids of the JVMs of the executors below a process."""
    return [pid for pid, words in _words(driver) if _is_executor(words)]


def _is_executor(words):
    return words[0].endswith(b"java") and b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words


def _words(ancestor):
    for pid in proc_tree.descendants(ancestor):
        with contextlib.suppress(OSError):
            yield pid, Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
