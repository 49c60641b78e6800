"""The output of a run on trial, as its checkpoints name it; pure. A member of `checkpoints.checkpointing`."""

from __future__ import annotations

import msgspec

from penstock.checkpoint.manifest import Manifest
from penstock.checkpoint.recovery import RecoveryPlan
from penstock.checkpoint.trials import Trial
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable


class HeldOutput:
    """Of one deployment."""

    def __init__(self, plan: RecoveryPlan | None = None) -> None:
        """What the log says."""
        self._trial = plan.trial if plan is not None else None
        #: Held by earlier attempts: their successors have it from the restore.
        self.restored: tuple[Committable, ...] = plan.held if plan is not None else ()
        #: Of entries that count for nobody: trials that were taken back.
        self.abandoned = plan.abandoned if plan is not None else frozenset()
        #: That of the newest checkpoint of this deployment.
        self.permit: CommitPermit | None = None

    @property
    def sinks(self) -> tuple[str, ...]:
        """The sinks that may not publish yet."""
        return self._trial.held if self._trial is not None and self._trial.open else ()

    @property
    def base(self) -> tuple[int, ...]:
        """The checkpoint (sequence) that is kept to go back to."""
        return (self._trial.base,) if self._trial is not None and self._trial.open else ()

    def stamped(self, entry: Manifest) -> Manifest:
        """Return the entry of a checkpoint with what it may not let out."""
        if self._trial is None:
            return entry
        return msgspec.structs.replace(entry, upgrade_of=self._trial.base, held=self.sinks)

    def release(self) -> None:
        """Nothing is held any more."""
        self.restored = ()
        if self._trial is not None:
            self._trial = Trial(self._trial.base, open=False)
