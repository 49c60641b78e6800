"""Checks that a new version of a job can replace the running one: at the request, and against the checkpoint; pure.

Called by `jobmanager.jobs.change_requests` at a request and by `jobmanager.change.upgrading`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.checkpoint.manifest import Manifest
from penstock.checkpoint.upgrade_record import UpgradePolicy
from penstock.connector.sink import SinkSpec
from penstock.core.errors import PenstockError, UsageError
from penstock.graph.job_graph import ENDS, JobGraph
from penstock.graph.restore_plan import assign_state
from penstock.graph.state_check import check_states, require_fit
from penstock.jobmanager.deploy.deployment import publishing_sinks


def sink_deliveries(graph: JobGraph) -> dict[str, str]:
    """Return the delivery of every sink, by uid; `none` for a sink that is not a connector's."""
    found = {}
    for vertex in graph.vertices:
        for operator in vertex.operators:
            if operator.kind == "sink":
                found[operator.uid] = str(msgspec.convert(operator.config["sink"], SinkSpec).delivery)
            elif operator.kind in ENDS:
                found[operator.uid] = "none"
    return found


def holding_sinks(graph: JobGraph) -> tuple[str, ...]:
    """Return the sinks that can withhold output: those that stage it."""
    return tuple(sorted(uid for uid, delivery in sink_deliveries(graph).items() if delivery == "exactly-once"))


def require_upgradable(old: JobGraph, new: JobGraph, policy: UpgradePolicy) -> None:
    """Refuse a graph that cannot be an upgrade of `old`, or cannot be rolled back as the policy demands.

    Raises:
        UsageError: with a hint.
    """
    if new.name != old.name:
        msg = f"the new version is named {new.name!r}, the running job {old.name!r}"
        raise UsageError(msg, hint=f"keep the name: env.execute({old.name!r})")
    if new.settings.checkpoint_root != old.settings.checkpoint_root:
        ours, theirs = new.settings.checkpoint_root, old.settings.checkpoint_root
        msg = f"the new version has the checkpoint root {ours}, the running job {theirs}"
        raise UsageError(msg, hint="keep the root, or stop the job with a savepoint and run it with --from")
    if policy.checkpoints < 0 or policy.max_restarts < 0 or policy.deadline_ms <= 0:
        msg = "--checkpoints and --max-restarts must be at least 0, --deadline more than 0"
        raise UsageError(msg, hint="omit them for the defaults")
    if policy.checkpoints and new.settings.checkpoint_interval_ms is None:
        msg = f"the new version has no checkpoint interval, but the upgrade requires {policy.checkpoints} checkpoints"
        raise UsageError(msg, hint="set checkpoint_interval, or pass --checkpoints 0")
    if policy.rollback:
        _require_holding(new, policy)
    if policy.from_checkpoint:
        _require_same_sinks(old, new)


def _require_holding(new: JobGraph, policy: UpgradePolicy) -> None:
    deliveries = sink_deliveries(new)
    for uid in policy.accept:
        if uid not in deliveries or deliveries[uid] == "exactly-once":
            msg = f"--accept {uid}: the new version has no such sink that cannot withhold output"
            raise UsageError(msg, hint=f"sinks of the new version: {', '.join(sorted(deliveries)) or 'none'}")
    cannot = sorted(uid for uid, d in deliveries.items() if d != "exactly-once" and uid not in policy.accept)
    if cannot:
        which = ", ".join(f"{uid} ({deliveries[uid]})" for uid in cannot)
        msg = f"these sinks cannot withhold output, so a rollback would not remove their rows: {which}"
        names = " ".join(f"--accept {uid}" for uid in cannot)
        raise UsageError(msg, hint=f"accept them by name ({names}), or upgrade with --no-rollback")


def _require_same_sinks(old: JobGraph, new: JobGraph) -> None:
    after = {uid: _goes_to(spec) for uid, spec in publishing_sinks(new).items()}
    for uid, spec in publishing_sinks(old).items():
        if after.get(uid) != _goes_to(spec):
            msg = f"sink {uid!r} differs in the new version, and a checkpoint still holds pending output for it"
            raise UsageError(
                msg,
                hint="upgrade with a savepoint (the default): the old version publishes its output first",
            )


def _goes_to(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that determine an output's destination; columns may differ, staged rows carry their own."""
    return {name: spec[name] for name in ("factory", "config", "delivery")}


def misfit(graph: JobGraph, cut: Manifest | None, policy: UpgradePolicy) -> str:
    """Return why the state of a checkpoint does not fit a new version, or an empty string."""
    if cut is None:
        return ""
    allowed = policy.allow_non_restored_state
    settled = tuple(msgspec.structs.replace(part, committables=()) for part in cut.subtasks)
    parts = cut.subtasks if policy.from_checkpoint else settled
    try:
        require_fit(check_states(graph, parts, pending=(), allow_non_restored=allowed))
        assign_state(graph, parts, checkpoint_id=cut.checkpoint_id, allow_non_restored=allowed)
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return ""
