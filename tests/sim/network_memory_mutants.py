"""Faults planted into the lending of network memory, for `test_mutants.py`."""

from __future__ import annotations

from typing import Any

from tests.sim.mutants import Mutant, Patch
from tests.sim.workload import Phase

from penstock.rpc.messages import NetworkNeed
from penstock.taskmanager.network_pool import NetworkPool


def _lent_at_once(patch: Patch) -> None:
    """What a worker has been told to return is lent before it has."""
    divided = NetworkPool._divided

    def at_once(self: NetworkPool) -> Any:
        for loan in self._loans.values():
            loan.held_bytes = loan.told_bytes
        return divided(self)

    patch.setattr(NetworkPool, "_divided", at_once)


def _any_answer_counts(patch: Patch) -> None:
    """A worker that keeps to an earlier share counts as one that keeps to the newest."""
    needs = NetworkPool.needs

    def numberless(self: NetworkPool, worker_id: str, need: NetworkNeed) -> Any:
        loan = self._loans.get(worker_id)
        newest = need.number if loan is None else loan.number
        return needs(self, worker_id, NetworkNeed(number=newest, needed_bytes=need.needed_bytes))

    patch.setattr(NetworkPool, "needs", numberless)


_LATE, _DEATHS = {"message-delayed": 0.3}, {"worker-killed": 4.0}
#: A worker's gates want megabytes, a slot is guaranteed 512 KB.
_PLAN = {"input_ms": 1500.0, "phases": [Phase(3)], "slow_ms": 4.0, "network_memory_bytes": 1 << 19}
_SETTINGS = {"exclusive_buffers": 2, "buffer_size_bytes": 1 << 20, "buffer_debloat_target_ms": 0}

NETWORK_MEMORY = (
    Mutant("memory lent before it is returned", _lent_at_once, _LATE, _DEATHS, _PLAN, _SETTINGS, likely=11),
    Mutant("an earlier share counts as kept", _any_answer_counts, _LATE, _DEATHS, _PLAN, _SETTINGS, likely=11),
)
