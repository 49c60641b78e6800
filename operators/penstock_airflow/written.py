"""A savepoint that a command writes on the worker: one for an attempt of a task, whatever becomes of its tries.

Used by the operators that write state offline; nothing here knows Airflow.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.savepoints import remove_unfinished


def written_once(target: str, attempt: str, number: int, write: Callable[[str], None]) -> str:
    """Return the savepoint that a try of this attempt has finished, or `write` it; nothing half done is left.

    `attempt` begins the names of the folders of its tries below `target`, `number` is this try's. What tries before it
    have left is removed first: a command that still writes there finds that out, and leaves no savepoint. A try that
    fails removes its own folder alone: the next one may have begun.
    """
    folder, own = target.rstrip("/"), f"{attempt}-{number}"
    finished = remove_unfinished(folder, f"{attempt}-")
    if finished:
        return finished[0]
    try:
        write(f"{folder}/{own}")
    finally:
        remove_unfinished(folder, f"{own}/")
    return f"{folder}/{own}"
