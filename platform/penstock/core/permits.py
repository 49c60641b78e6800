"""The permission to commit output; a sink cannot commit without it."""

from __future__ import annotations

import msgspec


class CommitPermit(msgspec.Struct, frozen=True):
    """Proof that the manifest of `checkpoint_id` of `run` was appended to the dense log under `generation`.

    Made in one place only, from an appended manifest (`penstock.checkpoint.manifest_log`), and rebuilt from the wire.
    """

    job_id: str
    run_id: str
    generation: int
    checkpoint_id: int
    manifest_sequence: int
