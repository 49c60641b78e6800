"""Turns the manifest log into the state that a deployment restores; pure.

Called by `jobmanager.master.job_master` at every start and restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.checkpoint.log import LogEntry
from penstock.checkpoint.recovery import check_source, live_entries, plan_recovery
from penstock.core.errors import StateMismatchError
from penstock.graph.execution_graph import PlanIds
from penstock.graph.job_graph import JobGraph
from penstock.graph.restore_plan import assign_state, with_held
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

    def plan_ids(self, number: int) -> PlanIds:
        """Return the ids of the deployment with that number."""
        return PlanIds(job_id=self.job_id, run_id=self.run_id, generation=self.generation, attempt=number, epoch=number)


def recover(graph: JobGraph, identity: JobIdentity, log: LogRead, *, deployed_before: bool) -> Recovered:
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
    if not other_version and restored.graph_fingerprint != graph.fingerprint:
        msg = f"job {graph.name!r} has changed since checkpoint {restored.checkpoint_id}"
        raise StateMismatchError(msg, hint="restore it with --from <savepoint>, or discard its state with --fresh")
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


def ended_as(entries: Sequence[LogEntry], run_id: str) -> str:
    """Return the terminal state that a leader of this run wrote to the log, or an empty string."""
    ends = [e.manifest for e in live_entries(entries) if e.manifest.kind == "end" and e.manifest.run_id == run_id]
    return ends[-1].note if ends else ""


def stop_of(entries: Sequence[LogEntry], run_id: str) -> OperationEnded | None:
    """Return the reply to the stop or drain that was this run's final checkpoint; None if there was none."""
    cuts = [
        e.manifest for e in live_entries(entries) if e.manifest.kind == "checkpoint" and e.manifest.run_id == run_id
    ]
    last = cuts[-1] if cuts else None
    if last is None or last.barrier not in ("stop", "drain") or not last.request:
        return None
    return OperationEnded(last.request, last.note, last.checkpoint_id, kind="stop")
