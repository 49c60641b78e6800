"""Faults planted into the restart of a region, for `test_mutants.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.sim.mutants import Mutant, Patch
from tests.sim.workload import Phase

from penstock.checkpoint.coordinator import CheckpointCoordinator
from penstock.jobmanager.checkpoints.checkpointing import Checkpointing
from penstock.jobmanager.deploy.deployment import Deployment, Recovered, source_spec
from penstock.jobmanager.deploy.region_restart import RegionRestart
from penstock.jobmanager.deploy.split_assigner import SplitAssigner
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages.events import LogRead
from penstock.operators.sources.source_operator import SourceOperator

_KILLS = {"worker-killed": 1.0}
_SLOW = {"input_ms": 1500.0, "phases": [Phase(1, "finish")]}


def _acks_of_the_killed(patch: Patch) -> None:
    """The checkpoint under way is not aborted: what the killed executions have acknowledged counts, also later."""
    ack = CheckpointCoordinator.ack

    def go_on(self: CheckpointCoordinator, executions: Any, _reason: str) -> list[Any]:
        self._executions = frozenset(executions)
        self._ended &= self._executions
        return []

    def of_any_attempt(self: CheckpointCoordinator, checkpoint_id: int, execution: Any, taken: Any) -> list[Any]:
        pending = self.under_way(checkpoint_id)
        expected = pending.expected if pending is not None else ()
        where = (execution.vertex_id, execution.subtask)
        same = next((known for known in expected if (known.vertex_id, known.subtask) == where), execution)
        return ack(self, checkpoint_id, same, taken)

    patch.setattr(CheckpointCoordinator, "pause", go_on)
    patch.setattr(CheckpointCoordinator, "ack", of_any_attempt)


def _newest_aborted(patch: Patch) -> None:
    """One checkpoint is aborted, as if no other could be under way: the killed executions may be part of the others."""
    _keep(patch, lambda pending: list(pending)[:-1])


def _complete_appended(patch: Patch) -> None:
    """A checkpoint that waits for an append is appended after it, though the region may have read the log."""
    _keep(patch, lambda pending: [number for number, checkpoint in pending.items() if checkpoint.complete])


def _keep(patch: Patch, chosen: Callable[[Mapping[int, Any]], list[int]]) -> None:
    """Let a pause abort no checkpoint whose id `chosen` returns."""
    pause = CheckpointCoordinator.pause

    def paused(self: CheckpointCoordinator, executions: Any, reason: str) -> list[Any]:
        kept = {number: self._pending[number] for number in chosen(self._pending)}
        aborted = pause(self, executions, reason)
        self._pending |= kept
        return [abort for abort in aborted if abort.pending.checkpoint_id not in kept]

    patch.setattr(CheckpointCoordinator, "pause", paused)


def _without_the_region(patch: Patch) -> None:
    """Checkpoints go on with the regions that run."""
    pause = CheckpointCoordinator.pause

    def others(self: CheckpointCoordinator, executions: Any, reason: str) -> list[Any]:
        kept = self._executions & frozenset(executions)
        aborted = pause(self, kept, reason)
        self._running = True
        return aborted

    patch.setattr(CheckpointCoordinator, "pause", others)


def _other_sources_reset(patch: Patch) -> None:
    """The splits of all sources are assigned again, from the checkpoint, and taken for new ones."""
    join, add_splits = Deployment.join, SourceOperator.add_splits

    def forgetful(self: SourceOperator, splits: Any, *, no_more: bool) -> None:
        self._known.clear()
        add_splits(self, splits, no_more=no_more)

    def reset(self: Deployment, part: Deployment) -> None:
        join(self, part)
        restore = part.recovered.restore if part.recovered is not None else None
        for vertex_id, operator in self.sources() if restore is not None else ():
            if operator.uid not in part.assigners:
                known = SplitAssigner(
                    self.graph.vertex(vertex_id).parallelism,
                    bounded=source_spec(operator).bounded,
                    restored=restore.splits.get(operator.uid, ()),
                )
                self.assigners[operator.uid] = known

    patch.setattr(Deployment, "join", reset)
    patch.setattr(SourceOperator, "add_splits", forgetful)


def _output_not_resolved(patch: Patch) -> None:
    """The output of the killed sinks is left to their successors, which do not know of it."""
    own = RegionRestart.own

    def forgotten(self: RegionRestart, recovered: Recovered) -> Recovered:
        found = own(self, recovered)
        return replace(found, plan=replace(found.plan, pending=()), fence=())

    patch.setattr(RegionRestart, "own", forgotten)


def _append_not_awaited(patch: Patch) -> None:
    """The region restores the checkpoint before the newest: as if the log were read before an append that succeeds."""
    on_log = JobMaster._on_log_of_region

    def too_early(self: JobMaster, region: RegionRestart, event: LogRead, now_ms: int) -> Any:
        checkpoints = [entry for entry in event.entries if entry.manifest.kind == "checkpoint"]
        newest = checkpoints[1:][-1:]
        entries = tuple(entry for entry in event.entries if entry not in newest)
        return on_log(self, region, replace(event, entries=entries), now_ms)

    patch.setattr(JobMaster, "_on_log_of_region", too_early)
    patch.setattr(Checkpointing, "knows_newest", lambda _self, _plan: True)


def _mutant(
    name: str, plant: Callable[[Patch], None], points: dict[str, float], likely: int = 1, **settings: Any
) -> Mutant:
    settings = {"checkpoint_interval_ms": 40, **settings}
    return Mutant(name, plant, points, _KILLS, _SLOW, settings, regions=3, likely=likely)


#: Checkpoints overlap, and acknowledgements of the older ones come last.
_OVERLAPPING = {"checkpoint_interval_ms": 20, "max_concurrent_checkpoints": 3, "checkpoint_min_pause_ms": 0}


REGIONS = (
    _mutant("acks of killed executions count", _acks_of_the_killed, {"upload-delayed": 0.4, "ack-late": 0.3}, 46),
    _mutant("a checkpoint without the region that restarts", _without_the_region, {}),
    _mutant("only the newest checkpoint aborted", _newest_aborted, {"ack-late": 0.3}, **_OVERLAPPING),
    _mutant("a complete checkpoint appended later", _complete_appended, {"upload-delayed": 0.4}, 15, **_OVERLAPPING),
    _mutant("the sources of other regions reset", _other_sources_reset, {}),
    _mutant("other regions repeat without alignment", _other_sources_reset, {}, checkpoint_mode="at-least-once"),
    replace(
        _mutant("the output of killed sinks not resolved", _output_not_resolved, {"kill-before-init": 0.3}), strikes={}
    ),
    _mutant("a region below its published output", _append_not_awaited, {}),
)
