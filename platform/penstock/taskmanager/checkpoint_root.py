"""Checks that this TaskManager's workers can write a job's checkpoints in a folder.

The JobManager writes there too, but possibly as another user or on another host. The workers of a job
with little state write no files for a long time, so that the first large checkpoint would fail. Called in a thread of a
worker when its subtasks are deployed.
"""

from __future__ import annotations

import os
import socket

from penstock.checkpoint.stores import open_store
from penstock.core.errors import StorageError

_HINT = (
    "the JobManager can write there: give that user write access, mount the folder writable on that host, or set a"
    " checkpoint_root that all TaskManagers can write"
)


def require_writable(folder: str, worker_id: str, taskmanager_id: str) -> None:
    """Write a file to a job's folder and delete it; an object store is not tested.

    Raises:
        StorageError: the folder cannot be written; the message names the TaskManager and the path.
    """
    store = open_store(folder)
    if not store.uri.startswith("file://"):
        return
    # where the worker will write; the sweeper removes what a killed worker leaves
    key = f"data/probe-{worker_id}"
    try:
        store.put(key, b"")
        store.delete(key)
    except StorageError as error:
        who = f"TaskManager {taskmanager_id} (host {socket.gethostname()}, user id {os.getuid()})"
        # without the name of the file, so that the failures of several restarts are alike
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error.message
        msg = f"{who} cannot write the job's checkpoints in {store.uri}: {reason}"
        raise StorageError(msg, hint=_HINT) from error
