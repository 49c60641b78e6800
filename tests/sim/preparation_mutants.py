"""Faults planted into the state that next workers load before a rescale, for `test_mutants.py`."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.sim.faults import RESCALE
from tests.sim.mutants import Mutant, Patch
from tests.sim.workload import Phase, SessionsPlan
from tests.support.sizes import TINY

from penstock.core.snapshot import KeyedStateSnapshot
from penstock.jobmanager.cluster.slots import HeldSlots
from penstock.state import store
from penstock.state.log.segment_log import LogDelta, log_delta
from penstock.state.store import KeyedState
from penstock.state.tables.session_table import SessionTable
from penstock.task.checkpoint.compaction import Compactor

_RESCALES = {RESCALE: 4.0}
_PLAN = {"input_ms": 1500.0, "phases": [Phase(2)], "limits": TINY.changed(segments_per_tier=2)}
_PREPARED = {"prepare_state_bytes": 0, "state_backend": "hashmap", "checkpoint_interval_ms": 40}


def _merged_over_newer(patch: Patch) -> None:
    """Compaction goes on, and its results are loaded like any other segment."""

    def tierless(snapshots: Any) -> list[KeyedStateSnapshot]:
        return [
            msgspec.structs.replace(
                part, segments=tuple(msgspec.structs.replace(segment, tier=0) for segment in part.segments)
            )
            for part in snapshots
        ]

    def trusting(before: Any, after: Any) -> LogDelta | None:
        found = log_delta(tierless(before), tierless(after))
        if found is None:
            return None
        kept = {msgspec.structs.replace(s, tier=0): s for part in after for s in part.segments}
        return LogDelta(tuple(kept[segment] for segment in found.segments))  # nothing of it is hidden, it believes

    patch.setattr(store, "log_delta", trusting)
    patch.setattr(Compactor, "pause", lambda _self, *, paused: None)


def _nothing_added(patch: Patch) -> None:
    """The state of the first checkpoint is taken for that of the last."""

    def stale(before: Any, after: Any) -> LogDelta | None:
        found = log_delta(before, after)
        return None if found is None else LogDelta((), found.hidden_to)

    patch.setattr(store, "log_delta", stale)


def _log_of_the_first_checkpoint(patch: Patch) -> None:
    """Rows are added, but the log still names the segments of the first checkpoint only."""
    advance = KeyedState.advance

    def forgetful(self: KeyedState, *arguments: Any) -> bool:
        before = {name: list(table.source.log.entries) for name, table in self.tables.items()}
        taken = advance(self, *arguments)
        for name, table in self.tables.items() if taken else ():
            table.source.log.entries = before[name]
        return taken

    patch.setattr(KeyedState, "advance", forgetful)


def _ended_sessions_kept(patch: Patch) -> None:
    """Sessions that ended after the first checkpoint stay in the loaded state."""
    patch.setattr(SessionTable, "hide_loaded", lambda _self, _up_to: None)


def _prepared_beside_running(patch: Patch) -> None:
    """Prepared workers do not wait for the stop of the old ones."""
    may_start = HeldSlots.may_start
    patch.setattr(HeldSlots, "may_start", lambda self, now_ms: bool(self._prepared) or may_start(self, now_ms))


PREPARATION = (
    Mutant(
        "a merged segment loaded over newer rows", _merged_over_newer, {}, _RESCALES, _PLAN, _PREPARED, likely=5
    ),
    Mutant("the last checkpoint not added", _nothing_added, {}, _RESCALES, _PLAN, _PREPARED),
    Mutant(
        "segments forgotten by prepared state", _log_of_the_first_checkpoint, {},
        {**_RESCALES, "worker-killed": 3.0}, _PLAN, _PREPARED, likely=2,
    ),
    Mutant(
        "prepared workers start before the old ones have stopped", _prepared_beside_running,
        {"message-delayed": 0.1}, _RESCALES, {**_PLAN, "exit_ms": 100.0}, _PREPARED, likely=2,
    ),
    Mutant("ended sessions kept", _ended_sessions_kept, {}, _RESCALES, _PLAN, _PREPARED, kind=SessionsPlan),
)  # fmt: skip
