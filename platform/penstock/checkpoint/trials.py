"""Runs on trial: a new version of a job that may still be taken back to the checkpoint it went on from; pure.

Used by `checkpoint.recovery` and by the job's store. What decides is the log alone: a run is on trial from its first
seal that says so until a seal of it that does not (the release). Its checkpoints are recovery points for itself only:
for any other run the log ends where the trial began, and nothing of what it wrote has been published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.checkpoint.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Trial:
    """How a run began as an upgrade."""

    #: Sequence of the checkpoint it went on from, which may be of another graph.
    base: int
    #: Sinks whose output is held back.
    held: tuple[str, ...] = ()
    #: Not released: it may be taken back.
    open: bool = True


def trial_of(live: Sequence[Manifest], run_id: str) -> Trial | None:
    """Return how a run began, of a log's live entries; None for one that is no upgrade."""
    seals = [m for m in live if m.kind == "seal" and m.run_id == run_id and m.upgrade_of]
    if not seals:
        return None
    is_open = all(seal.on_trial for seal in seals)
    # a leader may have sealed the run and died before it was recorded: its successor has taken another cut
    return Trial(seals[-1].upgrade_of, seals[-1].held if is_open else (), open=is_open)


def runs_on_trial(live: Sequence[Manifest]) -> frozenset[str]:
    """Return the runs that were never released, whether they go on or were taken back."""
    begun = {m.run_id for m in live if m.kind == "seal" and m.on_trial}
    return frozenset(begun - {m.run_id for m in live if m.kind == "seal" and not m.on_trial})


def counts_for(manifest: Manifest, run_id: str, trials: frozenset[str]) -> bool:
    """Whether an entry says anything to that run: seals always do, all else of another run's trial never does."""
    return manifest.kind == "seal" or manifest.run_id == run_id or manifest.run_id not in trials
