"""What each leader of a job decided, in the HA store: `stories/<job id>/<generation>.json`.

Used by `jobmanager.observe.event_logs` in a store thread. A leader writes under its own generation alone, so that
nobody overwrites what another has told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import StorageError
from penstock.core.event_log import Entry
from penstock.core.secrets import redact

#: Of so many leaders a job's story is kept.
LEADERS_TOLD = 20


def write_story(store: ObjectStore, job_id: str, generation: int, entries: Iterable[Entry]) -> None:
    """Write what the leader of `generation` has decided so far, in place of what was there of it."""
    told = [replace(entry, text=redact(entry.text), generation=generation) for entry in entries]
    store.put(_key(job_id, generation), msgspec.json.encode(told))


def read_stories(store: ObjectStore, job_id: str, but: int = 0) -> tuple[Entry, ...]:
    """Return what all leaders but that of generation `but` have told, by generation.

    Raises:
        StorageError: one cannot be decoded; names it.
    """
    told: list[Entry] = []
    for key in store.list(_key(job_id)):
        if key == _key(job_id, but):
            continue
        try:
            told += msgspec.json.decode(store.read(key), type=list[Entry])
        except FileNotFoundError:
            continue  # forgotten meanwhile
        except msgspec.MsgspecError as error:
            msg = f"the story {store.uri}/{key} is damaged: {error}"
            raise StorageError(msg, hint="delete it; no job needs it") from error
    return tuple(told)


def prune_stories(store: ObjectStore, job_id: str, keep: int = LEADERS_TOLD) -> None:
    """Delete the stories of all leaders but the last `keep`; 0: of all."""
    keys = store.list(_key(job_id))
    for key in keys[: max(0, len(keys) - keep)]:
        store.delete(key)


def _key(job_id: str, generation: int | None = None) -> str:
    return f"stories/{job_id}/" + ("" if generation is None else f"{generation:012d}.json")
