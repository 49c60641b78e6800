"""Builds the leader's entries of the manifest log (checkpoints, releases, ends), and event log entries from them; pure.

Called by `jobmanager.checkpoints.checkpointing` and `jobmanager.master.job_master`. Sequence and nonce are set by the
append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock.checkpoint.coordinator import PendingCheckpoint
from penstock.checkpoint.log import LogEntry
from penstock.checkpoint.manifest import Manifest
from penstock.core.elements import BarrierKind
from penstock.core.event_log import Entry
from penstock.core.snapshot import Committable
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.deploy.deployment import Deployment
from penstock.jobmanager.deploy.restore_decision import JobIdentity


def checkpoint_entry(
    deployment: Deployment, pending: PendingCheckpoint, owed: tuple[Committable, ...], noted: tuple[str, int]
) -> Manifest:
    """Return the entry of a fully acknowledged checkpoint; `noted` holds its copy's URI and the time (ms)."""
    graph, ids = deployment.graph, deployment.ids
    uri, now_ms = noted
    return Manifest(
        kind="savepoint" if pending.kind is BarrierKind.SAVEPOINT else "checkpoint",
        sequence=0,
        job_id=ids.job_id,
        job_name=graph.name,
        run_id=ids.run_id,
        generation=ids.generation,
        nonce="",
        created_ms=now_ms,
        checkpoint_id=pending.checkpoint_id,
        graph_fingerprint=graph.fingerprint,
        key_groups=graph.settings.key_groups,
        operators={o.uid: (v.parallelism, v.id) for v in graph.vertices for o in v.operators},
        subtasks=tuple(ack.snapshot for _, ack in sorted(pending.acks.items())),
        pending=owed,
        runs=(ids.run_id,),
        barrier=pending.label,
        note=uri,
        request=pending.request_id if pending.kind.ends_job else "",
    )


def end_entry(
    graph: JobGraph, identity: JobIdentity, state: str, owed: tuple[tuple[Committable, ...], int], now_ms: int
) -> Manifest:
    """Return the end entry of a job; `owed` holds uncommitted output and the sequence that last named it."""
    pending, as_of = owed
    entry = _entry(graph, identity, "end", now_ms)
    return msgspec.structs.replace(entry, pending=pending, pending_as_of=as_of, runs=(identity.run_id,), note=state)


def release_entry(graph: JobGraph, identity: JobIdentity, base: int, now_ms: int) -> Manifest:
    """Return the entry that ends the trial of an upgrade from checkpoint `base`: the new version is accepted."""
    return msgspec.structs.replace(_entry(graph, identity, "seal", now_ms), upgrade_of=base, note="released")


def appended_text(tag: str, sequence: int) -> str:
    """Return the event log text of a completed checkpoint."""
    return f"{tag} completed (log entry {sequence})"


def told_by(entries: Sequence[LogEntry], generation: int) -> tuple[Entry, ...]:
    """Return event log entries of leaders before `generation`, reconstructed from the manifest log, oldest first."""
    found = []
    for manifest in (entry.manifest for entry in entries if entry.manifest.generation < generation):
        match manifest.kind:
            case "seal":
                kind, text = "leader", f"run {manifest.run_id}, generation {manifest.generation}"
                text += f" ({manifest.note})" if manifest.note else ""
            case "end":
                kind, text = "end", manifest.note
            case _:
                tag = f"{manifest.barrier}:{manifest.checkpoint_id}"
                kind, text = "checkpoint", appended_text(tag, manifest.sequence)
        found.append(Entry(manifest.created_ms, kind, text, manifest.generation))
    return tuple(found)


def _entry(graph: JobGraph, identity: JobIdentity, kind: Literal["end", "seal"], now_ms: int) -> Manifest:
    """Return an entry with only the job's identity."""
    return Manifest(
        kind=kind,
        sequence=0,
        job_id=identity.job_id,
        job_name=graph.name,
        run_id=identity.run_id,
        generation=identity.generation,
        nonce="",
        created_ms=now_ms,
        graph_fingerprint=graph.fingerprint,
    )
