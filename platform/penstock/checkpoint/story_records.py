"""The event log of each leader of a job, in the HA store: `stories/<job id>/<generation>.json`.

Used by `jobmanager.observe.event_logs` in a store thread. A leader writes only under its own generation, so that no
leader overwrites the event log of another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import StorageError
from penstock.core.event_log import Entry
from penstock.core.secrets import redact

#: Number of leaders whose event logs are kept for a job.
LEADERS_TOLD = 20


def write_story(store: ObjectStore, job_id: str, generation: int, entries: Iterable[Entry]) -> None:
    """Write the event log of the leader of `generation`, replacing its earlier version."""
    told = [replace(entry, text=redact(entry.text), generation=generation) for entry in entries]
    store.put(_key(job_id, generation), msgspec.json.encode(told))


def read_stories(store: ObjectStore, job_id: str, but: int = 0) -> tuple[Entry, ...]:
    """Return the entries of all leaders except that of generation `but`, ordered by generation.

    Raises:
        StorageError: a file cannot be decoded; names it.
    """
    told: list[Entry] = []
    for key in store.list(_key(job_id)):
        if key == _key(job_id, but):
            continue
        try:
            told += msgspec.json.decode(store.read(key), type=list[Entry])
        except FileNotFoundError:
            continue  # deleted meanwhile
        except msgspec.MsgspecError as error:
            msg = f"the event log {store.uri}/{key} is damaged: {error}"
            raise StorageError(msg, hint="delete it; no job needs it") from error
    return tuple(told)


def prune_stories(store: ObjectStore, job_id: str, keep: int = LEADERS_TOLD) -> None:
    """Delete the event logs of all leaders but the last `keep`; 0 deletes all."""
    keys = store.list(_key(job_id))
    for key in keys[: max(0, len(keys) - keep)]:
        store.delete(key)


def _key(job_id: str, generation: int | None = None) -> str:
    return f"stories/{job_id}/" + ("" if generation is None else f"{generation:012d}.json")
