"""Savepoints that a command writes on the worker: one for an attempt of a task, over all its tries.

Used by the operators that write state offline; nothing here depends on Airflow.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.savepoints import remove_unfinished


def written_once(target: str, attempt: str, number: int, write: Callable[[str], None]) -> str:
    """Return the savepoint that a try of this attempt has finished, or `write` it; remove incomplete ones.

    `attempt` begins the names of the folders of its tries below `target`; `number` is this try's. Files of earlier
    tries are removed first: a command that still writes there detects that, and leaves no savepoint. A failed try
    removes only its own folder, as the next one may have begun.
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
