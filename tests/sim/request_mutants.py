"""Faults planted into checkpoints that a user requests and into windows of split keys, for `test_mutants.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.faults import REQUEST, RESCALE
from tests.sim.mutants import OVERTAKING, Mutant, Patch
from tests.sim.workload import Phase

from penstock.checkpoint.coordinator import CheckpointCoordinator
from penstock.jobmanager.checkpoints.checkpointing import Checkpointing
from penstock.jobmanager.messages.events import CheckpointRequested
from penstock.operators.windows.window_aggregate import WindowAggregateOperator
from penstock.operators.windows.window_stages import PartialWindows

_PLAN = {"input_ms": 1500.0, "phases": [Phase(2)]}


def _choice_ignored(patch: Patch) -> None:
    """Barriers of a requested checkpoint overtake as the settings say."""
    request = CheckpointCoordinator.request

    def deaf(self: CheckpointCoordinator, kind: Any, request_id: str, now_ms: int, **_choice: Any) -> Any:
        return request(self, kind, request_id, now_ms)

    patch.setattr(CheckpointCoordinator, "request", deaf)


def _choice_lost_in_a_rescale(patch: Patch) -> None:
    """A request that a rescale interrupts is repeated without its choice."""
    withdraw = Checkpointing.withdraw

    def forgetful(self: Checkpointing) -> list[Any]:
        left = withdraw(self)
        return [replace(event, unaligned=None) if isinstance(event, CheckpointRequested) else event for event in left]

    patch.setattr(Checkpointing, "withdraw", forgetful)


def _watermark_overtakes_parts(patch: Patch) -> None:
    """A partial window emits its rows after the watermark that closes it."""
    process_watermark = WindowAggregateOperator.process_watermark

    def early(self: WindowAggregateOperator, watermark: Any, out: Any) -> None:
        if not isinstance(self._stage, PartialWindows):
            process_watermark(self, watermark, out)
            return
        out.watermark(watermark)
        self.advance(self._time.of_watermark(watermark.timestamp), out)

    patch.setattr(WindowAggregateOperator, "process_watermark", early)


REQUESTS = (
    Mutant("the choice of a requested checkpoint ignored", _choice_ignored, {}, {REQUEST: 1.0}, _PLAN, OVERTAKING),
    Mutant(
        "the choice of a requested checkpoint lost in a rescale", _choice_lost_in_a_rescale, {},
        {REQUEST: 6.0, RESCALE: 1.0}, _PLAN, OVERTAKING, every_ms=20.0, likely=2,
    ),
    Mutant(
        "watermark overtakes the parts of a key", _watermark_overtakes_parts, {}, {},
        {**_PLAN, "spread": 4}, likely=2,
    ),
)  # fmt: skip
