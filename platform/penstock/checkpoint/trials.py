"""Runs on trial: a new version of a job that may still be rolled back to the checkpoint it started from; pure.

Used by `checkpoint.recovery` and by the job's store. Only the log decides: a run is on trial from its first seal that
says so until a seal of it that does not (the release). Its checkpoints are recovery points for itself only. For any
other run the log ends where the trial began, and none of its output has been published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.checkpoint.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Trial:
    """The start of a run as an upgrade."""

    #: Sequence of the checkpoint it started from, which may be of another graph.
    base: int
    #: Sinks whose output is withheld.
    held: tuple[str, ...] = ()
    #: Not released: it may be rolled back.
    open: bool = True


def trial_of(live: Sequence[Manifest], run_id: str) -> Trial | None:
    """Return how a run began, from the live entries of a log; None for a run that is no upgrade."""
    seals = [m for m in live if m.kind == "seal" and m.run_id == run_id and m.upgrade_of]
    if not seals:
        return None
    is_open = all(seal.on_trial for seal in seals)
    # a leader may have sealed the run and died before recording it: its successor used another checkpoint
    return Trial(seals[-1].upgrade_of, seals[-1].held if is_open else (), open=is_open)


def runs_on_trial(live: Sequence[Manifest]) -> frozenset[str]:
    """Return the runs that were never released, whether they still run or were rolled back."""
    begun = {m.run_id for m in live if m.kind == "seal" and m.on_trial}
    return frozenset(begun - {m.run_id for m in live if m.kind == "seal" and not m.on_trial})


def counts_for(manifest: Manifest, run_id: str, trials: frozenset[str]) -> bool:
    """Return whether an entry counts for that run: seals always do, other entries of another run's trial never do."""
    return manifest.kind == "seal" or manifest.run_id == run_id or manifest.run_id not in trials
