"""The reservation of a savepoint's folder for one run, until its manifest is written.

A run that is considered dead may still be alive. A user who empties its folder removes the reservation too, and the run
then leaves no savepoint. Called by the offline writers: `snapshots.rewrite.recut`, `penstock.backfill`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.checkpoint.store import ObjectStore
from penstock.core.errors import StorageError, UsageError
from penstock.snapshots.access.opening import SAVEPOINT_MANIFEST

Made = TypeVar("Made")

#: Exists in the target while a run writes there.
RESERVATION = "writing.lock"


def reserve(store: ObjectStore, run_id: str) -> None:
    """Reserve a target for one run, so that no other one writes there until its manifest is written.

    Raises:
        UsageError: another run has reserved it, or files were added since it was found empty.
    """
    if not store.put_if_absent(RESERVATION, run_id.encode()):
        msg = f"another run is writing to {store.uri}: {store.read(RESERVATION).decode()}"
        raise UsageError(msg, hint="give a new folder, or remove this one if that run has failed")
    found = [key for key in store.list("") if key != RESERVATION]
    if found:
        store.delete(RESERVATION)
        raise UsageError(f"{store.uri} is no longer empty: it holds {found[0]}", hint="give a new folder")


def publish(store: ObjectStore, run_id: str, write: Callable[[], Made]) -> Made:
    """Write the manifest, which protects the target from now on, and remove the reservation.

    `write` writes only the manifest. A clean-up removes the reservation before any other file. So a check before and
    after the manifest detects that files of the savepoint may be gone.

    Raises:
        StorageError: the run has lost the target, and there is no savepoint; or the error of `write`.
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
        holder = "no run"
    if holder != run_id:
        msg = f"{store.uri} was emptied while {run_id} wrote there; it now belongs to {holder}"
        raise StorageError(msg, hint="start the run again, in a new folder")
