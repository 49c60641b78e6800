"""The records of standbys in an HA root: which JobManagers wait to lead, and where they are reached.

For display: no decision depends on them. `jobmanager.leadership` writes that of its process as a standby, and as the
leader reads those of the others. No clocks are compared: the leader measures how long the count of renewals of a record
has not moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from penstock.checkpoint.ha_records import decoded_records
from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.store import ObjectStore
from penstock.core.structs import prepare

_FOLDER = "standbys/"
#: A standby that does not renew its record for this long is no longer shown; it renews three times in this time.
STANDBY_TTL_MS = 30_000


class StandbyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a record."""

    jobmanager_id: str
    holder: LeaseHolder
    #: URL of the REST API.
    rest: str = ""
    renewals: int = 0


prepare(StandbyRecord)


class StandbyWatch:
    """Finds the standbys that live. Pure: it gets what was read, and the time (monotonic ms)."""

    def __init__(self) -> None:
        """Start without an observation."""
        self._seen: dict[str, tuple[int, float]] = {}
        #: Those that live, by process.
        self.live: tuple[StandbyRecord, ...] = ()

    def seen(self, records: Iterable[StandbyRecord], now_ms: float, exited: Collection[str] = ()) -> tuple[str, ...]:
        """Handle the records; return the ids of those to delete. `exited`: the process is known to have ended."""
        seen: dict[str, tuple[int, float]] = {}
        live, over = list[StandbyRecord](), list[str]()
        for record in records:
            name = record.jobmanager_id
            renewals, since_ms = self._seen.get(name, (-1, now_ms))
            seen[name] = (record.renewals, since_ms if renewals == record.renewals else now_ms)
            if name in exited or now_ms - seen[name][1] >= STANDBY_TTL_MS:
                over.append(name)
            else:
                live.append(record)
        self._seen = {name: found for name, found in seen.items() if name not in over}
        self.live = tuple(sorted(live, key=lambda record: (record.holder.host, record.rest, record.holder.pid)))
        return tuple(over)


def write_standby(store: ObjectStore, record: StandbyRecord) -> None:
    """Write the record of one standby. Raises StorageError."""
    store.put(_key(record.jobmanager_id), msgspec.json.encode(record))


def remove_standby(store: ObjectStore, jobmanager_id: str) -> None:
    """Delete the record of a standby, if there is one; a standby that lives writes it again. Raises StorageError."""
    store.delete(_key(jobmanager_id))


def read_standbys(store: ObjectStore) -> tuple[StandbyRecord, ...]:
    """Return the records of all standbys, also of those that have ended without deleting it.

    Raises:
        StorageError: the store cannot be read, or a record is damaged; names it.
    """
    what, hint = "the record of a standby", "delete it; its JobManager writes it again"
    return tuple(decoded_records(store, store.list(_FOLDER), StandbyRecord, what=what, hint=hint))


def _key(jobmanager_id: str) -> str:
    return f"{_FOLDER}{jobmanager_id}.json"
