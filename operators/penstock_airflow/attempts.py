"""What a task has asked of a cluster, written down before it asks: so that whoever runs it next goes on with that.

A token belongs to one attempt of one task instance. The attempt stays the same over retries, a killed worker and a task
that is cleared while it waits; a new one begins once the last has ended (succeeded and cleared, or failed). The cluster
does for a token only once what it is asked. Used by the operators; nothing here knows Airflow.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

_KEY = "penstock"


class Store(Protocol):
    """Airflow's store of a task instance's state, as far as it is used here."""

    def get(self, key: str, /) -> Any:
        """Return what was set, or None."""

    def set(self, key: str, value: Any, /) -> None:
        """Keep a JSON value."""


class Attempts:
    """The attempts of one task instance."""

    def __init__(self, store: Store, task: str) -> None:
        """`task` names the task instance: the same for all its tries, no other's."""
        self._store = store
        self._task = task
        self._record: dict[str, Any] = dict(store.get(_KEY) or {"number": 0, "ended": True})

    @property
    def job_id(self) -> str:
        """The job the newest attempt is about, if that is known already."""
        return str(self._record.get("job_id", ""))

    @property
    def ended(self) -> bool:
        """Whether the newest attempt has ended."""
        return bool(self._record["ended"])

    @property
    def token(self) -> str:
        """The token of the newest attempt: 32 hex digits."""
        return hashlib.sha256(f"{self._task}#{self._record['number']}".encode()).hexdigest()[:32]

    def begin(self) -> str:
        """Go on with the attempt that has not ended, or begin a new one; return its token, which is stored by then."""
        if self.ended:
            self._write({"number": self._record["number"] + 1, "ended": False})
        return self.token

    def note(self, job_id: str) -> None:
        """Keep the job's id."""
        if job_id != self.job_id:
            self._write({**self._record, "job_id": job_id})

    def reopen(self) -> None:
        """Go on with an attempt that has ended: what it made is still there."""
        self._write({**self._record, "ended": False})

    def end(self) -> None:
        """The attempt has succeeded, or failed for good."""
        self._write({**self._record, "ended": True})

    def _write(self, record: dict[str, Any]) -> None:
        self._record = record
        self._store.set(_KEY, record)
