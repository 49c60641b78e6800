"""The manifest: one JSON document per entry of the dense log; a checkpoint exists when its manifest was appended.

Entries are `manifests/<sequence, 20 digits>.json`; kinds: `checkpoint`, `savepoint` (recorded, not a recovery point),
`seal` (a new leader's first entry), `end` (the job reached a terminal state) and `fence` (a checkpoint that is no
longer retained, kept for its place before a seal; it names no file). Written by `checkpoint.log`, read by recovery and
offline tools.
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
    #: Makes an ambiguous PUT decidable: an entry with our nonce is ours.
    nonce: str
    created_ms: int
    #: Comparable only within one run; None in a seal.
    checkpoint_id: int | None = None
    graph_fingerprint: str = ""
    key_groups: int = 0
    #: uid -> (parallelism, vertex id) at the time of the cut.
    operators: dict[str, tuple[int, str]] = {}
    subtasks: tuple[SubtaskSnapshot, ...] = ()
    #: All output not yet known published, of this and every earlier checkpoint and run.
    pending: tuple[Committable, ...] = ()
    #: In `end`: sequence of the newest checkpoint that `pending` takes account of; a later one owes all it names.
    pending_as_of: int = 0
    #: Run ids whose transactional ids may still be open (fenced at the next recovery), newest last.
    runs: tuple[str, ...] = ()
    #: Why the cut was taken: a `core.elements.BarrierKind`, or `final` at the end of a bounded job; empty in seals.
    barrier: str = ""
    #: Savepoint: where its self-contained copy lies; seal/end: a reason.
    note: str = ""
    #: Stop and drain: the request that asked for it, so that the next leader can answer it.
    request: str = ""
    #: Savepoint: the folder of the job it was taken of.
    origin: str = ""
    #: In all entries of a run that began as an upgrade: sequence of the other version's checkpoint it went on from.
    upgrade_of: int = 0
    #: In seals: the run is on trial (`checkpoint.trials`); its seal without this releases it.
    on_trial: bool = False
    #: Sinks whose output of this run may not be published yet; `pending` names it all the same.
    held: tuple[str, ...] = ()


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Inverse of `encode_manifest`; raises msgspec.ValidationError on anything else."""
    return msgspec.json.decode(data, type=Manifest)
