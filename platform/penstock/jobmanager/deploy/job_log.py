"""The job's use of its manifest log; pure.

`plan_restore` derives what a deployment restores, `require_resumable` checks it at a submission; `ended_as` and
`stop_of` tell how a run ended. The other functions build the leader's entries of releases and ends. Called by
`master.job_master`, `change.upgrading` and `jobs.job_store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.checkpoint.manifest_log import LogEntry, Manifest, seal_entry
from penstock.checkpoint.recovery import check_source, live_entries, plan_recovery
from penstock.core.elements import BarrierKind
from penstock.core.errors import StateMismatchError
from penstock.core.event_log import Entry
from penstock.core.snapshot import Committable
from penstock.graph.execution_graph import PlanIds
from penstock.graph.in_flight import assign_rows
from penstock.graph.job_graph import JobGraph, unbounded_sources
from penstock.graph.restore_plan import assign_state, with_held
from penstock.graph.state_check import check_states, require_fit, require_same_places
from penstock.jobmanager.deploy.deployment import Recovered, publishing_sinks
from penstock.jobmanager.messages.commands import OperationEnded
from penstock.jobmanager.messages.events import LogRead


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The identity of a job's run, and its start options."""

    job_id: str
    run_id: str
    generation: int
    claim: bool = True
    accept_duplicates: bool = False
    #: States that may be dropped: `uid` or `uid/state`.
    allow_non_restored_state: tuple[str, ...] = ()

    def of_run(self, run_id: str) -> JobIdentity:
        """Return the identity of another run of the job, for which the start options do not count; empty: this one."""
        return JobIdentity(self.job_id, run_id, self.generation) if run_id else self

    def plan_ids(self, number: int) -> PlanIds:
        """Return the ids of the deployment with that number."""
        return PlanIds(job_id=self.job_id, run_id=self.run_id, generation=self.generation, attempt=number, epoch=number)


def plan_restore(graph: JobGraph, identity: JobIdentity, log: LogRead, *, deployed_before: bool) -> Recovered:
    """Choose the manifest, assign its state, and list the runs whose transactions are fenced.

    Raises:
        StateMismatchError: the state does not fit the graph, or the restore would repeat published output.
    """
    accepted = False
    if log.source is not None and not deployed_before:
        accepted = check_source(log.entries, log.source, identity.run_id, accept_duplicates=identity.accept_duplicates)
    plan = plan_recovery(log.entries, identity.run_id, source=log.source, claim=identity.claim)
    restored = plan.restored
    if restored is None:
        # The log holds only our own seal, so no run can have written output yet.
        return Recovered(plan, None, plan.fence if deployed_before or len(log.entries) > 1 else ())
    other_version = log.source is restored or (plan.trial is not None and plan.trial.base == restored.sequence)
    if not other_version:
        _require_unchanged(graph, restored, identity.run_id)
    lost = sorted({c.uid for c in plan.pending} - set(publishing_sinks(graph)))
    if lost:
        msg = f"sink {lost[0]!r} has unpublished output, but the job has no exactly-once sink with that uid"
        hint = "restore the sink's uid and delivery until its output is published"
        raise StateMismatchError(msg, hint=hint)
    # Applies to the savepoint only: states in the run's own checkpoints were all declared.
    dropped = identity.allow_non_restored_state if other_version else ()
    restore = assign_state(graph, restored.subtasks, checkpoint_id=restored.checkpoint_id, allow_non_restored=dropped)
    restore = with_held(restore, graph, plan.held)
    return Recovered(plan, restore, plan.fence, accepted)


def require_resumable(graph: JobGraph, run_id: str, entries: Sequence[LogEntry]) -> None:
    """Check before the submission of a run that the job's newest checkpoint fits it.

    Raises:
        StateMismatchError: the job or a state has changed, or a source names another place.
    """
    plan = plan_recovery(entries, run_id)
    if plan.restored is not None:
        _require_unchanged(graph, plan.restored, run_id)
        require_fit(check_states(graph, plan.restored.subtasks, pending=plan.pending))
        assign_rows(graph, plan.restored.subtasks)


