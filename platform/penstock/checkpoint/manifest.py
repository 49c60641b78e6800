"""The manifest: one JSON document per entry of the dense log.

A checkpoint exists when its manifest was appended. Entries are `manifests/<sequence, 20 digits>.json`. Kinds:
`checkpoint`, `savepoint` (recorded, not a recovery point), `seal` (a new leader's first entry), `end` (the job reached
a terminal state) and `fence` (a checkpoint that is no longer retained and names no file, kept for its place before a
seal). Written by `checkpoint.log`, read by recovery and offline tools.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.core.snapshot import Committable, SubtaskSnapshot

FORMAT_VERSION = 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the log."""

    version: int = FORMAT_VERSION
    kind: Literal["checkpoint", "savepoint", "seal", "end", "fence"]
    sequence: int
    job_id: str
    job_name: str
    run_id: str
    generation: int
    #: Identifies the writer after a PUT with an unknown outcome: an entry with our nonce is ours.
    nonce: str
    created_ms: int
    #: Comparable only within one run; None in a seal.
    checkpoint_id: int | None = None
    graph_fingerprint: str = ""
    key_groups: int = 0
    #: uid -> (parallelism, vertex id) at the checkpoint.
    operators: dict[str, tuple[int, str]] = {}
    subtasks: tuple[SubtaskSnapshot, ...] = ()
    #: All output not known to be published, of this and every earlier checkpoint and run.
    pending: tuple[Committable, ...] = ()
    #: In `end`: sequence of the newest checkpoint that `pending` covers; all output of a later one is uncommitted.
    pending_as_of: int = 0
    #: Run ids whose transactional ids may still be open, newest last; they are fenced at the next recovery.
    runs: tuple[str, ...] = ()
    #: Why the checkpoint was taken: a `core.elements.BarrierKind`, or `final` at the end of a bounded job; empty in
    #: seals.
    barrier: str = ""
    #: Savepoint: path of its self-contained copy; seal/end: a reason.
    note: str = ""
    #: Stop and drain: id of the request, so that the next leader can answer it.
    request: str = ""
    #: Savepoint: folder of the job it was taken of.
    origin: str = ""
    #: In all entries of a run that began as an upgrade: sequence of the checkpoint of the other version it started
    #: from.
    upgrade_of: int = 0
    #: In seals: the run is on trial (`checkpoint.trials`). A later seal of the run without this flag releases it.
    on_trial: bool = False
    #: Sinks whose output of this run may not be published yet; `pending` includes it.
    held: tuple[str, ...] = ()


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Invert `encode_manifest`; raises msgspec.ValidationError on anything else."""
    return msgspec.json.decode(data, type=Manifest)
