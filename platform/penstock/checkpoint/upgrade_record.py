"""The upgrade in a job's record: enough for any leader to continue it or to report how it ended.

Written by `jobmanager.change.job_change` at each step of `jobmanager.change.upgrading`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: `cut`: the old version runs until its checkpoint is taken; `trial`: the new one runs and may be rolled back. The
#: others are ends: `completed`, `rolled-back` (the old version runs again), `refused` (it was never replaced), `kept`
#: (the new version did not become healthy but keeps running, as the user chose).
UpgradePhase = Literal["cut", "trial", "completed", "rolled-back", "refused", "kept"]


class UpgradePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an upgrade, and its criteria of health."""

    #: Start from a checkpoint instead of a stop with a savepoint: nothing is copied, and output stops for less time.
    from_checkpoint: bool = False
    #: Path for the savepoint.
    target: str = ""
    #: Checkpoints the new version has to complete.
    checkpoints: int = 3
    #: Restarts that the new version may take meanwhile.
    max_restarts: int = 0
    #: The new version has to be healthy by then; counted from its start, across JobManager restarts.
    deadline_ms: int = 300_000
    #: Healthy only when the user confirms it.
    confirm: bool = False
    #: Roll back when it is not healthy.
    rollback: bool = True
    #: Sinks (uids) that cannot withhold output: after a rollback, their output of the trial stays and is written again.
    accept: tuple[str, ...] = ()
    #: State that the new version does not restore: `uid` or `uid/state`.
    allow_non_restored_state: tuple[str, ...] = ()
    #: Use the parallelism of the running version, not that of the new file.
    keep_parallelism: bool = True


class UpgradeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The newest upgrade of a job."""

    token: str
    phase: UpgradePhase
    policy: UpgradePolicy
    #: Of the new version.
    run_id: str
    #: Of the old version, after a rollback.
    back_run_id: str
    #: The version that does not run now (`graph.job_graph.encode_graph`); empty at the end.
    other: bytes = b""
    #: Sequence of the checkpoint both versions start from; 0 before it was taken.
    base: int = 0
    #: The savepoint, when there is one.
    savepoint: str = ""
    #: Wall time at which the present phase ends.
    deadline_ms: int = 0
    #: Uid -> subtasks of the running version, of the new version's file, and of the new version as it runs, if these
    #: differ.
    parallelism: dict[str, tuple[int, int, int]] = {}
    #: Why it did not end as `completed`.
    reason: str = ""

    @property
    def ended(self) -> bool:
        """Return whether nothing is left to do."""
        return self.phase not in ("cut", "trial")
