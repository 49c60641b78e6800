"""Temporary folders in memory."""

import os
import tempfile


def folder_in_memory():
    """Return a temporary folder in memory, where the system has one: each RocksDB that is opened waits for its disk."""
    memory = "/dev/shm"
    return tempfile.TemporaryDirectory(prefix="pt-", dir=memory if os.access(memory, os.W_OK) else None)
