"""A place for a savepoint that one run has to itself until its manifest is written.

A run that is taken for dead may be alive: whoever tidies up behind it removes the reservation too, and the run finds
that it has to leave no savepoint. Called by what writes them offline: `snapshots.rewrite.recut`, `penstock.backfill`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import StorageError, UsageError
from penstock.snapshots.access.opening import SAVEPOINT_MANIFEST

Made = TypeVar("Made")

#: Lies in the target while a run writes there.
RESERVATION = "writing.lock"


def reserve(store: ObjectStore, run_id: str) -> None:
    """Take a target for one run, so that no other one writes there until its manifest is written.

    Raises:
        UsageError: another run has it, or something has come there since it was found empty.
    """
    if not store.put_if_absent(RESERVATION, run_id.encode()):
        msg = f"another run has begun at {store.uri}: {store.read(RESERVATION).decode()}"
        raise UsageError(msg, hint="give a new folder, or remove this one if that run has failed")
    found = [key for key in store.list("") if key != RESERVATION]
    if found:
        store.delete(RESERVATION)
        raise UsageError(f"{store.uri} is not empty any more: it holds {found[0]}", hint="give a new folder")


def publish(store: ObjectStore, run_id: str, write: Callable[[], Made]) -> Made:
    """Have the manifest written, which keeps others away from now on, and give the target free.

    `write` does that and nothing else. Whoever tidies up removes the reservation before all else: asked for before and
    behind the manifest, it tells whether files that the manifest names may be gone.

    Raises:
        StorageError: the target is not this run's any more, and there is no savepoint; or what `write` raises.
    """
    _require_reserved(store, run_id)
    made = write()
    try:
        _require_reserved(store, run_id)
    except StorageError:
        store.delete(SAVEPOINT_MANIFEST)
        raise
    store.delete(RESERVATION)
    return made


def _require_reserved(store: ObjectStore, run_id: str) -> None:
    try:
        holder = store.read(RESERVATION).decode()
    except FileNotFoundError:
        holder = "nobody"
    if holder != run_id:
        msg = f"{store.uri} was emptied while {run_id} wrote there, and is {holder}'s now"
        raise StorageError(msg, hint="start it anew, in a new folder")
