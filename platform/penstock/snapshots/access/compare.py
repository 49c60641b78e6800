"""`penstock state diff`: the states that differ between two snapshots, and the number of different keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from penstock.snapshots.access.content import StateContent, states_of
from penstock.snapshots.access.opening import Snapshot
from penstock.snapshots.access.reading import frame_of

Verdict = Literal["same", "changed", "added", "removed", "other columns"]


@dataclass(frozen=True, slots=True)
class StateDiff:
    """One state of two snapshots; rows are live rows by key (and namespace)."""

    uid: str
    state: str
    verdict: Verdict
    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0


def diff(left: Snapshot, right: Snapshot) -> tuple[StateDiff, ...]:
    """Compare all states of two snapshots, the right one being the newer; reads all their files.

    Raises:
        SnapshotDamagedError: a file is missing or damaged.
    """
    ours = {(s.uid, s.name): s for s in states_of(left.manifest)}
    theirs = {(s.uid, s.name): s for s in states_of(right.manifest)}
    found = []
    for place in sorted({*ours, *theirs}):
        old, new = ours.get(place), theirs.get(place)
        if old is None or new is None:
            found.append(_one_sided(left, old) if new is None and old is not None else _one_sided(right, new, new=True))
        else:
            found.append(_both((left, old), (right, new)))
    return tuple(found)


def _one_sided(snapshot: Snapshot, state: StateContent | None, *, new: bool = False) -> StateDiff:
    assert state is not None  # noqa: S101 - it is on one side at least
    rows = _rows(snapshot, state).height
    if new:
        return StateDiff(state.uid, state.name, "added", added=rows)
    return StateDiff(state.uid, state.name, "removed", removed=rows)


def _both(old: tuple[Snapshot, StateContent], new: tuple[Snapshot, StateContent]) -> StateDiff:
    left, right = _rows(*old), _rows(*new)
    if left.schema != right.schema:
        return StateDiff(new[1].uid, new[1].name, "other columns", added=right.height, removed=left.height)
    on = new[1].identity
    whole = left.columns
    same = left.join(right, on=whole, how="semi", nulls_equal=True).height
    both = left.join(right, on=on, how="semi", nulls_equal=True).height
    added, removed = right.height - both, left.height - both
    verdict: Verdict = "same" if added == removed == 0 and same == both else "changed"
    return StateDiff(new[1].uid, new[1].name, verdict, added, removed, both - same, same)


def _rows(snapshot: Snapshot, state: StateContent) -> pl.DataFrame:
    return frame_of(snapshot, state).collect()
