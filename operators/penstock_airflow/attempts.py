"""Attempts: the requests of a task to a cluster, stored before they are sent, so that any later try continues them.

A token belongs to one attempt of one task instance; the cluster carries out a token's request only once. A
savepoint that a command writes is written once per attempt, too. Used by the operators; nothing here depends on
Airflow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

from penstock.client.savepoints import remove_unfinished

_KEY = "penstock"


class Store(Protocol):
    """The part of Airflow's task instance store that is used here."""

    def get(self, key: str, /) -> Any:
        """Return the stored value, or None."""

    def set(self, key: str, value: Any, /) -> None:
        """Store a JSON value."""


class Attempts:
    """The attempts of one task instance."""

    def __init__(self, store: Store, task: str) -> None:
        """Take `task`, the name of the task instance: the same for all its tries, unique among tasks."""
        self._store = store
        self._task = task
        self._record: dict[str, Any] = dict(store.get(_KEY) or {"number": 0, "ended": True})

    @property
    def job_id(self) -> str:
        """Return the job of the newest attempt, empty if it is not known."""
        return str(self._record.get("job_id", ""))

    @property
    def ended(self) -> bool:
        """Return whether the newest attempt has ended."""
        return bool(self._record["ended"])

    @property
    def token(self) -> str:
        """Return the token of the newest attempt: 32 hex digits."""
        return hashlib.sha256(f"{self._task}#{self._record['number']}".encode()).hexdigest()[:32]

    def begin(self) -> str:
        """Continue the open attempt, or begin a new one; return its token, which is stored by then."""
        if self.ended:
            self._write({"number": self._record["number"] + 1, "ended": False})
        return self.token

    def note(self, job_id: str) -> None:
        """Store the job's id."""
        if job_id != self.job_id:
            self._write({**self._record, "job_id": job_id})

    def reopen(self) -> None:
        """Continue an ended attempt, whose result still exists."""
        self._write({**self._record, "ended": False})

    def end(self) -> None:
        """End the attempt: it has succeeded, or failed for good."""
        self._write({**self._record, "ended": True})

    def _write(self, record: dict[str, Any]) -> None:
        self._record = record
        self._store.set(_KEY, record)


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
