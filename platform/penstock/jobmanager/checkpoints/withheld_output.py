"""The withheld output of a run on trial, as its checkpoints name it; pure. A member of `checkpoints.checkpointing`."""

from __future__ import annotations

import msgspec

from penstock.checkpoint.manifest import Manifest
from penstock.checkpoint.recovery import RecoveryPlan
from penstock.checkpoint.trials import Trial
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable


class HeldOutput:
    """The withheld output of one deployment."""

    def __init__(self, plan: RecoveryPlan | None = None) -> None:
        """Take the trial state from the recovery plan."""
        self._trial = plan.trial if plan is not None else None
        #: Output withheld by earlier attempts, known from the restore.
        self.restored: tuple[Committable, ...] = plan.held if plan is not None else ()
        #: Log entries of trials that were rolled back; they do not count.
        self.abandoned = plan.abandoned if plan is not None else frozenset()
        #: The permit of this deployment's newest checkpoint.
        self.permit: CommitPermit | None = None

    @property
    def sinks(self) -> tuple[str, ...]:
        """The sinks that must withhold their output."""
        return self._trial.held if self._trial is not None and self._trial.open else ()

    @property
    def base(self) -> tuple[int, ...]:
        """The checkpoint (sequence) that is kept for a rollback."""
        return (self._trial.base,) if self._trial is not None and self._trial.open else ()

    def stamped(self, entry: Manifest) -> Manifest:
        """Return a checkpoint entry with the trial's base and the withholding sinks added."""
        if self._trial is None:
            return entry
        return msgspec.structs.replace(entry, upgrade_of=self._trial.base, held=self.sinks)

    def release(self) -> None:
        """Release all withheld output."""
        self.restored = ()
        if self._trial is not None:
            self._trial = Trial(self._trial.base, open=False)
