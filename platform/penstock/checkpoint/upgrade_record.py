"""What is kept of a job's upgrade, in the job's record: enough for any leader to go on with it, or to tell its end.

Written by `jobmanager.change.job_change` at each step of `jobmanager.change.upgrading`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: `cut`: the old version runs until its cut is taken; `trial`: the new one runs and may be taken back. The others are
#: ends: `completed`, `rolled-back` (the old version runs again), `refused` (it was never replaced), `kept` (the new
#: version did not become healthy and runs on, as the user wanted).
UpgradePhase = Literal["cut", "trial", "completed", "rolled-back", "refused", "kept"]


class UpgradePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How an upgrade is done, and what counts as healthy."""

    #: Go on from a checkpoint instead of a stop with a savepoint: nothing is copied, and output stops for less long.
    from_checkpoint: bool = False
    #: Where the savepoint goes.
    target: str = ""
    #: Checkpoints the new version is to complete.
    checkpoints: int = 3
    #: Restarts it may take meanwhile.
    max_restarts: int = 0
    #: It is healthy by then, or not at all; counted from its start, over the end of a JobManager too.
    deadline_ms: int = 300_000
    #: Healthy only by a user's word.
    confirm: bool = False
    #: Take it back when it is not healthy.
    rollback: bool = True
    #: Sinks (uids) that cannot hold output: a roll-back leaves in place, and then repeats, what they have written.
    accept: tuple[str, ...] = ()
    #: State the new version leaves behind: `uid` or `uid/state`.
    allow_non_restored_state: tuple[str, ...] = ()
    #: The new version has the parallelism of the running one, not that of its file.
    keep_parallelism: bool = True


class UpgradeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An upgrade: the newest one of its job."""

    token: str
    phase: UpgradePhase
    policy: UpgradePolicy
    #: Of the new version.
    run_id: str
    #: Of the old version, when it comes back.
    back_run_id: str
    #: The version that the job is not now (`graph.job_graph.encode_graph`); empty at the end.
    other: bytes = b""
    #: Sequence of the checkpoint both go on from; 0 before it was taken.
    base: int = 0
    #: The savepoint, when there is one.
    savepoint: str = ""
    #: Wall time by which the present phase is over.
    deadline_ms: int = 0
    #: Uid -> subtasks of the running version, of the new one's file, of the new one as it runs, where these differ.
    parallelism: dict[str, tuple[int, int, int]] = {}
    #: Why it ended otherwise than completed.
    reason: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase not in ("cut", "trial")