def _require_unchanged(graph: JobGraph, restored: Manifest, run_id: str) -> None:
    if msg := restored.change_of(graph.fingerprint):
        folder = f"{graph.settings.checkpoint_root.rstrip('/')}/{graph.name}"
        make = f"`penstock state repartition {folder} NEW` makes one of the checkpoint: add --from NEW"
        if uri := restored.savepoint_uri:
            hint = f"it was stopped with one: add --from {uri}; or start over with `penstock run --fresh`"
        elif "://" in folder and unbounded_sources(graph):
            hint = f"{make}; or start over with `penstock run --fresh`"
        else:  # its input can be read again, or the job runs on the user's machine
            hint = f"start over with `penstock run --fresh`; or, to keep the state, {make}"
        raise StateMismatchError(msg, hint=hint)
    if restored.run_id != run_id:
        require_same_places(graph, restored.subtasks)


def ended_as(entries: Sequence[LogEntry], run_id: str) -> str:
    """Return the terminal state that a leader of this run wrote to the log, or an empty string."""
    ends = [e.manifest for e in live_entries(entries) if e.manifest.kind == "end" and e.manifest.run_id == run_id]
    return ends[-1].note if ends else ""


def stop_of(entries: Sequence[LogEntry], run_id: str) -> OperationEnded | None:
    """Return the reply to the stop or drain that was this run's final checkpoint; None if there was none."""
    checkpoints = [
        e.manifest for e in live_entries(entries) if e.manifest.kind == "checkpoint" and e.manifest.run_id == run_id
    ]
    last = checkpoints[-1] if checkpoints else None
    if last is None or last.barrier not in ("stop", "drain") or not last.request:
        return None
    return OperationEnded(last.request, last.note, last.checkpoint_id, kind="stop")


def end_entry(
    graph: JobGraph, identity: JobIdentity, state: str, uncommitted: tuple[tuple[Committable, ...], int], now_ms: int
) -> Manifest:
    """Return the end entry of a job; `uncommitted` holds uncommitted output and the sequence that last named it."""
    pending, as_of = uncommitted
    return Manifest(
        kind="end",
        sequence=0,
        job_id=identity.job_id,
        job_name=graph.name,
        run_id=identity.run_id,
        generation=identity.generation,
        nonce="",
        created_ms=now_ms,
        graph_fingerprint=graph.fingerprint,
        pending=pending,
        pending_as_of=as_of,
        runs=(identity.run_id,),
        note=state,
    )


def release_entry(graph: JobGraph, identity: JobIdentity, base: int, now_ms: int) -> Manifest:
    """Return the entry that ends the trial of an upgrade from checkpoint `base`: the new version is accepted."""
    seal = seal_entry(graph, identity.job_id, identity.run_id, identity.generation, now_ms, "released")
    return msgspec.structs.replace(seal, upgrade_of=base)


def completed_text(tag: str) -> str:
    """Return the event log text of a checkpoint that completed; its tag is `kind:id` with a `BarrierKind`."""
    return f"{_operation(tag)} completed"


def failed_text(tag: str, reason: str) -> str:
    """Return the event log text of a checkpoint that failed."""
    return f"{_operation(tag)} failed: {reason}"


def _operation(tag: str) -> str:
    kind, _, number = tag.partition(":")
    ends_job = kind in (BarrierKind.STOP, BarrierKind.DRAIN)
    return f"savepoint {number} of the {kind}" if ends_job else f"{kind} {number}"


def events_of_earlier_leaders(entries: Sequence[LogEntry], generation: int) -> tuple[Entry, ...]:
    """Return event log entries of leaders before `generation`, reconstructed from the manifest log, oldest first.

    They include those of earlier jobs of the name.
    """
    found = []
    for manifest in (entry.manifest for entry in entries if entry.manifest.generation < generation):
        match manifest.kind:
            case "seal":
                kind, text = "leader", f"run {manifest.run_id}, leader of generation {manifest.generation}"
                text += f" ({manifest.note})" if manifest.note else ""
            case "end":
                kind, text = "end", manifest.note
            case _:
                kind, text = "checkpoint", completed_text(f"{manifest.barrier}:{manifest.checkpoint_id}")
        found.append(Entry(manifest.created_ms, kind, text, manifest.generation, manifest.job_id))
    return tuple(found)
